"""Worker threads for sync author code: started when needed, given up when they hang, never waited for at exit."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Literal

from aenv.errors import ToolError

Deliver = Callable[[object, BaseException | None], None]

_IDLE_SECONDS = 30.0
_HUNG = 4
"""Threads that were given up and still run may be this many times the limit; then no further call is taken."""


class TooManyHung(ToolError):
    """So many calls hang that no more are taken."""

    code, status, retryable = "tool.too_many_hung", 503, True

    def __init__(self, count: int) -> None:
        super().__init__(
            f"{count} calls that were given up still run, so no further one is taken",
            hint="end what they wait for, or start the environment anew",
        )


class _Job:
    __slots__ = ("context", "deliver", "state", "work")

    def __init__(self, work: Callable[[], object], deliver: Deliver) -> None:
        self.work = work
        self.deliver = deliver
        self.context = contextvars.copy_context()
        self.state: Literal["queued", "running", "done", "given up"] = "queued"


class Threads:
    """At most `limit` threads at work; a further call waits for one to be free.

    The standard pool would do, but it joins its threads at exit and counts one that hangs for ever: after `limit` hung
    tools nothing would run again. Here the caller gives a hung thread up, and another may take its place.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lost = 0
        self._lock = threading.Lock()
        self._waiting: SimpleQueue[_Job] = SimpleQueue()
        self.resting: set[int] = set()
        """Native ids of the threads that wait for work."""
        self._alive = 0
        self._idle = 0
        """Threads that wait for work; below zero, as many calls wait for a thread."""

    def submit(self, work: Callable[[], object], deliver: Deliver) -> Callable[[], None]:
        """Run `work` in a thread and `deliver` its outcome from there; returns the function that gives it up."""
        job = _Job(work, deliver)
        with self._lock:
            if self._lost >= _HUNG * self._limit:
                raise TooManyHung(self._lost)
            starts = self._idle <= 0 and self._alive < self._limit
            if starts:
                self._alive += 1
            else:
                self._idle -= 1
        self._waiting.put(job)
        if starts:
            self._start()
        return lambda: self._give_up(job)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._serve, name="aenv-call", daemon=True).start()
        except RuntimeError:
            # No thread is to be had; the call waits for one that ends.
            with self._lock:
                self._alive -= 1
                self._idle -= 1

    def _give_up(self, job: _Job) -> None:
        with self._lock:
            was_running = job.state == "running"
            if job.state != "done":
                job.state = "given up"
            # Its thread no longer counts; a call that waits for one gets another in its place.
            self._lost += was_running
            replaces = was_running and self._idle < 0
            if was_running and not replaces:
                self._alive -= 1
            if replaces:
                self._idle += 1
        if replaces:
            self._start()

    def _serve(self) -> None:
        me = threading.get_native_id()
        while True:
            self.resting.add(me)
            try:
                job = self._waiting.get(timeout=_IDLE_SECONDS)
            except Empty:
                if self._retire():
                    return
                continue
            finally:
                self.resting.discard(me)
            if self._take(job):
                self._run(job)
            if not self._finish(job):
                return

    def _take(self, job: _Job) -> bool:
        with self._lock:
            if job.state == "queued":
                job.state = "running"
                return True
            job.state = "done"
            return False

    def _finish(self, job: _Job) -> bool:
        """Whether the thread that ran the job still belongs to the pool."""
        with self._lock:
            if job.state == "given up":
                self._lost -= 1
                return False
            job.state = "done"
            self._idle += 1
            return True

    def _retire(self) -> bool:
        """End an idle thread, unless a job was promised to it in this very moment."""
        with self._lock:
            if self._idle <= 0:
                return False
            self._idle -= 1
            self._alive -= 1
            return True

    @staticmethod
    def _run(job: _Job) -> None:
        try:
            value = job.context.run(job.work)
        except BaseException as problem:  # noqa: BLE001 - sys.exit in a tool ends the call, not the thread
            job.deliver(None, problem)
        else:
            job.deliver(value, None)
