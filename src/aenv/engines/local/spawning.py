"""An environment's own command in a sandbox, in place of the server that its zygote would have become."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any, NoReturn

_LENGTH = 4
_LISTENER = 3
"""Where sd_listen_fds(3) has programs look for a socket that was opened for them."""


def spawn(kept: list[int], variables: dict[str, str], command: list[str], note: str) -> NoReturn:
    """Wait for the order that makes this sandbox an instance, then be the command."""
    control = socket.socket(fileno=kept[0])
    order = _receive(control)
    if order is None:
        # Nobody needed this one.
        os._exit(0)
    text = json.dumps({"op": "ready", "is_spawned": True}).encode()
    socket.send_fds(control, [len(text).to_bytes(_LENGTH, "little") + text], kept[2:])
    listener = os.dup(kept[1])
    control.close()
    os.dup2(listener, _LISTENER, inheritable=True)
    os.closerange(_LISTENER + 1, 1 << 16)
    told = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "aenv"}
    environ = {**os.environ, **variables, **order["variables"], **told}
    descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.write(descriptor, b"\0".join(os.fsencode(f"{name}={value}") for name, value in environ.items()))
    os.close(descriptor)
    # The interpreter ignores both; a program expects to be ended by them.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    words = [*command, *order["arguments"]]
    try:
        os.execvpe(words[0], words, environ)  # noqa: S606 - the very point
    except OSError as problem:
        os.write(2, f"{words[0]}: {problem.strerror}\n".encode())
        os._exit(127 if isinstance(problem, FileNotFoundError) else 126)


def _receive(control: socket.socket) -> dict[str, Any] | None:
    received = b""
    while len(received) < _LENGTH or len(received) < _LENGTH + int.from_bytes(received[:_LENGTH], "little"):
        part = control.recv(1 << 20)
        if not part:
            return None
        received += part
    order: dict[str, Any] = json.loads(received[_LENGTH:])
    return order
