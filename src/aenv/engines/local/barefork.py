"""fork(2) alone: what the interpreter does around it is for processes with threads, and a zygote has none.

`os.fork` has every child re-create locks that nobody can hold and forget threads that never were, and the child pays
for each page of memory which that touches: about 200 pages, half of what a fork costs (see ADR 10). Functions that
other modules asked to have called around a fork are called; those of the standard library's own threads are not.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import NamedTuple

_ABOUT_THREADS = ("threading", "logging", "concurrent.futures.thread")
_libc = ctypes.PyDLL(None, use_errno=True)
Hook = Callable[[], object]


class _Hooks(NamedTuple):
    before: Hook | None
    in_child: Hook | None
    in_parent: Hook | None


class BareFork:
    """Forks this process, which has one thread; to be made before the modules are imported whose hooks matter."""

    def __init__(self) -> None:
        self._hooks: list[_Hooks] = []
        self._register = os.register_at_fork
        os.register_at_fork = self._note

    def _note(
        self, *, before: Hook | None = None, after_in_child: Hook | None = None, after_in_parent: Hook | None = None
    ) -> None:
        given = {"before": before, "after_in_child": after_in_child, "after_in_parent": after_in_parent}
        # Author code forks in the ordinary way later on.
        self._register(**{name: hook for name, hook in given.items() if hook is not None})
        if not any(getattr(hook, "__module__", None) in _ABOUT_THREADS for hook in given.values() if hook is not None):
            self._hooks.append(_Hooks(before, after_in_child, after_in_parent))

    def __call__(self) -> int:
        """As os.fork."""
        for hooks in reversed(self._hooks):
            if hooks.before is not None:
                hooks.before()
        pid: int = _libc.fork()
        if pid < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if pid == 0:
            os.register_at_fork = self._register
        for hooks in self._hooks:
            hook = hooks.in_parent if pid else hooks.in_child
            if hook is not None:
                hook()
        return pid
