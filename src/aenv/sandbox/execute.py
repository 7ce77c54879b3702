"""One call of an author's function: within its time, whatever it does, and never in the way of others."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from aenv.define.context import Context, MissingCapability, Notify, current_context
from aenv.define.load import author_traceback
from aenv.define.registry import Entry, Registry, current_registry
from aenv.define.schema import Bound
from aenv.errors import AEnvError, ArgumentsInvalid, ToolCancelled, ToolError, ToolFailed, ToolTimedOut
from aenv.sandbox.encode import Result, to_result
from aenv.sandbox.gate import Gate, OnStart
from aenv.sandbox.journal import Journal, fingerprint
from aenv.sandbox.log import CapturedStream
from aenv.sandbox.loop import Future, Loop, Timer
from aenv.sandbox.threads import Threads

if TYPE_CHECKING:
    from aenv.sandbox.authorloop import AuthorLoop
    from aenv.sandbox.orphans import Orphans

logger = logging.getLogger(__name__)

QUICK = 0.001
"""A sync function that took less than this, three times in a row, is run on the loop's own thread from then on."""
PONG_SECONDS = 0.2
"""How long the loop of async author code may take to answer before it counts as blocked for good."""
_LONGEST = 64 * 1024


def _nobody(method: str, params: dict[str, object]) -> None:
    """The caller cannot be told anything before the result."""


@dataclass(slots=True)
class Call:
    """What a caller asks for, whichever protocol it speaks."""

    entry: Entry
    arguments: Mapping[str, object]
    call_id: str | None = None
    timeout: float | None = None
    notify: Notify = _nobody
    capabilities: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """How calls are run: their longest time, how many sync ones at once, what a failure tells."""

    timeout: float = 3600.0
    threads: int = 256
    show_traceback: bool = True
    log_calls: bool = False


