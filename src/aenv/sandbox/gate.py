"""The gate through which calls start: closed while the process is copied, so that none is under way in two places."""

from __future__ import annotations

from collections.abc import Callable

from aenv.errors import ToolCancelled
from aenv.sandbox.loop import Future, Loop

OnStart = Callable[[Callable[[], None]], None]


class Gate:
    """Lets calls through, or has them wait, and knows those that are under way. Used by the loop's leader only."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: list[Future[bool]] = []
        self._emptied: Future[None] = Future()
        self.under_way: dict[object, None] = {}
        """The calls that have started, in their order; their text is what people call them by."""
        self.opened: Future[None] | None = None
        """While it is closed, what is set when it opens."""

    async def wait(self, name: str, on_start: OnStart | None) -> None:
        """Wait until it opens; `on_start` receives the function that gives this up, which raises ToolCancelled here."""
        turn: Future[bool] = Future()
        self._waiting.append(turn)
        if on_start is not None:
            on_start(lambda: turn.set(False))
        if not await turn:
            raise ToolCancelled(f"the caller cancelled this call of {name!r}")

    def leave(self, call: object) -> None:
        """The call has ended."""
        del self.under_way[call]
        if self.opened is not None and not self.under_way:
            # Posted: the journal has yet to record how the call ended.
            self._loop.post(lambda: self._emptied.set(None))

    def close(self) -> None:
        """Let no further call through."""
        self.opened = Future()

    def emptied(self) -> Future[None]:
        """Set when the last call under way has ended, if there is one now."""
        self._emptied = Future()
        return self._emptied

    def open(self) -> None:
        """Let those that wait through, in their order, and all that come."""
        assert self.opened is not None
        opened, self.opened = self.opened, None
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.set(True)
        opened.set(None)

    def turn_away(self) -> None:
        """In a copy of the process: open, but not for those that wait, whose calls run in the source."""
        self.opened = None
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.set(False)
