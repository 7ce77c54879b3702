"""Sessions of the older revisions of MCP, and the streams on which clients wait for news."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from aenv.sandbox.http import EventStream, Request
from aenv.sandbox.loop import Future, Loop, Timer

MOST_SESSIONS = 10_000
BEAT_SECONDS = 25.0


@dataclass(slots=True)
class Session:
    """What a client that said `initialize` is remembered by."""

    id: str
    version: str
    capabilities: dict[str, object] = field(default_factory=dict)
    log_level: str = "debug"
    cancels: dict[str | int, Callable[[], None]] = field(default_factory=dict)
    streams: list[EventStream] = field(default_factory=list)


class Sessions:
    """The newest sessions by id; a client whose session is gone is told so and opens another."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Session] = OrderedDict()

    def add(self, session: Session) -> None:
        """Remember it, and forget the one that was silent longest if there are too many."""
        self._held[session.id] = session
        if len(self._held) > MOST_SESSIONS:
            self._held.popitem(last=False)

    def get(self, id_: str) -> Session | None:
        """The session, now the most recently used one."""
        session = self._held.get(id_)
        if session is not None:
            self._held.move_to_end(id_)
        return session

    def end(self, id_: str) -> Session | None:
        """Forget it; the session that it was, if there was one."""
        return self._held.pop(id_, None)


class Streams:
    """Open streams of clients that wait for news; each gets a comment now and then, so that nothing closes it."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: dict[EventStream, Future[None]] = {}
        self._beat: Timer | None = None

    async def hold(self, request: Request, stream: EventStream, *, last: bytes | None = None) -> None:
        """Keep the stream until its client leaves or the server closes; `last` is what it is told then."""
        left: Future[None] = Future()
        self._open[stream] = left
        request.on_disconnect = lambda: left.set(None)
        self._beat = self._beat or self._loop.later(BEAT_SECONDS, self._pulse)
        try:
            await left
        finally:
            del self._open[stream]
            if last is not None:
                stream.send(last)
            stream.close()

    def send(self, message: Callable[[EventStream], bytes | None]) -> None:
        """To each stream what `message` makes for it, if anything."""
        # A copy: a client that turns out to be gone is taken out while we write.
        for stream in list(self._open):
            if (text := message(stream)) is not None:
                stream.send(text)

    def release(self, stream: EventStream) -> None:
        """Let one stream go."""
        if (left := self._open.get(stream)) is not None:
            left.set(None)

    def close(self) -> None:
        """Let every stream go."""
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        for left in list(self._open.values()):
            left.set(None)

    def _pulse(self) -> None:
        self._beat = self._loop.later(BEAT_SECONDS, self._pulse) if self._open else None
        for stream in list(self._open):
            stream.comment()
