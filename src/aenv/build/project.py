"""A project folder and what its config.json says."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from pathlib import Path

from aenv.errors import ProjectError
from aenv.model.spec import CONFIG_FILE, EnvSpec


@dataclass(frozen=True, slots=True)
class Project:
    """Where it is and what it says it is."""

    folder: Path
    spec: EnvSpec

    def missing_requirements(self) -> list[str]:
        """The lines of requirements.txt whose package is not installed in this Python; versions are pip's business."""
        file = self.folder / "requirements.txt"
        if not file.is_file():
            return []
        lines = (line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines())
        return [line for line in lines if line and not line.startswith("-") and not _is_installed(line)]


def read(folder: Path) -> Project:
    """The project in this folder; ProjectError or ConfigError say why there is none."""
    file = folder / CONFIG_FILE
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        raise ProjectError(
            f"there is no {CONFIG_FILE} in {folder}",
            hint="go to the project's folder or name it with --work-dir; `aenv init NAME` makes a new one",
        ) from None
    except OSError as problem:
        raise ProjectError(f"cannot read {file}: {problem.strerror}") from problem
    return Project(folder, EnvSpec.parse(text, where=str(file)))


def _is_installed(requirement: str) -> bool:
    name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    if name is None:
        return True
    try:
        importlib.metadata.distribution(name[0])
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