class Executor:
    """Runs calls, each once per call id: async functions on a loop of their own, sync ones in threads.

    A sync function that has been quick so far is run on the server's loop, which goes on in another thread should it
    not be quick this time. So neither `time.sleep` in a sync tool nor in an async one stops health checks, other calls
    or time-outs, and a quick tool does not pay for the slow ones. Nothing that an author wrote, be it the validator of
    a model or the text of an exception, runs on the server's loop itself.
    """

    def __init__(self, registry: Registry, policy: Policy, loop: Loop, *, project: Path | None = None) -> None:
        self.registry = registry
        self.policy = policy
        self.loop = loop
        self.journal = Journal()
        self.streams: list[CapturedStream] = []
        self.pid = os.getpid()
        self.gate = Gate(loop)
        self.orphans: Orphans | None = None
        self.threads = Threads(policy.threads)
        self._project = project
        self._author_loop: AuthorLoop | None = None
        self._quick: dict[Entry, int] = {}
        # Ids for the log alone: nothing is reached by one, so it need not be hard to guess.
        self._series = f"call_{os.urandom(4).hex()}_"
        self._numbers = 0

    async def call(self, call: Call, on_start: OnStart | None = None) -> Result:
        """Run it, join it or recall it; `on_start` receives the function that cancels it.

        Raises ArgumentsInvalid before anything ran; ToolError when it ran without giving a result.
        """
        entry = call.entry
        if not isinstance(call.arguments, Mapping):
            raise ArgumentsInvalid(
                f"{entry.kind} {entry.name!r}: arguments are {type(call.arguments).__name__}, not an object",
                hint="send a JSON object whose keys are the parameters' names",
                fields=[],
            )
        if self.gate.opened is not None:
            await self.gate.wait(entry.name, on_start)
        if call.call_id is None:
            self._numbers += 1
            return await self._run(call, f"{self._series}{self._numbers}", on_start)
        call_id = call.call_id
        print_ = fingerprint(entry.kind, entry.name, call.arguments)
        return await self.journal.once(call_id, print_, lambda: self._run(call, call_id, on_start))

    async def _run(self, call: Call, call_id: str, on_start: OnStart | None) -> Result:
        context = Context(call_id, call.entry.name, notify=call.notify, capabilities=call.capabilities)
        running = Running(self, call, context)
        if on_start is not None:
            on_start(running.cancel)
        self.gate.under_way[running] = None
        try:
            self._place(running)
            return await running.result()
        finally:
            self.gate.leave(running)
            if self.orphans is not None:
                self.orphans.look()

    def _place(self, running: Running) -> None:
        """Where the call runs."""
        entry = running.entry
        if entry.is_async:
            running.start_clock()
            running.give_up = self.author_loop.submit(running.work, running.finish, running.deliver, self.pid)
        elif self._quick.get(entry, 0) >= 3:
            self.loop.run_here(running)
        else:
            running.start_clock()
            running.give_up = self.threads.submit(running.run, running.post)

    @property
    def author_loop_if_any(self) -> AuthorLoop | None:
        """The loop of async author code, if it was needed yet."""
        return self._author_loop

    @property
    def author_loop(self) -> AuthorLoop:
        """The loop of async author code, started when first needed: asyncio takes longer to import than the server."""
        if self._author_loop is None:
            made: AuthorLoop = import_module("aenv.sandbox.authorloop").AuthorLoop()
            self._author_loop = made
        return self._author_loop

    def doubt_author_loop(self) -> None:
        """An async call did not end in time: if its loop does not answer at all, later calls get another."""
        doubted = self._author_loop
        if doubted is None:
            return
        answered: list[bool] = []

        def replace() -> None:
            if not answered and self._author_loop is doubted:
                logger.warning("async code of the environment blocks its event loop; later calls get a new one")
                self._author_loop = None

        doubted.ping(lambda: answered.append(True))
        self.loop.later(PONG_SECONDS, replace)

    def pace(self, entry: Entry, took: float) -> None:
        """Remember how quick a function is."""
        self._quick[entry] = self._quick.get(entry, 0) + 1 if took < QUICK else 0

    def limit(self, call: Call) -> float:
        """Seconds that the call may take."""
        limits = (call.timeout, call.entry.timeout, self.policy.timeout)
        return min(limit for limit in limits if limit is not None)

    def failure(self, entry: Entry, problem: BaseException) -> AEnvError:
        """What went wrong in author code, told in the author's frames; called where that code ran."""
        if isinstance(problem, ToolError | MissingCapability | ArgumentsInvalid):
            return problem
        details: dict[str, object] = {"type": type(problem).__name__}
        if self.policy.show_traceback:
            details["traceback"] = [line[:_LONGEST] for line in author_traceback(problem, self._project)]
        if isinstance(problem, SystemExit):
            message = f"the {entry.kind} called sys.exit({problem.code!r})"
        elif type(problem).__name__ == "CancelledError":
            message = f"the {entry.kind} cancelled itself"
        else:
            message = _text_of(problem)
        return ToolFailed(message, hint=None, **details)

    def renew(self) -> None:
        """In a copy of the process: threads of its own, in place of those that exist in the source alone."""
        self.pid = os.getpid()
        self.threads = Threads(self.policy.threads)
        if self._author_loop is not None:
            self._author_loop.renew()
        if self.orphans is not None:
            self.orphans.forget()

    def close(self) -> None:
        """End the loop of async author code; hung threads are daemons and end with the process."""
        if self._author_loop is not None:
            self._author_loop.close()


