"""A second server out of a running one: the process forks itself, and both go on from the same state.

What a copy has: all memory, the registry, the results by call id, MCP sessions, the state of `random`, numpy and the
like on purpose (a copied environment draws the numbers that its source would have drawn), the very event loop that
async objects are bound to, and open files, each opened anew by its path at the place that the source had reached. What
it has not: the source's clients and their requests, its threads, its locks on files. Memory that is shared with other
processes stays shared.

What stands in the way, unless a function with `@register_fork` takes it away before the fork: a thread that is not the
server's, a living child process, a socket, pipe or other kernel object, a nameless file open for writing, tasks and
timers of async code. What always does: a call that does not end in time, CUDA, the official MCP runtime. Then
ForkRefused names it, and the source goes on as if it had not been asked.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Generator
from time import monotonic
from typing import Literal, NamedTuple, NoReturn, TypeVar

from aenv.define.load import author_traceback
from aenv.define.registry import current_registry
from aenv.errors import AEnvError, ForkRefused
from aenv.sandbox import obstacles
from aenv.sandbox.__main__ import leave
from aenv.sandbox.loop import Future, Loop, start
from aenv.sandbox.obstacles import Obstacle, OpenFile, refusal
from aenv.sandbox.server import SIGNALS, Server, serve

logger = logging.getLogger(__name__)

T = TypeVar("T")
Enter = Callable[[], list[socket.socket]]
Done = Callable[[int | AEnvError], None]
Hold = Callable[[], Future[None]]
Side = Literal["source", "copy"]

PATIENCE_SECONDS = 0.05
"""How long something may stand in the way before the copy is refused: what was told to end needs a moment for it."""
PARK_SECONDS = 0.2
"""How long the loop of async author code may take to stop before it counts as blocked."""
LOOK_SECONDS = 0.001


def fork(
    server: Server,
    *,
    wait_seconds: float,
    enter: Enter,
    done: Done,
    own: Collection[int] = (),
    hold: Hold | None = None,
) -> None:
    """Copy the process; called on the loop's leading thread, as `done` is, with the copy's pid or why there is none.

    Calls under way are given `wait_seconds` to end; those that come meanwhile wait, and run in the source. In the copy
    `enter` is called once it has let go of the source's sockets: it makes the copy a sandbox of its own, points
    descriptor 2 to its log, has the loop watch what is its own, sets another `server.lifeline` if there is one, and
    returns the sockets to listen on. It may fork, and return in the child. If it raises, the copy ends with code 1.
    `own` are descriptors of whoever calls that the loop does not watch; like those that it watched they are open in
    the copy, for `enter` to close. Copies are made one after another. `hold` is called in the source once there is a
    copy, and what it returns is waited for before the source goes on: what `enter` copies must not change meanwhile.
    """
    opened = server.executor.gate.opened
    if opened is not None:
        opened.then(lambda: fork(server, wait_seconds=wait_seconds, enter=enter, done=done, own=own, hold=hold))
        return

    def told(pid: int | None, problem: BaseException | None) -> None:
        if pid is not None:
            done(pid)
        elif isinstance(problem, AEnvError):
            done(problem)
        else:
            logger.error("the copy of the process failed by a defect of the server", exc_info=problem)
            done(ForkRefused(f"the copy failed: {problem!r}", hint="see the instance log, and report it", obstacles=[]))

    start(_Fork(server, enter, set(own), monotonic() + wait_seconds, hold).run(), told)


class _Fork:
    """One copy in the making; runs on the server's loop."""

    def __init__(self, server: Server, enter: Enter, own: set[int], deadline: float, hold: Hold | None) -> None:
        self._server = server
        self._executor = server.executor
        self._loop = server.loop
        self._enter = enter
        self._own = own
        self._deadline = deadline
        self._hold = hold
        self._hooks = _Hooks(self._executor.registry.fork_hooks)
        self._files: list[OpenFile] = []

    async def run(self) -> int:
        """The copy's pid; raises ForkRefused. Returns in the source alone."""
        gate = self._executor.gate
        gate.close()
        try:
            await self._await_calls()
            self._refuse_if(self._for_good())
            try:
                await self._before()
                pid = await self._split()
                if self._hold is not None:
                    await self._hold()
                return pid
            finally:
                await self._after()
        finally:
            gate.open()

    async def _await_calls(self) -> None:
        gate = self._executor.gate
        while gate.under_way:
            if not await _within(self._loop, gate.emptied(), self._deadline - monotonic()):
                self._refuse_if([Obstacle("call", f"{call} still runs") for call in gate.under_way])

    def _refuse_if(self, found: list[Obstacle]) -> None:
        if found:
            raise refusal(found)

    def _for_good(self) -> list[Obstacle]:
        """What no hook can take away."""
        if self._server.is_closing:
            return [Obstacle("end", "the server is about to end")]
        if not self._server.is_copyable:
            return [Obstacle("runtime", "the official MCP runtime speaks for it")]
        return [*obstacles.unseen(), *obstacles.devices()]

    # hooks, in threads as all author code

    async def _before(self) -> None:
        if not self._hooks:
            return
        hooks = self._hooks
        ended = self._apart(hooks.before)
        if not await _within(self._loop, ended, self._deadline - monotonic()):
            # It may come to its `yield` yet, and then the rest of it is due.
            self._hooks = _Hooks([])
            ended.then(lambda: self._apart(lambda: hooks.after("source")))
            raise refusal([Obstacle("hook", f"the fork hook {hooks.current!r} still runs")])
        failure = await ended
        if failure is not None:
            error = refusal([Obstacle("hook", f"the fork hook {hooks.current!r} {failure.text}")])
            error.details["traceback"] = failure.traceback
            raise error

    async def _after(self) -> None:
        if not self._hooks:
            return
        ended = self._apart(lambda: self._hooks.after("source"))
        if not await _within(self._loop, ended, self._executor.policy.timeout):
            logger.error("the fork hook %r still runs; calls go on without it", self._hooks.current)
            return
        failure = await ended
        if failure is not None:
            lines = "\n".join(failure.traceback)
            logger.error("the fork hook %r %s\n%s", self._hooks.current, failure.text, lines)

    def _apart(self, work: Callable[[], None]) -> Future[_Failure | None]:
        ended: Future[_Failure | None] = Future()

        def worked() -> _Failure | None:
            current_registry.set(self._executor.registry)
            try:
                work()
            except BaseException as problem:  # noqa: BLE001 - an author's function may raise anything
                return _failure(problem)
            return None

        def deliver(value: object, problem: BaseException | None) -> None:
            failure = value if isinstance(value, _Failure) else None
            self._loop.post(lambda: ended.set(failure))

        self._executor.threads.submit(worked, deliver)
        return ended

    # the fork

    async def _split(self) -> int:
        patient_until = monotonic() + PATIENCE_SECONDS
        while True:
            try:
                found = [*await self._park(), *self._in_the_way()]
                if not found:
                    return self._fork()
            finally:
                if (author_loop := self._executor.author_loop_if_any) is not None:
                    author_loop.go_on()
            if monotonic() > patient_until:
                raise refusal(found)
            # The kernel does not tell when another thread is gone.
            await _pause(self._loop, LOOK_SECONDS)

    async def _park(self) -> list[Obstacle]:
        """Stop the loop of async code; what it still has to do."""
        author_loop = self._executor.author_loop_if_any
        if author_loop is None:
            return []
        told: list[str] = []
        parked: Future[None] = Future()

        def tell(pending: list[str]) -> None:
            told.extend(pending)
            self._loop.post(lambda: parked.set(None))

        author_loop.park(tell)
        if not await _within(self._loop, parked, PARK_SECONDS):
            return [Obstacle("async", "async code blocks its event loop")]
        return [Obstacle("async", text) for text in told]

    def _in_the_way(self) -> list[Obstacle]:
        server = self._server
        threads = {os.getpid(), threading.get_native_id(), *self._executor.threads.resting}
        descriptors = self._own | server.descriptors()
        if server.loop.watcher is not None:
            threads.add(server.loop.watcher)
        if (author_loop := self._executor.author_loop_if_any) is not None:
            threads.add(author_loop.thread or 0)
            descriptors |= author_loop.descriptors()
        _reap(server.copies)
        found, self._files = obstacles.descriptors(descriptors)
        others = [*obstacles.threads(threads), *obstacles.processes(server.copies), *found]
        return [*self._for_good(), *others]

    def _fork(self) -> int:
        server = self._server
        state = _random_state()
        server.is_copying = True
        # In the copy they stay blocked until there is a loop that can be told.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = _forked()
            if pid == 0:
                self._be_copy(mask, state)
        except OSError as problem:
            reason = f"the kernel gives no further process: {os.strerror(problem.errno or 0).lower()}"
            raise ForkRefused(reason, hint="raise the limit of processes or memory", obstacles=[reason]) from problem
        finally:
            server.is_copying = False
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        server.copies.add(pid)
        if self._executor.orphans is not None:
            self._executor.orphans.disown(pid)
        return pid

    # in the copy, whose only thread this is

    def _be_copy(self, mask: set[int | signal.Signals], state: object) -> NoReturn:
        try:
            # All that is here came from the source, and shares its memory until it is touched.
            gc.freeze()
            _restore_random(state)
            self._renew_log()
            self._server.forget()
            # From here on there is a loop that a signal can be posted to; whatever is started now is not to block them.
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            self._server.listeners = self._enter()
            self._renew_log()
            obstacles.reopen(self._files)
            _stir()
            self._executor.renew()
            self._server.is_copying = False
            current_registry.set(self._executor.registry)
            self._hooks.after("copy")
            serve(self._server, self._server.listeners, _nothing, lifeline=self._server.lifeline)
        except BaseException:
            # Nobody above us is a copy's: what called us lives on in the source.
            logger.exception("the copy of the process cannot serve")
            os._exit(1)
        leave(0)

    def _renew_log(self) -> None:
        for stream in self._executor.streams:
            stream.renew()


