"""What a copy of the process must know of asyncio's event loop: what it has yet to do, and what it is woken by.

asyncio has no public words for this; the attributes are those of Python 3.11 to 3.14. The loop does not run meanwhile.
"""
# ruff: noqa: SLF001 - see above

from __future__ import annotations

import asyncio
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any


def descriptors(loop: asyncio.AbstractEventLoop) -> set[int]:
    """Those that the loop has for itself."""
    if not _is_open(loop):
        return set()
    inner: Any = loop
    return {inner._selector.fileno(), inner._ssock.fileno(), inner._csock.fileno()}


def pending(loop: asyncio.AbstractEventLoop) -> list[str]:
    """What a copy of the loop would do a second time, each in a sentence."""
    if not isinstance(loop, BaseSelectorEventLoop):
        return [f"async code runs on a loop of {type(loop).__module__}, which cannot be copied"]
    inner: Any = loop
    tasks = [f"async task {task.get_name()!r} ({_name(task)}) is not done" for task in asyncio.all_tasks(loop)]
    timers = [f"async code has set a timer: {timer!r}" for timer in inner._scheduled if not timer.cancelled()]
    others = [f"async code has more to do: {callback!r}" for callback in inner._ready if not callback.cancelled()]
    return [*tasks, *timers] or others


def release_idle_threads(loop: asyncio.AbstractEventLoop) -> None:
    """End the threads that asyncio itself made for `to_thread`; it makes others when they are needed."""
    pool: Any = getattr(loop, "_default_executor", None)
    if pool is not None and getattr(pool, "_thread_name_prefix", None) == "asyncio":
        inner: Any = loop
        inner._default_executor = None
        pool.shutdown(wait=False)


def rewire(loop: asyncio.AbstractEventLoop) -> None:
    """Give the loop descriptors of its own, so that the source's loop, which has the same ones, is not disturbed."""
    if not _is_open(loop):
        return
    inner: Any = loop
    old = inner._selector
    inner._selector = type(old)()
    for key in old.get_map().values():
        if key.fd != inner._ssock.fileno():
            inner._selector.register(key.fileobj, key.events, key.data)
    # Closed, with nothing taken out of it: the source's loop waits on the same kernel object.
    old.close()
    inner._ssock.close()
    inner._csock.close()
    inner._internal_fds -= 1
    inner._make_self_pipe()


def _is_open(loop: asyncio.AbstractEventLoop) -> bool:
    return isinstance(loop, BaseSelectorEventLoop) and not loop.is_closed()


def _name(task: asyncio.Task[Any]) -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", None) or repr(coroutine)
