"""Processes that plain mode started, found by the folder that their environment names, however far they ran away."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

VARIABLE = "AENV_SANDBOX_FOLDER"
"""Set for every process of a plain sandbox; children inherit it."""
_PATIENCE = 5.0


def end_all(folder: str, session: int | None = None) -> None:
    """Kill every process whose variable names this folder or one in it, and all of this session, until none is left."""
    deadline = time.monotonic() + _PATIENCE
    while (found := list(_find(folder, session))) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # One that is about to fork when it is killed leaves another; the kernel tells nobody of either.
        time.sleep(0.002)


def end_beside(pidfd: int) -> None:
    """Kill all processes of the pid namespace that this process, or its only child, is the first of; not that one."""
    deadline = time.monotonic() + _PATIENCE
    first = _first_of(pid_of(pidfd))
    if first is None:
        return
    space = _space(first)
    while (found := [pid for pid in _all() if pid != first and _space(pid) == space]) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        # As above.
        time.sleep(0.002)


def pid_of(pidfd: int) -> int:
    """The process's number, as this pid namespace counts; -1 when it is gone, 0 when this never was one."""
    with open(f"/proc/self/fdinfo/{pidfd}", encoding="utf-8") as file:  # noqa: PTH123 - a kernel file
        return next((int(line.split()[1]) for line in file if line.startswith("Pid:")), 0)


def _first_of(pid: int) -> int | None:
    """The process itself if it is the first of its pid namespace, else its child that is."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:  # noqa: PTH123 - as above
            numbers = next(line.split()[1:] for line in file if line.startswith("NSpid:"))
        if numbers[-1] == "1":
            return pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:  # noqa: PTH123 - as above
            return next((int(child) for child in file.read().split()), None)
    except OSError:
        return None


def _space(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") if _is_alive(pid) else None  # noqa: PTH115 - as above
    except OSError:
        return None


def _all() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - as above


def children() -> set[int]:
    """Every child of this process, which has one thread; none where the kernel does not tell."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:  # noqa: PTH123 - a kernel file
            return {int(pid) for pid in file.read().split()}
    except OSError:
        return set()


def reap_all() -> None:
    """Wait for every child there is; they were killed, so it takes a moment at most."""
    deadline = time.monotonic() + _PATIENCE
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            pid, _status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                time.sleep(0.001)


def _find(folder: str, session: int | None) -> Iterator[int]:
    wanted = f"{VARIABLE}={folder}".encode()
    for name in os.listdir("/proc"):  # noqa: PTH208 - thousands of names, no objects
        if name.isdigit() and int(name) != os.getpid() and (_is_of(int(name), session) or _names(name, wanted)):
            yield int(name)


def _is_of(pid: int, session: int | None) -> bool:
    if session is None:
        return False
    try:
        return os.getsid(pid) == session and _is_alive(pid)
    except ProcessLookupError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _names(pid: str, wanted: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - as above
            return any(one == wanted or one.startswith(wanted + b"/") for one in file.read().split(b"\0"))
    except OSError:
        return False