class _Failure(NamedTuple):
    text: str
    traceback: list[str]


class _Hooks:
    """The author's own part of a copy."""

    def __init__(self, functions: list[Callable[[], object]]) -> None:
        self._functions = list(functions)
        self._begun: list[tuple[str, Generator[object, Side, object]]] = []
        self.current = ""
        """The one that ran last."""

    def __bool__(self) -> bool:
        return bool(self._functions)

    def before(self) -> None:
        """Run every one up to its `yield`."""
        for function in self._functions:
            self.current = getattr(function, "__name__", None) or repr(function)
            part = function()
            if isinstance(part, Generator):
                with contextlib.suppress(StopIteration):
                    next(part)
                    self._begun.append((self.current, part))

    def after(self, side: Side) -> None:
        """Run the rest of those that came to their `yield`, the last one first; raises what the last failure raised."""
        failure: tuple[str, BaseException] | None = None
        while self._begun:
            name, part = self._begun.pop()
            try:
                part.send(side)
                raise RuntimeError("yielded a second time")
            except StopIteration:
                continue
            except BaseException as problem:  # noqa: BLE001 - raised below, when the others have had their turn
                failure = (name, problem)
        if failure is not None:
            self.current = failure[0]
            raise failure[1]


def _forked() -> int:
    with warnings.catch_warnings():
        # From 3.12 on a fork beside threads is warned of; ours are all at rest, and there are no others.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _reap(copies: set[int]) -> None:
    for pid in list(copies):
        try:
            is_over = os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:
            is_over = True
        if is_over:
            copies.discard(pid)


