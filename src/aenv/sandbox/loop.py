"""The server's own event loop: sockets, timers, coroutines, and author code that may take the loop's thread away.

asyncio would do all but one thing. A quick sync tool is best run right here: a hop to a worker thread and back costs
more than the whole rest of a call. But a tool that was quick a hundred times may sleep the next time, and then the
loop must go on without the thread it was running in. That is what this loop can do: exactly one thread *leads* at a
time; when a piece of author code keeps it for longer than `PATIENCE`, a watching thread takes the lead over, with every
connection, and the old leader, once it comes back, hands its result over like any worker.

Nothing but the leader touches connections, futures or timers; other threads `post`.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import itertools
import logging
import os
import selectors
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import monotonic, sleep
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")
Callback = Callable[[], object]

PATIENCE = 0.005
"""Seconds for which author code may keep the loop's thread before another takes over."""


class Future(Generic[T]):
    """A value to come, awaited by one or several coroutines of the loop."""

    __slots__ = ("_callbacks", "_value", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._value: T | None = None
        self._callbacks: list[Callback] = []

    def set(self, value: T) -> None:
        """Give the value, once; whoever waits goes on at once. Later values are dropped."""
        if self.is_done:
            return
        self.is_done = True
        self._value = value
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def then(self, callback: Callback) -> None:
        """Call when there is a value."""
        if self.is_done:
            callback()
        else:
            self._callbacks.append(callback)

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self.is_done:
            yield self
        return self._value  # type: ignore[return-value] # done, so it is a T


def start(awaitable: Awaitable[T], done: Callable[[T | None, BaseException | None], None]) -> None:
    """Run a coroutine that awaits nothing but Futures, and tell how it ended."""
    assert isinstance(awaitable, Coroutine)

    def step() -> None:
        try:
            waited = awaitable.send(None)
        except StopIteration as end:
            done(end.value, None)
        except BaseException as problem:  # noqa: BLE001 - told, not raised: the loop belongs to all
            done(None, problem)
        else:
            waited.then(step)

    step()


class Timer:
    """A callback that is due some time."""

    __slots__ = ("_loop", "callback")

    def __init__(self, loop: Loop, callback: Callback) -> None:
        self._loop = loop
        self.callback: Callback | None = callback

    def cancel(self) -> None:
        """Never call it."""
        if self.callback is not None:
            self.callback = None
            self._loop.timer_cancelled()


class Job(Protocol):
    """Author code for the loop's own thread.

    `run` computes and touches nothing of the loop; `settle` hands its outcome over; `outlasted` is called when the loop
    has left the thread to it.
    """

    def run(self) -> None: ...

    def settle(self) -> None: ...

    def outlasted(self) -> None: ...


class Loop:
    """See the module's first lines."""

    def __init__(self) -> None:
        self._clear()
        self.open()

    def _clear(self) -> None:
        self._posted: deque[Callback] = deque()
        self._jobs: deque[Job] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        self._is_asleep = False
        self._is_stopped = False
        # A bare lock, held until the end: an event would be made of Python code that every sandbox pays for.
        self._running = threading.Lock()
        self._lead = threading.Lock()
        self._term = 0
        self._busy_since: float | None = None
        self._job: Job | None = None
        self._watcher = threading.Semaphore(0)
        self._is_watched = self._has_watcher = False
        self.watcher: int | None = None
        """Native id of the watching thread."""

    def open(self) -> None:
        """Have descriptors of its own."""
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = os.pipe()
        os.set_blocking(self._wake_in, False)
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, self._drain)

    def forget(self) -> None:
        """In a forked child: let go of what wakes the parent's loop."""
        for descriptor in (self._wake_in, self._wake_out):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def renew(self) -> None:
        """In a copy of the process: forget everything that was watched, posted or due, and be as new."""
        self.release()
        self._clear()
        self.open()

    def release(self) -> None:
        """Close its descriptors; it is of no use until it has others."""
        # With nothing taken out: in a copy of the process, the source's loop waits on the same kernel object.
        self._selector.close()
        self.forget()

    def descriptors(self) -> set[int]:
        """The loop's own, and those that it watches."""
        watched = [key.fd for key in self._selector.get_map().values()]
        return {self._selector.fileno(), self._wake_in, self._wake_out, *watched}

    # from any thread

    def post(self, callback: Callback) -> None:
        """Have the leader call it soon."""
        self._posted.append(callback)
        if self._is_asleep:
            with contextlib.suppress(BlockingIOError, OSError):
                os.write(self._wake_out, b".")

    def stop(self) -> None:
        """Have `run` return."""
        self._is_stopped = True
        self.post(lambda: None)

    def launch(self) -> None:
        """Serve, in a thread of its own."""
        self._running.acquire()
        # Without a Thread object, whose Python code every sandbox would pay for; nobody joins it.
        _thread.start_new_thread(self._serve, ())

    def wait(self) -> None:
        """Until `stop`; author code never runs in the calling thread."""
        # In slices, because a signal that arrives in another thread only marks its Python handler as due here.
        while not self._running.acquire(timeout=3600.0):
            continue

    # from the leader only

    def watch(
        self, descriptor: int, callback: Callable[[int], None], *, reads: bool = True, writes: bool = False
    ) -> None:
        """Call with what is possible whenever the descriptor can be read, or written; neither forgets it."""
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events, callback)
        else:
            self._selector.register(descriptor, events, callback)

    def unwatch(self, descriptor: int) -> None:
        """Forget the descriptor."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(descriptor)

    def later(self, seconds: float, callback: Callback) -> Timer:
        """Call in so many seconds."""
        timer = Timer(self, callback)
        heapq.heappush(self._timers, (monotonic() + seconds, next(self._numbers), timer))
        return timer

    def timer_cancelled(self) -> None:
        """Cancelled timers stay in the heap until they are most of it."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].callback is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def run_here(self, job: Job) -> None:
        """Run author code in this very thread, when the stack is clear of everything else."""
        self._jobs.append(job)

    # leading

    def _serve(self) -> None:
        """Lead until stopped or deposed."""
        term = self._term
        while not self._is_stopped:
            self.turn()
            while self._jobs:
                if not self._run_job(self._jobs.popleft(), term):
                    return
                self._run_posted()
        self._selector.close()
        os.close(self._wake_in)
        self._running.release()

    def turn(self) -> None:
        """Wait for what comes next, and do it."""
        self._is_asleep = True
        events = self._selector.select(self._rest())
        self._is_asleep = False
        for key, mask in events:
            try:
                key.data(mask)
            except BaseException:
                # One connection's trouble must not end the loop that serves the others.
                logger.exception("a callback of the server's loop failed")
        self._run_posted()
        self._run_timers()

    def _rest(self) -> float | None:
        if self._posted or self._jobs:
            return 0.0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - monotonic())

    def _run_posted(self) -> None:
        # Those that are there now: a thread that keeps posting must not keep sockets and timers waiting.
        for _ in range(len(self._posted)):
            self._guarded(self._posted.popleft())

    def _run_timers(self) -> None:
        while self._timers and (self._timers[0][2].callback is None or self._timers[0][0] <= monotonic()):
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is None:
                self._cancelled -= 1
            else:
                callback, timer.callback = timer.callback, None
                self._guarded(callback)

    def _guarded(self, callback: Callback) -> None:
        try:
            callback()
        except BaseException:
            # As above.
            logger.exception("a callback of the server's loop failed")

    def _drain(self, mask: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_in, 4096)

    # author code on the loop's thread

    def _run_job(self, job: Job, term: int) -> bool:
        """Run it; whether this thread still leads afterwards."""
        with self._lead:
            self._job = job
            self._busy_since = monotonic()
            wakes = not self._is_watched
            starts = wakes and not self._has_watcher
            self._is_watched = self._has_watcher = True
        if starts:
            threading.Thread(target=self._keep_watch, name="aenv-watch", daemon=True).start()
        if wakes:
            self._watcher.release()
        job.run()
        with self._lead:
            still_leads = self._term == term
            if still_leads:
                self._busy_since = None
        # Posted, not called: what the job itself posted, its progress, comes first.
        self.post(job.settle)
        return still_leads

    def _keep_watch(self) -> None:
        """Sleep while nothing runs; look every few milliseconds while something does; lead when it takes too long."""
        self.watcher = threading.get_native_id()
        while True:
            self._watcher.acquire()
            while self._is_watched:
                seen = self._busy_since
                # The kernel tells nobody that another thread is still busy: looking is the only way to know.
                sleep(PATIENCE)
                if self._takes_over(seen):
                    assert self._job is not None
                    self.post(self._job.outlasted)
                    self._serve()
                    return

    def _takes_over(self, seen: float | None) -> bool:
        with self._lead:
            if self._busy_since is None:
                # Nothing ran at this look: the next job wakes the watcher again.
                self._is_watched = False
                return False
            if self._busy_since != seen:
                return False
            self._busy_since = None
            self._is_watched = self._has_watcher = False
            self.watcher = None
            self._term += 1
            return True
