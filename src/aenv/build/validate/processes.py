"""Processes as Linux's /proc shows them: who descends from whom, who carries our mark, who is still there."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
MARK = "AENV_VALIDATE_RUN"

_LINGER_SECONDS = 1.0
# The kernel tells nobody but the parent that a process has ended.
_LOOK_SECONDS = 0.02


class Process(NamedTuple):
    """A process; a pid can be used again, a pid and its time of birth cannot."""

    pid: int
    born: int


class Leftover(NamedTuple):
    """A process that outlived its server."""

    pid: int
    command: str


def can_see() -> bool:
    """Whether this system has a /proc to look into."""
    return (PROC / "self" / "environ").exists()


def descendants(pid: int) -> frozenset[Process]:
    """Children of the process, and theirs."""
    children: dict[int, list[Process]] = {}
    for process, parent in _everyone():
        children.setdefault(parent, []).append(process)
    found: set[Process] = set()
    ahead = [pid]
    while ahead:
        young = children.get(ahead.pop(), [])
        found.update(young)
        ahead += [process.pid for process in young]
    return frozenset(found)


def peak_bytes(pid: int) -> int | None:
    """The most memory the process ever had resident."""
    try:
        match = re.search(r"^VmHWM:\s+(\d+) kB$", (PROC / str(pid) / "status").read_text("ascii", "replace"), re.M)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def end_leftovers(mark: str, seen: frozenset[Process]) -> tuple[Leftover, ...]:
    """What still runs a second later of those that carry the mark or were seen below the server; then it is killed.

    The mark, a variable in the environment, finds those who left the session and the tree; having been seen finds those
    who were given another environment.
    """
    deadline = time.monotonic() + _LINGER_SECONDS
    while (left := _remaining(mark, seen)) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    told = tuple(Leftover(process.pid, _command(process.pid)) for process in sorted(left))
    deadline = time.monotonic() + _LINGER_SECONDS
    # Again and again, because one may have started another meanwhile.
    while left and time.monotonic() < deadline:
        for process in left:
            _kill(process)
        time.sleep(_LOOK_SECONDS)
        left = _remaining(mark, seen)
    return told


def _remaining(mark: str, seen: frozenset[Process]) -> set[Process]:
    sign = f"{MARK}={mark}".encode()
    return {process for process, _ in _everyone() if process in seen or sign in _environ(process.pid)}


def _everyone() -> Iterator[tuple[Process, int]]:
    """Every process that is no zombie, with its parent."""
    with suppress(OSError):
        for entry in os.scandir(PROC):
            if entry.name.isdigit() and (line := _stat(int(entry.name))) is not None:
                yield line


def _stat(pid: int) -> tuple[Process, int] | None:
    try:
        line = (PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # A command's name may hold anything, brackets included: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    state, parent, *rest = line.rpartition(")")[2].split()
    return None if state in "ZX" else (Process(pid, int(rest[17])), int(parent))


def _environ(pid: int) -> list[bytes]:
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        # Another user's, or gone.
        return []


def _command(pid: int) -> str:
    with suppress(OSError):
        words = (PROC / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        return " ".join(words).strip()
    return ""


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        # A handle first, then a look at whose it is: so the signal cannot reach a stranger with the same pid.
        handle = os.pidfd_open(process.pid)
        try:
            if (found := _stat(process.pid)) is not None and found[0] == process:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
