"""Duties of process 1: ended processes that nobody else can wait for are reaped, those that author code started never.

In a pid namespace of its own the server is the parent of every process whose own parent died. Until it waits for them
they stay as zombies, and count against the sandbox's limit. But a zombie may as well be a child that author code is
about to wait for, and whose exit status must not be lost. So children are remembered at birth, and a zombie that was
not born here is taken for an orphan when it has been one for so long that no C library can still be about to wait.
"""

from __future__ import annotations

import _posixsubprocess
import contextlib
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from time import monotonic
from types import ModuleType

from aenv.sandbox.loop import Loop, Timer

ORPHAN_SECONDS = 5.0
"""How long a zombie of unknown birth is left to whoever may still want it."""
REST_SECONDS = 1.0
_FEW = 64
_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Orphans:
    """Children by birth, and zombies that are none. Used by the loop's leader; births are told from any thread."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        # Whatever was started before we looked may have somebody who waits for it.
        self._born = set(children())
        self._crowd = _FEW
        self._strangers: dict[int, float] = {}
        self._timer: Timer | None = None
        self._rests_until = 0.0
        self._attend_births()

    def look(self) -> None:
        """After a call: is there a zombie? One system call, unless there is."""
        if self._timer is not None or not _is_any_zombie():
            return
        rest = self._rests_until - monotonic()
        if rest > 0:
            self._timer = self._loop.later(rest, self._sweep)
        else:
            self._sweep()

    def disown(self, pid: int) -> None:
        """A child that nobody will wait for."""
        self._born.discard(pid)

    def forget(self) -> None:
        """In a copy of the process, which has no children."""
        self._born.clear()
        self._strangers.clear()
        self._timer = None

    def _sweep(self) -> None:
        self._timer = None
        now = monotonic()
        # A child that ended and that author code has not asked for would have us do this after every call.
        self._rests_until = now + REST_SECONDS
        zombies = [pid for pid in children() if has_ended(pid)]
        strangers = {pid: self._strangers.get(pid, now) for pid in zombies if pid not in self._born}
        for pid, since in list(strangers.items()):
            if now - since >= ORPHAN_SECONDS:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                del strangers[pid]
        self._strangers = strangers
        if strangers:
            due = min(strangers.values()) + ORPHAN_SECONDS
            self._timer = self._loop.later(max(0.0, due - now), self._sweep)

    # in whatever thread starts a process

    def _bear(self, pid: int) -> None:
        self._born.add(pid)
        if len(self._born) > self._crowd:
            # Those that were waited for are no longer ours; the others may be many.
            self._born.difference_update([known for known in list(self._born) if not _is_child(known)])
            self._crowd = max(_FEW, 2 * len(self._born))

    def _attend_births(self) -> None:
        """All that the standard library starts processes by: `multiprocessing` and `asyncio` use these."""
        for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
            self._attend(os, name)
        self._attend(_posixsubprocess, "fork_exec")
        if "subprocess" in sys.modules:
            # It has taken the function out of its module when it was imported.
            self._attend(sys.modules["subprocess"], "_fork_exec")

    def _attend(self, module: ModuleType, name: str) -> None:
        real: Callable[..., int | tuple[int, int]] = getattr(module, name)

        @wraps(real)
        def start(*args: object, **options: object) -> int | tuple[int, int]:
            result = real(*args, **options)
            pid = result[0] if isinstance(result, tuple) else result
            if pid > 0:
                self._bear(pid)
            return result

        setattr(module, name, start)


def sees_itself() -> bool:
    """Whether /proc is there and tells of this process's own pid namespace."""
    try:
        return str(Path("/proc/self").readlink()) == str(os.getpid())
    except OSError:
        return False


def children() -> list[int]:
    """Every child of this process, those included that ended and were not waited for; none if /proc does not tell."""
    found: list[int] = []
    if not sees_itself():
        return found
    for task in Path("/proc/self/task").iterdir():
        # A thread may end while we look; its children are then another's.
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def has_ended(pid: int) -> bool:
    """Whether the child is a zombie."""
    try:
        return os.waitid(os.P_PID, pid, _PEEK) is not None
    except ChildProcessError:
        return False


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, _PEEK)
    except ChildProcessError:
        return False
    return True


def _is_any_zombie() -> bool:
    try:
        return os.waitid(os.P_ALL, 0, _PEEK) is not None
    except ChildProcessError:
        return False
