"""Exactly once: results by call id, so that a caller may ask again without anything happening again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from aenv._util.jsontext import dumps
from aenv.errors import CallConflict, CallForgotten, ToolError
from aenv.sandbox.encode import Result
from aenv.sandbox.loop import Future

Outcome = Result | ToolError


def fingerprint(kind: str, name: str, arguments: object) -> bytes:
    """Two calls are the same call when this is the same."""
    return hashlib.blake2b(dumps([kind, name, arguments]), digest_size=16).digest()


class Journal:
    """A bounded record of finished and running calls.

    The newest `entries` results, up to `size` bytes together, are held. Of older ones the id is remembered, ten times
    as many, so that a very late repeat is refused instead of being run again. Used by the loop's leader only.
    """

    def __init__(self, *, entries: int = 10_000, size: int = 64 * 2**20) -> None:
        self._entries = entries
        self._size = size
        self._used = 0
        self._finished: OrderedDict[str, tuple[bytes, Outcome]] = OrderedDict()
        self._running: dict[str, tuple[bytes, Future[Outcome | None]]] = {}
        self._forgotten: OrderedDict[str, bytes] = OrderedDict()

    async def once(self, call_id: str, print_: bytes, run: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `run`, run now, joined while it runs, or recorded.

        Raises what the call raised, again for every repeat; CallConflict for an id that another call has used;
        CallForgotten when the call ran so long ago that its result is gone.
        """
        if (finished := self._finished.get(call_id)) is not None:
            _same(call_id, finished[0], print_)
            return _told(finished[1])
        if (running := self._running.get(call_id)) is not None:
            _same(call_id, running[0], print_)
            outcome = await running[1]
            # Nothing was recorded: the call was refused before it ran, and this repeat will be told why.
            return await run() if outcome is None else _told(outcome)
        if (old := self._forgotten.get(call_id)) is not None:
            _same(call_id, old, print_)
            raise CallForgotten(
                f"the call {call_id!r} has run, but its result is no longer held",
                hint="repeat a call soon after it was cut off; use a new id for a new call",
            )
        return await self._first(call_id, print_, run)

    async def _first(self, call_id: str, print_: bytes, run: Callable[[], Awaitable[Result]]) -> Result:
        future: Future[Outcome | None] = Future()
        self._running[call_id] = (print_, future)
        outcome: Outcome | None = None
        try:
            outcome = await run()
        except ToolError as error:
            outcome = error
        finally:
            # Without an outcome nothing ran (the arguments were refused): the id stays free.
            del self._running[call_id]
            if outcome is not None:
                self._record(call_id, print_, outcome)
            future.set(outcome)
        return _told(outcome)

    def _record(self, call_id: str, print_: bytes, outcome: Outcome) -> None:
        self._finished[call_id] = (print_, outcome)
        self._used += _room(outcome)
        while len(self._finished) > self._entries or (self._used > self._size and len(self._finished) > 1):
            old_id, (old_print, old) = self._finished.popitem(last=False)
            self._used -= _room(old)
            self._forgotten[old_id] = old_print
        while len(self._forgotten) > 10 * self._entries:
            self._forgotten.popitem(last=False)


def _room(outcome: Outcome) -> int:
    return outcome.size if isinstance(outcome, Result) else 1024


def _told(outcome: Outcome) -> Result:
    if isinstance(outcome, ToolError):
        raise outcome.with_traceback(None)
    return outcome


def _same(call_id: str, held: bytes, asked: bytes) -> None:
    if held != asked:
        raise CallConflict(
            f"the call id {call_id!r} was used for another call",
            hint="use a new id for every call; repeat an id only with the same name and arguments",
        )
