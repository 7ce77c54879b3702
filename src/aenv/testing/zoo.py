"""The zoo: misbehaving environments as real projects in a folder, each ready to be launched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from aenv._util.ids import new_id
from aenv._util.nearest import did_you_mean
from aenv.engines.protocol import Launch
from aenv.errors import ProjectError
from aenv.model.spec import EnvSpec
from aenv.testing.animals import ANIMALS
from aenv.testing.polite import POLITE

VERSION = "1.2.3"
PATIENCE = 60.0
"""Seconds a start may take here unless a test says less: machines that test are busy."""


class Zoo:
    """Writes projects into a folder, once for each content, and remembers the ids that it gave out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ids: list[str] = []

    def new_id(self) -> str:
        """An id for an instance, remembered so that what it leaves behind can be found."""
        self.ids.append(new_id("ins"))
        return self.ids[-1]

    def write(self, name: str, deploy: Mapping[str, object] | None = None) -> Path:
        """The folder of a project; `deploy` is its `deployConfig`."""
        if name not in ANIMALS:
            raise ProjectError(f"the zoo has no {name!r}", hint=did_you_mean(name, ANIMALS) or ", ".join(ANIMALS))
        config = {"name": name.replace("_", "-"), "version": VERSION, "deployConfig": dict(deploy or {})}
        files = {"config.json": json.dumps(config, indent=2), "src/polite.py": POLITE}
        if (source := ANIMALS[name]) is not None:
            files["src/animal.py"] = source
        project = self._folder / f"{name}-{_digest(files)[:16]}"
        for path, text in files.items():
            file = project / path
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, "utf-8")
        return project

    def launch(
        self,
        name: str = "polite",
        *,
        variables: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        deploy: Mapping[str, object] | None = None,
        start_seconds: float = PATIENCE,
    ) -> Launch:
        """One launch of a project, with an id of its own."""
        project = self.write(name, deploy)
        files = {str(file.relative_to(project)): file.read_text("utf-8") for file in _files(project)}
        return Launch(
            id=self.new_id(),
            spec=EnvSpec.parse(files["config.json"]),
            project=project,
            digest=_digest(files),
            variables=dict(variables or {}),
            arguments=tuple(arguments),
            start_seconds=start_seconds,
        )


def _files(project: Path) -> list[Path]:
    return [project / "config.json", *sorted((project / "src").glob("*.py"))]


def _digest(files: Mapping[str, str]) -> str:
    sums = [f"{path} {hashlib.sha256(files[path].encode()).hexdigest()}" for path in sorted(files)]
    return hashlib.sha256("\n".join(sums).encode()).hexdigest()