def _random_state() -> object:
    """`random` gives every forked child another state; a copy keeps its source's."""
    module = sys.modules.get("random")
    return None if module is None else module.getstate()


def _restore_random(state: object) -> None:
    if state is not None:
        sys.modules["random"].setstate(state)


def _stir() -> None:
    """OpenSSL knows a fork by its pid, and in a pid namespace of its own the copy's may be the source's."""
    module = sys.modules.get("ssl")
    if module is not None:
        module.RAND_add(os.urandom(32), 32.0)


async def _pause(loop: Loop, seconds: float) -> None:
    over: Future[None] = Future()
    loop.later(seconds, lambda: over.set(None))
    await over


async def _within(loop: Loop, future: Future[T], seconds: float) -> bool:
    """Whether it comes in time."""
    first: Future[bool] = Future()
    future.then(lambda: first.set(True))
    timer = loop.later(max(0.0, seconds), lambda: first.set(False))
    came = await first
    timer.cancel()
    return came


def _failure(problem: BaseException) -> _Failure:
    try:
        return _Failure(f"raised {type(problem).__name__}: {problem}", author_traceback(problem, None))
    except BaseException:  # noqa: BLE001 - telling of it runs author code too
        return _Failure(f"raised {type(problem).__name__}, which cannot be shown", [])


def _nothing() -> None:
    """Whoever made the copy knows that it is there."""
