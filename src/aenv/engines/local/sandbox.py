"""What the supervisor holds of one sandbox: its process, its log, its group, and who waits for it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
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


class Sandbox:
    """One sandbox, from the request to fork it until nothing of it is left."""

    def __init__(self, name: str, nursery: Nursery, *, path: str, log_bytes: int) -> None:
        self.name = name
        self.id: str | None = None
        self.nursery = nursery
        self.zygote: ZygoteProcess | None = None
        self.path = path
        self.folder: str | None = None
        self.state: State = "spare"
        self.log = Log(log_bytes)
        self.waiters = Waiters()
        self.group: Group | None = None
        self.control: socket.socket | None = None
        self.outbox: Outbox | None = None
        self.way_out: WayOut | None = None
        self.is_attached = False
        """Whether it reaches all that it may reach."""
        self.activation = b""
        """What makes it an instance; forgotten as soon as it is sent."""
        self._received = bytearray()
        self.log_pipe = -1
        self.pidfd = -1
        self.box = -1
        self.pid: int | None = None
        """In the zygote's pid namespace."""
        self.code: int | None = None
        self.is_dead = False
        self.is_stopping = False
        self.breaches: dict[str, int] = {}
        self.metadata: dict[str, object] = {}
        self.failure: dict[str, object] | None = None
        """What it said of itself when it could not start."""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal its first process; the kernel ends all others of its pid namespace with that one."""
        if self.pidfd >= 0 and not self.is_dead:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

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
