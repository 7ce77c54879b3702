"""What of a process a fork would not copy, or would leave shared between the source and its copy."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from aenv.errors import ForkRefused
from aenv.sandbox.orphans import children, has_ended, sees_itself

Kind = Literal["call", "async", "thread", "native", "process", "descriptor", "device", "runtime", "hook", "proc", "end"]

_IN_A_HOOK = "end it before the copy and begin it anew after it, in a function with @register_fork"
_HINTS: dict[Kind, str] = {
    "call": "copy it between calls, or allow more time",
    "async": _IN_A_HOOK,
    "thread": _IN_A_HOOK,
    "native": "a library started it: set OMP_NUM_THREADS=1 and OPENBLAS_NUM_THREADS=1 in environmentVariables",
    "process": _IN_A_HOOK,
    "descriptor": _IN_A_HOOK,
    "device": "copy it before the device is used, or use the device in another process",
    "runtime": 'use "mcpRuntime": "core", or start another instance',
    "hook": "correct the function, or start another instance",
    "proc": "mount /proc in the sandbox",
    "end": "start another instance",
}


class Obstacle(NamedTuple):
    """One reason why a process cannot be copied now."""

    kind: Kind
    text: str


class OpenFile(NamedTuple):
    """A file that author code holds open, and how a copy opens it for itself."""

    descriptor: int
    path: str
    flags: int
    offset: int | None


def refusal(obstacles: list[Obstacle]) -> ForkRefused:
    """The error that names them all."""
    first, others = obstacles[0], len(obstacles) - 1
    more = f" (and {others} more)" if others else ""
    texts = [obstacle.text for obstacle in obstacles]
    return ForkRefused(f"{first.text}, so it cannot be copied{more}", hint=_HINTS[first.kind], obstacles=texts)


def unseen() -> list[Obstacle]:
    """Whether this process can see itself at all."""
    return [] if sees_itself() else [Obstacle("proc", "/proc does not tell of this process")]


def devices() -> list[Obstacle]:
    """CUDA, whose context no child of the process can use."""
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        return [Obstacle("device", "torch has initialised CUDA")]
    return []


def threads(own: Collection[int]) -> list[Obstacle]:
    """Threads that are none of these: a copy would have only the memory that they were in the midst of changing."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = sorted({int(task.name) for task in Path("/proc/self/task").iterdir()}.difference(own))
    return [_thread(names[task]) if task in names else _native(task) for task in found]


def _thread(name: str) -> Obstacle:
    if name.startswith("aenv-"):
        return Obstacle("thread", f"a thread ({name}) still runs author code of a call that was given up")
    return Obstacle("thread", f"thread {name!r} runs")


def _native(task: int) -> Obstacle:
    with contextlib.suppress(OSError):
        return Obstacle("native", f"native thread {Path(f'/proc/self/task/{task}/comm').read_text().strip()!r} runs")
    return Obstacle("native", "a native thread runs")


def processes(copies: Collection[int]) -> list[Obstacle]:
    """Living children beside the copies: they are the source's, and the copy could not wait for them."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    living = [pid for pid in children() if pid not in copies and not has_ended(pid)]
    return [Obstacle("process", f"process {pid}{_command(pid)}, a child, is alive") for pid in living]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    return ""


def descriptors(own: Collection[int]) -> tuple[list[Obstacle], list[OpenFile]]:
    """What author code holds open: what the source and a copy would both read from, and files for it to open anew."""
    obstacles: list[Obstacle] = []
    files: list[OpenFile] = []
    for descriptor, status, path in _others(own):
        if kind := _shared_kind(status.st_mode, path):
            obstacles.append(Obstacle("descriptor", f"descriptor {descriptor} is {kind} ({path})"))
        elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if _is_named(path, status):
                files.append(OpenFile(descriptor, path, flags, _offset(descriptor)))
            elif flags & os.O_ACCMODE == os.O_RDONLY:
                files.append(OpenFile(descriptor, f"/proc/self/fd/{descriptor}", flags, _offset(descriptor)))
            else:
                text = f"descriptor {descriptor} is a file without a name ({path}), open for writing"
                obstacles.append(Obstacle("descriptor", text))
    return obstacles, files


def _others(own: Collection[int]) -> Iterator[tuple[int, os.stat_result, str]]:
    """Descriptors that are none of these, none of the standard three, nor lead where those do, as the log's does."""
    standard = [_identity(os.fstat(descriptor)) for descriptor in range(3) if _is_open(descriptor)]
    for name in sorted(os.listdir("/proc/self/fd"), key=int):  # noqa: PTH208 - numbers, not paths
        descriptor = int(name)
        if descriptor < 3 or descriptor in own:
            continue
        # The one by which we look is gone by now.
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if _identity(status) not in standard:
                yield descriptor, status, str(Path(f"/proc/self/fd/{descriptor}").readlink())


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _shared_kind(mode: int, path: str) -> str | None:
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a kernel object" if path.startswith("anon_inode:") else None


def _offset(descriptor: int) -> int | None:
    try:
        return os.lseek(descriptor, 0, os.SEEK_CUR)
    except OSError:
        return None


def _is_named(path: str, status: os.stat_result) -> bool:
    try:
        return _identity(Path(path).stat()) == _identity(status)
    except OSError:
        return False


def reopen(files: list[OpenFile]) -> None:
    """In a copy: open each file for itself, where it is now, at the place in it that the source had reached."""
    for file in files:
        is_inheritable = os.get_inheritable(file.descriptor)
        fresh = os.open(file.path, file.flags)
        if file.offset is not None:
            os.lseek(fresh, file.offset, os.SEEK_SET)
        os.dup2(fresh, file.descriptor, inheritable=is_inheritable)
        os.close(fresh)
