"""What the supervisor may tell a running instance over its control socket, and the frames that go over it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from aenv._util import jsontext
from aenv.errors import AEnvError
from aenv.sandbox import forking
from aenv.sandbox.loop import Future
from aenv.sandbox.server import Server

_LENGTH = 4
_AT_ONCE = 1 << 20
_DESCRIPTORS = 32


class Copier(Protocol):
    """Whoever shut this process in, and can do the same to a fork of it."""

    def enter(self, descriptors: list[int], settled: Callable[[], None]) -> tuple[int, int]:
        """In a fork: be a sandbox of its own; the descriptors of its control socket and of its listener."""


class Obedience:
    """Listens to the supervisor on the server's loop; when it hangs up, everything here ends."""

    def __init__(self, server: Server, control: socket.socket, copier: Copier | None, note: str | None) -> None:
        self._server = server
        self._control = control
        self._copier = copier
        self._note = note
        self._received = bytearray()
        self._descriptors: list[int] = []

    def begin(self) -> None:
        """From now on."""
        self._control.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._server.loop.watch(self._control.fileno(), lambda mask: self._read())

    def _read(self) -> None:
        try:
            part, descriptors, _flags, _address = socket.recv_fds(self._control, _AT_ONCE, _DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            part, descriptors = b"", []
        if not part:
            _follow_supervisor()
        self._received += part
        self._descriptors += descriptors
        while (message := self._next()) is not None:
            mine, self._descriptors = self._descriptors, []
            if message["op"] == "end":
                self._server.stop()
            else:
                self._fork(message, mine)

    def _next(self) -> dict[str, Any] | None:
        size = int.from_bytes(self._received[:_LENGTH], "little")
        if len(self._received) < _LENGTH + size:
            return None
        text = bytes(self._received[_LENGTH : _LENGTH + size])
        del self._received[: _LENGTH + size]
        message: dict[str, Any] = jsontext.loads(text)
        return message

    def _fork(self, order: dict[str, Any], descriptors: list[int]) -> None:
        """Be copied; the copy speaks for itself, over a control socket of its own."""
        assert self._copier is not None
        settled: Future[None] = Future()
        heard, tell = os.pipe2(os.O_CLOEXEC)

        def hold() -> Future[None]:
            # Only the copy holds it now, so its end is heard as well.
            os.close(tell)
            self._server.loop.watch(heard, lambda mask: settled.set(None))
            return settled

        def enter() -> list[socket.socket]:
            assert self._copier is not None
            self._control.close()
            os.close(heard)
            control, listener = self._copier.enter(descriptors, partial(_say, tell))
            os.environ.update(order["variables"])
            if self._note is not None:
                note_variables(self._note)
            copy = Obedience(self._server, socket.socket(fileno=control), self._copier, self._note)
            self._server.loop.post(copy.announce)
            return [socket.socket(fileno=listener)]

        def done(outcome: int | AEnvError) -> None:
            self._server.loop.unwatch(heard)
            if isinstance(outcome, AEnvError):
                os.close(tell)
            for descriptor in (heard, *descriptors):
                os.close(descriptor)
            told = outcome.to_wire() if isinstance(outcome, AEnvError) else {}
            self._tell({"op": "forked", "copy": order["copy"], **told})

        wait = float(order["wait_seconds"])
        own = {heard, tell, *descriptors}
        forking.fork(self._server, wait_seconds=wait, enter=enter, done=done, own=own, hold=hold)

    def announce(self) -> None:
        """In a copy that serves."""
        self.begin()
        self._tell({"op": "ready"})

    def _tell(self, message: dict[str, object]) -> None:
        # Small, and the supervisor always reads: it fits.
        with contextlib.suppress(OSError):
            send_frame(self._control, message, [])


def _say(tell: int) -> None:
    os.write(tell, b".")
    os.close(tell)


def _follow_supervisor() -> None:
    """Nobody else would end us."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


def note_variables(file: str) -> None:
    """Write this process's variables down, for nobody but its own user."""
    content = b"\0".join(b"%s=%s" % pair for pair in os.environb.items())
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.write(descriptor, content)
    os.close(descriptor)


def read_frame(control: socket.socket) -> dict[str, Any] | None:
    """The next message, waited for; None at the end."""
    head = _read(control, _LENGTH)
    return None if head is None else jsontext.loads(_read(control, int.from_bytes(head, "little")) or b"null")


def _read(control: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = control.recv(min(size, _AT_ONCE))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def send_frame(control: socket.socket, message: dict[str, object], descriptors: list[int]) -> None:
    """Send a message, with descriptors beside it."""
    text = jsontext.dumps(message)
    frame = len(text).to_bytes(_LENGTH, "little") + text
    sent = socket.send_fds(control, [frame], descriptors)
    control.sendall(frame[sent:])
