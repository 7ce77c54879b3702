"""Exactly once: results by call id, so that a caller may ask again without anything happening again."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aenv._util.jsontext import dumps, loads
from aenv.errors import AEnvError, ArgumentsInvalid, CallConflict, CallForgotten
from aenv.sandbox.encode import Result
from aenv.sandbox.loop import Future
from aenv.sandbox.threads import TooManyHung

_CALL_ID = re.compile(r"[!-~]{1,256}")

CALL_ID_ALLOWED = "1 to 256 printable ASCII characters without blanks, such as a UUID"


def is_call_id(value: object) -> bool:
    """Whether it can name a call; it is written into the log, so it must not be able to forge a line there."""
    return isinstance(value, str) and _CALL_ID.fullmatch(value) is not None


def fingerprint(kind: str, name: str, arguments: object) -> bytes:
    """Two calls are the same call when this is the same; the order of an object's keys means nothing."""
    return hashlib.blake2b(dumps([kind, name, arguments], in_order=True), digest_size=16).digest()


class _Kept(NamedTuple):
    """A finished call, as small as it can be held."""

    print: bytes
    json: bytes
    has_blocks: bool
    problem: AEnvError | None


class _Open(NamedTuple):
    print: bytes
    ended: Future[None]


class Journal:
    """A bounded record of finished and running calls.

    The newest `entries` results, up to `size` bytes together, are held. Of older ones the id is remembered, ten times
    as many, so that a very late repeat is refused instead of being run again. Used by the loop's leader only.
    """

    def __init__(self, *, entries: int = 10_000, size: int = 64 * 2**20) -> None:
        self._entries = entries
        self._size = size
        self._used = 0
        self._finished: OrderedDict[str, _Kept] = OrderedDict()
        self._running: dict[str, _Open] = {}
        self._forgotten: OrderedDict[str, bytes] = OrderedDict()

    async def once(self, call_id: str, print_: bytes, run: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `run`, run now, joined while it runs, or recorded.

        Raises what the call raised, again for every repeat; CallConflict for an id that another call has used;
        CallForgotten when the call ran so long ago that its result is gone.
        """
        while (running := self._running.get(call_id)) is not None:
            _same(call_id, running.print, print_)
            await running.ended
        if (kept := self._finished.get(call_id)) is not None:
            _same(call_id, kept.print, print_)
            return _told(kept)
        if (old := self._forgotten.get(call_id)) is not None:
            _same(call_id, old, print_)
            raise CallForgotten(
                f"the call {call_id!r} has run, but its result is no longer held",
                hint="repeat a call soon after it was cut off; use a new id for a new call",
            )
        return await self._first(call_id, print_, run)

    async def _first(self, call_id: str, print_: bytes, run: Callable[[], Awaitable[Result]]) -> Result:
        ended: Future[None] = Future()
        self._running[call_id] = _Open(print_, ended)
        try:
            result = await run()
        except (ArgumentsInvalid, TooManyHung):
            # Refused before anything ran: the id stays free.
            raise
        except AEnvError as problem:
            self._record(call_id, _Kept(print_, dumps(problem.to_wire()), has_blocks=False, problem=problem))
            raise
        else:
            self._record(call_id, _Kept(print_, result.json, result.blocks is not None, None))
            return result
        finally:
            del self._running[call_id]
            ended.set(None)

    def _record(self, call_id: str, kept: _Kept) -> None:
        self._finished[call_id] = kept
        self._used += len(kept.json)
        while len(self._finished) > self._entries or (self._used > self._size and len(self._finished) > 1):
            old_id, old = self._finished.popitem(last=False)
            self._used -= len(old.json)
            self._forgotten[old_id] = old.print
        while len(self._forgotten) > 10 * self._entries:
            self._forgotten.popitem(last=False)


def _told(kept: _Kept) -> Result:
    if kept.problem is not None:
        raise kept.problem.with_traceback(None)
    value = loads(kept.json)
    return Result(value, kept.json, value["content"] if kept.has_blocks else None)


def _same(call_id: str, held: bytes, asked: bytes) -> None:
    if held != asked:
        raise CallConflict(
            f"the call id {call_id!r} was used for another call",
            hint="use a new id for every call; repeat an id only with the same name and arguments",
        )
