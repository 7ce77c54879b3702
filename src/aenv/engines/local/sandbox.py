"""What the supervisor holds of one sandbox: its process, its log, its group, and who waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from aenv._util import jsontext
from aenv.engines.local.limits import Group
from aenv.engines.local.reactor import Outbox

if TYPE_CHECKING:
    from aenv.engines.local.nursery import Nursery, ZygoteProcess

_AT_ONCE = 1 << 16
_LENGTH = 4
_LONGEST_MESSAGE = 4 << 20
_JOINED = 4096
State = Literal["spare", "starting", "ready", "ended"]
Listener = Callable[[bytes], None]


class WayOut(Protocol):
    """What connects it to the world."""

    def end(self) -> None: ...

    def is_gone(self) -> bool: ...


class Log:
    """The newest bytes of a log, and whoever follows it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self.followers: list[Listener] = []

    def add(self, chunk: bytes) -> None:
        """Keep it, at the price of the oldest."""
        if self._chunks and len(self._chunks[-1]) + len(chunk) <= _JOINED:
            # A byte at a time would take fifty.
            self._chunks[-1] += chunk
        else:
            self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) >= self._most:
            self._size -= len(self._chunks.popleft())
        for follower in list(self.followers):
            follower(chunk)

    def tail(self, size: int | None = None) -> bytes:
        """Its last bytes."""
        kept = b"".join(self._chunks)[-self._most :]
        return kept if size is None else kept[max(0, len(kept) - size) :]


@dataclass(slots=True)
class Waiters:
    """Who is to be told what."""

    ready: list[Callable[[], None]] = field(default_factory=list)
    """When it answers, or has ended without."""
    ended: list[Callable[[], None]] = field(default_factory=list)
    """When nothing of it is left."""


@dataclass(eq=False, slots=True)
class Sandbox:
    """One sandbox, from the request to fork it until nothing of it is left."""

    name: str
    nursery: Nursery
    path: str
    log: Log
    id: str | None = None
    zygote: ZygoteProcess | None = None
    folder: str | None = None
    state: State = "spare"
    waiters: Waiters = field(default_factory=Waiters)
    askers: set[int] = field(default_factory=set)
    """Requests that asked for it and have not taken that back."""
    group: Group | None = None
    control: socket.socket | None = None
    outbox: Outbox | None = None
    way_out: WayOut | None = None
    process: subprocess.Popen[bytes] | None = None
    """Its outer half, where no zygote is its parent."""
    is_attached: bool = False
    """Whether it reaches all that it may reach."""
    door: list[int] | None = None
    """What it handed out for its way out, before anybody could use it."""
    early: dict[str, object] | None = None
    """That it is ready, said before it was attached."""
    activation: bytes = b""
    """What makes it an instance; forgotten as soon as it is sent."""
    ends: list[int] = field(default_factory=list)
    """What is to be sent to its zygote."""
    log_pipe: int = -1
    pidfd: int = -1
    box: int = -1
    """Its own file system."""
    pid: int | None = None
    """In the zygote's pid namespace."""
    code: int | None = None
    is_dead: bool = False
    is_stopping: bool = False
    breaches: dict[str, int] = field(default_factory=dict)
    source: Sandbox | None = None
    """What it is a copy of."""
    copies: set[Sandbox] = field(default_factory=set)
    is_husk: bool = False
    """Whether it has ended, and only its first process is left, for copies live below it."""
    metadata: dict[str, object] = field(default_factory=dict)
    failure: dict[str, object] | None = None
    """What it said of itself when it could not start."""
    _received: bytearray = field(default_factory=bytearray)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal its first process; the kernel ends all others of its pid namespace with that one."""
        if self.pidfd >= 0 and not self.is_dead:
            # Copies hand their descriptors out themselves, and may hand out anything.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, number)

    def has_live_copies(self) -> bool:
        """Whether something lives below its first process that is not its own."""
        return any(copy.state != "ended" or copy.has_live_copies() for copy in self.copies)

    def receive(self, part: bytes) -> list[dict[str, object]]:
        """The messages that are whole now; nonsense is dropped, for author code can write to this socket too."""
        self._received += part
        messages = []
        while len(self._received) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._received[:_LENGTH], "little")
            if end > _LONGEST_MESSAGE:
                self._received.clear()
            if len(self._received) < end:
                break
            text = bytes(self._received[_LENGTH:end])
            del self._received[:end]
            with contextlib.suppress(ValueError):
                if isinstance(message := jsontext.loads(text), dict):
                    messages.append(message)
        return messages

    def read_log(self) -> bool:
        """Take what its processes printed; False at the end."""
        try:
            chunk = os.read(self.log_pipe, _AT_ONCE)
        except BlockingIOError:
            return True
        if chunk:
            self.log.add(chunk)
        return bool(chunk)

    def drain_log(self) -> None:
        """Take what is left, without waiting for processes that hold the pipe open."""
        for _ in range(64):
            try:
                chunk = os.read(self.log_pipe, _AT_ONCE)
            except OSError:
                return
            if not chunk:
                return
            self.log.add(chunk)

    def is_full(self) -> bool:
        """Whether its file system has no room left."""
        if self.box < 0:
            return False
        counted = os.statvfs(self.box)
        # A write larger than what is left fails with a little still free.
        return counted.f_bavail * counted.f_frsize < max(counted.f_blocks * counted.f_frsize // 100, 1 << 16)

    def storage_bytes(self) -> int | None:
        """Bytes that its files take."""
        if self.box < 0:
            return None
        counted = os.statvfs(self.box)
        return (counted.f_blocks - counted.f_bfree) * counted.f_frsize