class Running:
    """A call under way: computed in whatever thread, waited for on the server's loop."""

    def __init__(self, executor: Executor, call: Call, context: Context) -> None:
        self.entry = call.entry
        self.give_up: Callable[[], None] = _nothing
        self._executor = executor
        self._context = context
        self._arguments = call.arguments
        self._limit = executor.limit(call)
        self._timer: Timer | None = None
        # Plain arguments are checked here and now; others by code that may be the author's, where that code runs.
        self._bound: Bound | None = self.entry.signature.bind_plain(call.arguments, context)
        self._took = 0.0
        self._began = monotonic()
        self._outcome: tuple[object, AEnvError | None] = (None, None)
        self._future: Future[tuple[object, AEnvError | None]] = Future()

    def __str__(self) -> str:
        return f"call {self._context.call_id} of {self.entry.kind} {self.entry.name!r}"

    # in the thread that runs the author's code

    def work(self) -> Any:
        """The author's function itself."""
        current_context.set(self._context)
        current_registry.set(self._executor.registry)
        bound = self._bound or self.entry.signature.bind(self._arguments, self._context)
        return self.entry.function(*bound.args, **bound.kwargs)

    def finish(self, value: object) -> Result:
        """What the function returned as a result that its annotation allows."""
        result = to_result(value)
        if result.blocks is None:
            self.entry.signature.check_result(result.value)
        return result

    def run(self) -> None:
        """Compute the outcome of a sync function, here and now."""
        began = monotonic()
        try:
            value = copy_context().run(self.work)
            # A sync wrapper around an async function is finished where async code runs.
            self._outcome = (value if isinstance(value, Awaitable) else self.finish(value), None)
        except BaseException as problem:  # noqa: BLE001 - sys.exit in a tool ends the call, not the thread
            self._outcome = (None, self._failure(problem))
        if os.getpid() != self._executor.pid:
            # The tool forked and its child came back here: the child is not the server.
            os._exit(0)
        self._took = monotonic() - began
        self._end_output()

    def post(self, value: object, problem: BaseException | None) -> None:
        """Have the loop settle what `run` computed."""
        self._executor.loop.post(self.settle)

    def deliver(self, value: object, problem: BaseException | None) -> None:
        """Have the loop settle what async code computed."""
        self._outcome = (value, None if problem is None else self._failure(problem))
        self._end_output()
        self._executor.loop.post(lambda: self._future.set(self._outcome))

    def _failure(self, problem: BaseException) -> AEnvError:
        try:
            return self._executor.failure(self.entry, problem)
        except BaseException:  # noqa: BLE001 - telling of it runs author code too, and that may raise anything again
            return ToolFailed(f"the {self.entry.kind} raised {type(problem).__name__}, which cannot be shown")

    def _end_output(self) -> None:
        for stream in self._executor.streams:
            stream.end_call(self._context.call_id)

    # on the server's loop

    def settle(self) -> None:
        """Hand the outcome to whoever waits for it."""
        self._executor.pace(self.entry, self._took)
        self._future.set(self._outcome)

    def cancel(self) -> None:
        """The caller gives up."""
        self._abandon(ToolCancelled(f"the caller cancelled this call of {self._context.name!r}"))

    def start_clock(self) -> None:
        """From now on the call's time runs; a quick one that keeps being quick needs no clock."""
        self._timer = self._executor.loop.later(self._limit, self._out_of_time)

    def outlasted(self) -> None:
        """It was not quick this time: the loop left its thread to it, and will not lend it another so soon."""
        self._executor.pace(self.entry, QUICK)
        if not self._future.is_done:
            self.start_clock()

    async def result(self) -> Result:
        """The checked result, or the failure as an error of ours."""
        value, problem = await self._future
        if self._timer is not None:
            self._timer.cancel()
        if self._executor.policy.log_calls and self.entry.kind != "health":
            self._log_end(problem)
        if problem is not None:
            raise problem.with_traceback(None)
        return value if isinstance(value, Result) else await self._awaited(value)

    def _log_end(self, problem: AEnvError | None) -> None:
        how = "ok" if problem is None else f"failed: {type(problem).__name__}: {problem.message[:200]}"
        logger.info("%s %s %s, %.1f ms", self.entry.kind, self.entry.name, how, (monotonic() - self._began) * 1000)

    async def _awaited(self, value: Any) -> Result:
        self._future = Future()
        self.start_clock()
        executor = self._executor
        self.give_up = executor.author_loop.submit(lambda: value, self.finish, self.deliver, executor.pid)
        return await self.result()

    def _out_of_time(self) -> None:
        entry, limit = self.entry, self._limit
        self._abandon(
            ToolTimedOut(
                f"the {entry.kind} {entry.name!r} did not finish within {limit:g} s and was given up",
                hint="make it faster, or raise timeout= in its decorator or toolTimeout in deployConfig.sandbox",
                seconds=limit,
            )
        )
        if entry.is_async:
            self._executor.doubt_author_loop()

    def _abandon(self, problem: ToolError) -> None:
        self._context.is_cancelled = True
        self.give_up()
        self._future.set((None, problem))


def _nothing() -> None:
    """A call on the loop's own thread cannot be given up: the loop leaves the thread instead."""


def _text_of(problem: BaseException) -> str:
    text = str(problem) or type(problem).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
