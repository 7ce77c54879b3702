"""What the static checks look at: a project's files, read and parsed but never run."""

from __future__ import annotations

import ast
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path

from aenv.build.validate.findings import CheckFailed
from aenv.define.load import source_files
from aenv.errors import ConfigError
from aenv.model.spec import CONFIG_FILE, EnvSpec

REQUIREMENTS_FILE = "requirements.txt"


@dataclass(frozen=True, slots=True)
class Source:
    """A Python file: its tree, or why it has none and in which line."""

    shown: str
    tree: ast.Module
    problem: str | None = None
    line: int | None = None

    def at(self, node: ast.stmt | ast.expr) -> str:
        """`src/env.py:12`."""
        return f"{self.shown}:{node.lineno}"


@dataclass(frozen=True, slots=True)
class Subject:
    """A project folder as it lies there."""

    folder: Path
    root: Path
    """What a server puts on `sys.path`: `src/`, or the folder itself where there is none."""
    spec: EnvSpec | None
    refusal: ConfigError | OSError | None
    """Why there is no spec."""
    sources: tuple[Source, ...]
    """The files that a server imports."""
    private: tuple[Source, ...]
    """Files beside them that only they import: `_x.py`, `__init__.py`."""
    requirements: str | None

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """Everything of the author's that can be imported."""
        return (*self.sources, *self.private)

    def has(self, path: str) -> bool:
        """Whether a path that config.json names exists, seen from the folder."""
        return (self.folder / path).exists()


def read(folder: Path) -> Subject:
    """Read a project; CheckFailed when the folder cannot be looked into."""
    folder = folder.resolve()
    try:
        list(folder.iterdir())
        files = source_files(folder)
        requirements = _read_requirements(folder / REQUIREMENTS_FILE)
    except OSError as problem:
        raise CheckFailed(
            f"cannot read {str(problem.filename or folder)!r}: {(problem.strerror or str(problem)).lower()}",
            hint="give a folder that exists and that you may read",
        ) from problem
    root = folder / "src" if (folder / "src").is_dir() else folder
    beside = sorted({path for file in files for path in file.parent.glob("_*.py")})
    spec, refusal = _read_spec(folder / CONFIG_FILE)
    return Subject(
        folder=folder,
        root=root,
        spec=spec,
        refusal=refusal,
        sources=tuple(_parse(file, folder) for file in files),
        private=tuple(_parse(file, folder) for file in beside),
        requirements=requirements,
    )


def _read_spec(file: Path) -> tuple[EnvSpec | None, ConfigError | OSError | None]:
    try:
        return EnvSpec.parse(file.read_bytes()), None
    except (ConfigError, OSError) as problem:
        return None, problem


def _read_requirements(file: Path) -> str | None:
    return file.read_text("utf-8", errors="replace") if file.is_file() else None


def _parse(file: Path, folder: Path) -> Source:
    shown = str(file.relative_to(folder))
    empty = ast.Module([], [])
    try:
        with tokenize.open(file) as stream:
            text = stream.read()
        with warnings.catch_warnings():
            # An odd escape in an author's text is a warning that would name our own line.
            warnings.simplefilter("ignore")
            return Source(shown, ast.parse(text, shown))
    except SyntaxError as problem:
        return Source(shown, empty, problem.msg, problem.lineno)
    except OSError as problem:
        return Source(shown, empty, f"it cannot be read: {(problem.strerror or str(problem)).lower()}")
    except (ValueError, RecursionError, MemoryError) as problem:
        # NUL characters, and nesting that Python's own parser does not stand.
        return Source(shown, empty, str(problem) or type(problem).__name__)
