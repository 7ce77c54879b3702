"""One folder per running supervisor, held by a lock: what a dead one left behind is found by that, and taken away."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from aenv._util.ids import new_id
from aenv.engines.local import processes
from aenv.engines.local.limits import Cgroups
from aenv.errors import EngineUnavailable

_LOCK = "lock"
_PREFIX = "eng"
LONGEST = 68
"""A unix socket's path has 107 bytes; the rest is for its name."""


class Lease:
    """The folder of one supervisor; whoever finds it unlocked may take everything in it away."""

    def __init__(self, folder: Path, lock: int) -> None:
        self.name = folder.name
        self._folder = folder
        self._lock = lock

    @classmethod
    def take(cls, run: str) -> Lease:
        """Make one, after what dead supervisors left here was taken away."""
        parent = _private(Path(run))
        with _alone(parent):
            _sweep(parent)
            # This says whose groups these are, should the folder be gone before they are.
            folder = parent / f"{new_id(_PREFIX)[:8]}_{_pids()}_{os.getpid()}"
            folder.mkdir(mode=0o700)
            lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / "root").mkdir(mode=0o755)
        # A namespace's root may be composed only where its user can go.
        folder.chmod(0o711)
        return cls(folder, lock)

    def path(self, name: str) -> str:
        """Where something of this name goes."""
        return f"{self._folder}/{name}"

    def end(self) -> None:
        """Nothing is left of it."""
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def sweep(parent: Path) -> list[str]:
    """Take away what supervisors that are gone left in this folder and in the control groups; their names."""
    with _alone(parent):
        return _sweep(parent)


@contextlib.contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """One at a time makes a folder here or sweeps, so that no sweep finds one that is half made and will be whole."""
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(parent: Path) -> list[str]:
    dead = []
    for folder in parent.glob(f"{_PREFIX}_*"):
        lock = _abandoned(folder)
        if lock is None:
            continue
        dead.append(folder.name)
        Cgroups.sweep(folder.name)
        processes.end_all(str(folder))
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    for lease in Cgroups.leases():
        if not _is_supervised(lease):
            Cgroups.sweep(lease)
    return dead


def _pids() -> str:
    """Which pid namespace this is: a number means nothing in another."""
    return f"{os.stat('/proc/self/ns/pid').st_ino:x}"  # noqa: PTH116 - a kernel file


def _is_supervised(lease: str) -> bool:
    rest, _, pid = lease.rpartition("_")
    if rest.rpartition("_")[2] != _pids():
        # Somebody else's, who looks after it.
        return True
    try:
        return b"aenv.engines.local" in Path(f"/proc/{int(pid)}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


def _abandoned(folder: Path) -> int | None:
    try:
        # One without a lock was left half made, or half removed.
        lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _private(run: Path) -> Path:
    if len(str(run)) > LONGEST:
        raise EngineUnavailable(
            f"the path {str(run)!r} is too long for sockets in it", hint="set AENV_RUN to a short one"
        )
    return private_folder(run, "AENV_RUN")


def private_folder(run: Path, variable: str) -> Path:
    """The folder, made if need be; EngineUnavailable if somebody else could put something into it."""
    with contextlib.suppress(FileExistsError):
        run.mkdir(mode=0o711, parents=True)
    found = run.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise EngineUnavailable(
            f"the folder {str(run)!r} belongs to somebody else, or others may write to it",
            hint=f"set {variable} to a folder of your own",
        )
    return run
