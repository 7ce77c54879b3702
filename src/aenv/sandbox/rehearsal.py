"""A sandbox that waits for its order does once what it will have to do, so that the first real call finds it done.

A forked process pays for each page of memory when it first writes to it: the first call of an instance costs ten times
the second. So one that has time serves a tool of ours, to itself, by every way in; nothing of it is left but the pages.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from aenv.define.decorators import register_tool
from aenv.define.registry import Registry, current_registry
from aenv.sandbox.connection import Connection
from aenv.sandbox.endpoint import Identity, Options
from aenv.sandbox.loop import Loop
from aenv.sandbox.server import Server
from aenv.sandbox.threads import Deliver

_SECONDS = 5.0
_PLAIN = b"POST /tools/practise HTTP/1.1\r\nhost: aenv\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n"
_MCP = (
    b"POST /mcp HTTP/1.1\r\nhost: aenv\r\ncontent-type: application/json\r\n"
    b"accept: application/json, text/event-stream\r\ncontent-length: 104\r\n\r\n"
)
_CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"practise","arguments":{"text":"hello"}}}'


def rehearse_alone(times: int) -> None:
    """Go through calls in a process that may have no threads, until the interpreter has adapted to what they run."""
    loop = Loop()
    for _ in range(times):
        stage = _stage(loop)
        stage.executor.threads = _NoThreads()  # type: ignore[assignment] # the one method that a call needs
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)  # noqa: FBT003 - the socket's own signature
        ours.setblocking(False)  # noqa: FBT003 - as above
        Connection(stage, theirs)
        with ours:
            for request in (_PLAIN + b'{"text":"a"}', _MCP + _CALL):
                ours.sendall(request)
                while not select.select([ours], [], [], 0)[0]:
                    loop.turn()
                ours.recv(1 << 16)
        loop.turn()
    loop.release()


class _NoThreads:
    """Runs what should run in a thread on the spot."""

    def submit(self, work: Callable[[], object], deliver: Deliver) -> Callable[[], None]:
        deliver(work(), None)
        return lambda: None


def _stage(loop: Loop) -> Server:
    registry = Registry()
    token = current_registry.set(registry)
    try:
        register_tool(practise)
    finally:
        current_registry.reset(token)
    return Server(registry, Options(project=None, identity=Identity("rehearsal", "0.0.0")), loop)


def rehearse(server: Server) -> None:
    """Go through a whole call beside the server, on its loop and in its threads."""
    stage = _stage(server.loop)
    # The thread that practised is the one that will be needed.
    stage.executor.threads = server.executor.threads
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)  # noqa: FBT003 - the socket's own signature
    server.loop.post(lambda: Connection(stage, theirs))
    with ours:
        ours.settimeout(_SECONDS)
        for request in (_PLAIN + b'{"text":"a"}', _MCP + _CALL):
            ours.sendall(request)
            ours.recv(1 << 16)


def practise(text: str) -> str:
    """Say it back.

    Args:
        text: What to say.
    """
    return text
