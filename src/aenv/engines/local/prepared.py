"""Projects made ready for sandboxes: one copy per digest, compiled, the sandbox user's own, never changed again."""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import fcntl
import hashlib
import os
import py_compile
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aenv._util import jsontext
from aenv.errors import SandboxFailed

_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".git", ".venv", "*.pyc")
_MARK = "made"
# Nothing here changes any more, so nobody need look whether it did.
_UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A project folder that sandboxes may be shown."""

    folder: Path

    @property
    def project(self) -> Path:
        """The environment's files."""
        return self.folder / "project"

    def modules(self, python: str) -> list[str] | None:
        """What the environment imports on this Python, if that is known."""
        try:
            known = jsontext.loads((self.folder / f"modules-{python}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return [str(name) for name in known] if isinstance(known, list) else None

    def remember_modules(self, python: str, modules: list[str]) -> None:
        """For the zygotes to come."""
        file = self.folder / f"modules-{python}.json"
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(jsontext.dumps(modules))
        temporary.replace(file)


async def prepare(folder: Path, digest: str, project: Path, *, owner: int | None) -> Prepared:
    """The project of this digest, copied the first time; safe against others that do the same."""
    name = digest if _SAFE.fullmatch(digest) else hashlib.sha256(digest.encode()).hexdigest()
    prepared = Prepared(folder / name)
    if not (prepared.folder / _MARK).exists():
        await asyncio.to_thread(_make, prepared, project, owner)
    return prepared


def _make(prepared: Prepared, project: Path, owner: int | None) -> None:
    prepared.folder.mkdir(parents=True, exist_ok=True)
    with _locked(prepared.folder / "lock"):
        if (prepared.folder / _MARK).exists():
            return
        # A copy without its mark was cut short.
        shutil.rmtree(prepared.project, ignore_errors=True)
        try:
            shutil.copytree(project, prepared.project, symlinks=True, ignore=_LEFT_OUT)
        except OSError as problem:
            shutil.rmtree(prepared.project, ignore_errors=True)
            raise SandboxFailed(f"the project {str(project)!r} cannot be copied: {problem}") from problem
        # A link to a file of ours would have its constants compiled into the project.
        place = str(prepared.project)
        compileall.compile_dir(place, quiet=2, invalidation_mode=_UNCHECKED, limit_sl_dest=place)
        _open_up(prepared.project, owner)
        (prepared.folder / _MARK).touch()


def _open_up(project: Path, owner: int | None) -> None:
    """The sandbox's user may read all and write its own layer over all; nobody else sees the folder."""
    for path in [project, *project.rglob("*")]:
        if path.is_symlink():
            continue
        path.chmod(path.stat().st_mode & 0o777 | (0o755 if path.is_dir() else 0o644))
        if owner is not None:
            os.chown(path, owner, owner)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
