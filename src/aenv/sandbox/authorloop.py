"""An asyncio loop in a thread of its own, for author code that is `async def`."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any

from aenv.sandbox.encode import to_result

Deliver = Callable[[object, BaseException | None], None]


class AuthorLoop:
    """Runs every async call of one server; whatever blocks it blocks other async calls, and nothing else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, name="aenv-async", daemon=True).start()

    def submit(self, work: Callable[[], Awaitable[Any]], deliver: Deliver, pid: int) -> Callable[[], None]:
        """Await what `work` returns there and deliver its outcome; returns the function that cancels it."""
        context = contextvars.copy_context()
        tasks: list[asyncio.Task[None]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(_awaited(work, deliver, pid), context=context))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        self._loop.call_soon_threadsafe(start)
        return lambda: self._ask(cancel)

    def close(self) -> None:
        """Ask the thread to end; one that author code blocks is left to end with the process."""
        self._ask(self._loop.stop)

    def _ask(self, callback: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            # Closed already: there is nothing left to ask.
            return

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()


async def _awaited(work: Callable[[], Awaitable[Any]], deliver: Deliver, pid: int) -> None:
    try:
        value = to_result(await _InOneProcess(work(), pid))
    except BaseException as problem:  # noqa: BLE001 - delivered: the loop belongs to every other call as well
        deliver(None, problem)
    else:
        deliver(value, None)


class _InOneProcess:
    """Awaits author code and ends the process right after any step in which that code forked itself into a child."""

    def __init__(self, awaitable: Awaitable[Any], pid: int) -> None:
        self._awaitable = awaitable
        self._pid = pid

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaitable.__await__()
        resume: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                waited = resume()
            except StopIteration as end:
                self._check()
                return end.value
            except BaseException:
                self._check()
                raise
            self._check()
            try:
                resume = partial(steps.send, (yield waited))
            except BaseException as thrown:  # noqa: BLE001 - cancellation, handed on to the author's code
                resume = partial(steps.throw, thrown)

    def _check(self) -> None:
        if os.getpid() != self._pid:
            os._exit(0)
