"""The bench that an engine is tried on: a private event loop, a zoo, and the shortest words for what tests do."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aenv.engines.protocol import Engine, Exit, Handle, Launch
from aenv.testing import calls
from aenv.testing.engine_traces import Footprint, find_traces
from aenv.testing.zoo import Zoo

T = TypeVar("T")

OWNERS_VARIABLE = "AENV_SUITE_OWNER"
"""A variable of the process that owns the engine; no sandbox may see it."""
PATIENCE = 60.0
"""Seconds that one step of a test may take."""
SETTLE = 10.0
"""Seconds until what was asked for must be seen."""
_PAUSE = 0.02


@dataclass(frozen=True)
class Subject:
    """An engine that the suite is run on, and what is known of it."""

    make: Callable[[], Engine]
    """Makes one; called again after each `aclose`."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    """What it does not hold: the name of a test, and why. A gap that holds after all fails the run."""
    folders: Sequence[Path] = ()
    """Where it keeps what lives no longer than its sandboxes, such as sockets."""


class Loop:
    """An event loop that runs only while it is asked to."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """What it returns; it never takes longer than any test may."""
        return self._runner.run(_bounded(work))

    def close(self) -> None:
        """End what still runs on it."""
        self._runner.close()


async def _bounded(work: Coroutine[object, object, T]) -> T:
    async with asyncio.timeout(PATIENCE):
        return await work


class Bench:
    """One engine in use."""

    def __init__(self, subject: Subject, zoo: Zoo, loop: Loop) -> None:
        self.subject = subject
        self.engine = subject.make()
        self.zoo = zoo
        self._loop = loop
        self._before = Footprint.take(subject.folders)
        self._held: list[Handle] = []
        self._since = len(zoo.ids)

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Await it on the bench's own loop."""
        return self._loop.run(work)

    def hold(self, handle: Handle) -> Handle:
        """Stop it when the test ends, if the test does not."""
        self._held.append(handle)
        return handle

    def start(self, launch: Launch | str = "polite") -> Handle:
        """Start a launch, or the animal of that name."""
        if isinstance(launch, str):
            launch = self.zoo.launch(launch)
        return self.hold(self.run(self.engine.start(launch)))

    def stop(self, handle: Handle, *, grace: float = 0.0) -> None:
        """Stop it."""
        self.run(self.engine.stop(handle, grace=grace))

    def poll(self, handle: Handle) -> Exit | None:
        """How it is."""
        return self.run(self.engine.poll(handle))

    def call(self, handle: Handle, tool: str, **arguments: object) -> object:
        """What a tool returns."""
        return self.run(calls.call(handle.address, tool, arguments))

    def ask(self, handle: Handle, method: str, path: str, body: object = None) -> calls.Answer:
        """One HTTP request."""
        return self.run(calls.ask(handle.address, method, path, body))

    def log(self, handle: Handle, *, tail: int | None = None) -> bytes:
        """Its log."""
        return self.run(read_log(self.engine, handle, tail=tail))

    def list_ids(self) -> set[str]:
        """Ids of all that lives."""
        return {handle.id for handle in self.run(self.engine.list())}

    def wait_for(self, look: Callable[[], T]) -> T:
        """What `look` returns once that is true; a process elsewhere gives no other sign."""
        deadline = time.monotonic() + SETTLE
        while not (found := look()) and time.monotonic() < deadline:
            # The engine goes on while we wait.
            self.run(asyncio.sleep(_PAUSE))
        assert found, f"nothing came of it within {SETTLE:g} s"
        return found

    def wait_for_end(self, handle: Handle) -> Exit:
        """How it ended."""
        ended = self.wait_for(lambda: self.poll(handle))
        assert ended is not None
        return ended

    def is_answering(self, handle: Handle) -> bool:
        """Whether a tool call is answered rightly."""
        try:
            return self.call(handle, "add", a=2, b=3) == 5
        except OSError:
            return False

    def assert_nothing_left(self, *ids: str) -> None:
        """Fail, naming what there is, if these instances left anything on the machine."""
        self._settle(lambda: find_traces(ids, self.subject.folders), "left behind")
        assert not self.list_ids() & set(ids)

    def sweep(self) -> None:
        """At the end of each test: stop what it held, and fail if it left anything."""
        held, self._held = self._held, []
        ids, self._since = self.zoo.ids[self._since :], len(self.zoo.ids)
        for handle in held:
            self.stop(handle)
        self.assert_nothing_left(*ids)

    def renew(self) -> None:
        """After a failed test: another engine, so that the next one does not fail for the same reason."""
        self._held.clear()
        # It may be in any state, and the test has failed already.
        with contextlib.suppress(Exception):
            self.run(asyncio.wait_for(self.engine.aclose(), SETTLE))
        self.engine = self.subject.make()

    def close(self) -> None:
        """Close the engine, and fail if anything at all is left of it."""
        folders = self.subject.folders
        names = {entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir()}
        self.run(self.engine.aclose())
        self._settle(lambda: Footprint.take(folders).list_new(self._before, names), "left behind by the closed engine")

    @contextlib.contextmanager
    def another(self) -> Iterator[Bench]:
        """A second engine of the same kind, closed at the end."""
        other = Bench(self.subject, self.zoo, self._loop)
        try:
            yield other
        finally:
            other.close()

    def _settle(self, look: Callable[[], list[str]], what: str) -> None:
        deadline = time.monotonic() + SETTLE
        while (found := look()) and time.monotonic() < deadline:
            # Nobody tells us when the kernel is done with a process that ended.
            self.run(asyncio.sleep(_PAUSE))
        assert not found, f"{what}: " + "; ".join(found)


async def read_log(engine: Engine, handle: Handle, *, tail: int | None = None, follow: bool = False) -> bytes:
    """A log in one piece."""
    return b"".join([piece async for piece in engine.logs(handle, tail=tail, follow=follow)])
