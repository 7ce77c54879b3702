"""An asyncio loop in a thread of its own, for author code that is `async def`."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from aenv.sandbox import rewiring
from aenv.sandbox.threads import Deliver

logger = logging.getLogger(__name__)


class _Parking(NamedTuple):
    parked: Callable[[list[str]], None]
    goes_on: threading.Event


class AuthorLoop:
    """Runs every async call of one server; whatever blocks it blocks other async calls, and nothing else."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._is_closing = False
        self._parking: _Parking | None = None
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="aenv-async", daemon=True)
        self._thread.start()

    def submit(
        self, work: Callable[[], Awaitable[Any]], finish: Callable[[Any], object], deliver: Deliver, pid: int
    ) -> Callable[[], None]:
        """Await what `work` returns there, `finish` it, deliver the outcome; returns the function that cancels it."""
        context = contextvars.copy_context()
        tasks: list[asyncio.Task[None]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(_awaited(work, finish, deliver, pid), context=context))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        if not self._ask(start):
            deliver(None, RuntimeError("the event loop of async tools was closed by the environment's own code"))

        def give_up() -> None:
            self._ask(cancel)

        return give_up

    def ping(self, pong: Callable[[], None]) -> None:
        """Have `pong` called from the loop's thread, if that still answers."""
        self._ask(pong)

    def close(self) -> None:
        """Ask the thread to end; one that author code blocks is left to end with the process."""
        self._is_closing = True
        self._ask(self._loop.stop)

    # while the process is copied

    @property
    def thread(self) -> int | None:
        """Native id of the thread."""
        return self._thread.native_id

    def park(self, parked: Callable[[list[str]], None]) -> None:
        """Have the thread leave the loop until `go_on`; `parked` is told there what the loop still has to do."""
        self._parking = _Parking(parked, threading.Event())
        if not self._ask(self._loop.stop):
            parked([])

    def go_on(self) -> None:
        """Run the loop again."""
        parking, self._parking = self._parking, None
        if parking is not None:
            parking.goes_on.set()

    def descriptors(self) -> set[int]:
        """Those that the loop has for itself."""
        return rewiring.descriptors(self._loop)

    def renew(self) -> None:
        """In a copy of the process: the same loop, so that what is bound to it still is, in a thread of its own."""
        rewiring.rewire(self._loop)
        self._parking = None
        self._begin()

    def _ask(self, callback: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return False
        return True

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._is_closing and not self._loop.is_closed():
            try:
                self._loop.run_forever()
            except BaseException:  # sys.exit in a background task ends that task, not every async tool
                logger.exception("async code of the environment tried to end its event loop")
            if (parking := self._parking) is not None:
                rewiring.release_idle_threads(self._loop)
                parking.parked(rewiring.pending(self._loop))
                parking.goes_on.wait()
        self._loop.close()


async def _awaited(
    work: Callable[[], Awaitable[Any]], finish: Callable[[Any], object], deliver: Deliver, pid: int
) -> None:
    try:
        value = finish(await _InOneProcess(work(), pid))
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
