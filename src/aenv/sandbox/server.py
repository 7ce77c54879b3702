"""The sandbox server put together: load the project, listen, answer, end."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aenv.define.registry import Registry
from aenv.errors import AddressError, RequestError
from aenv.sandbox.connection import Connection
from aenv.sandbox.endpoint import MakeEndpoint, Options
from aenv.sandbox.execute import Executor
from aenv.sandbox.http import Handler, Reply, Request, Response, failure
from aenv.sandbox.log import CapturedStream
from aenv.sandbox.loop import Loop
from aenv.sandbox.mcp import Mcp
from aenv.sandbox.routes import Routes

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
_BACKLOG = 1024
_ACCEPT = 64
_EVICTED = 16
_PAUSE_SECONDS = 0.2
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ForbiddenOrigin(RequestError):
    """A browser page of somewhere else asks, or a name that is not ours was asked."""

    code, status = "request.forbidden_origin", 403


class Server:
    """Serves one registry on listening sockets that were opened before."""

    def __init__(
        self,
        registry: Registry,
        options: Options,
        loop: Loop,
        streams: list[CapturedStream] | None = None,
        speak: MakeEndpoint = Mcp,
    ) -> None:
        self.loop = loop
        self.executor = Executor(registry, options.policy, loop, project=options.project)
        self.executor.streams = streams or []
        self._mcp = speak(self.executor, options)
        self._routes = Routes(self.executor, options.identity, self._mcp.handle)
        if options.with_inspector:
            # Only authors want the page, and importlib.resources takes a while to load.
            import_module("aenv.sandbox.inspector").add_to(self._routes)
        self.listeners: list[socket.socket] = []
        self._only_loopback = False
        self.handler: Handler = self._handle
        self.connections: set[Connection] = set()
        self.max_body = options.max_body
        self.is_closing = False
        self.is_copyable = speak is Mcp
        """Whether the process may be copied; the official package keeps a thread and descriptors of its own."""
        self.is_copying = False
        """Whether a fork under way makes another server, and not a child of author code."""
        self.copies: set[int] = set()
        """Children of this process that are copies of it."""
        self.lifeline: int | None = None
        self._guards_forks = False

    def start(self, listeners: list[socket.socket]) -> None:
        """Answer on these sockets from now on."""
        self.listeners = listeners
        self._only_loopback = all(_is_loopback(listener) for listener in listeners)
        for listener in listeners:
            listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
            self.loop.watch(listener.fileno(), partial(self._accept, listener))
        self.guard_forks()

    def guard_forks(self) -> None:
        """A child that author code forks must hold neither the port nor a client after the server let go of them."""
        if self._guards_forks:
            return
        self._guards_forks = True
        held = threading.local()

        def hold() -> None:
            # A signal between the fork and the child's first line would be lost to a handler that is not its own.
            held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

        def release() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, held.mask)

        def let_go() -> None:
            if not self.is_copying:
                self._let_go()
            release()

        os.register_at_fork(before=hold, after_in_parent=release, after_in_child=let_go)

    def _let_go(self) -> None:
        descriptors = [listener.fileno() for listener in self.listeners]
        for descriptor in [*descriptors, *(connection.descriptor for connection in self.connections)]:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.loop.forget()
        # Ours would post to a loop that does not run in the child: `Process.terminate()` would do nothing.
        for number in SIGNALS:
            with contextlib.suppress(ValueError):
                signal.signal(number, signal.SIG_DFL)

    def rest(self) -> None:
        """Before it ever served: hold no descriptor, so that processes forked off this one inherit none."""
        self.loop.release()

    def wake(self) -> None:
        """In such a process: be its own server."""
        self.loop.open()
        self.executor.pid = os.getpid()
        self._routes.begin()

    def forget(self) -> None:
        """In a copy of the process: let go of the source's sockets and clients, and of what they wait for."""
        self.loop.renew()
        self.copies.clear()
        for listener in self.listeners:
            listener.close()
        self.listeners = []
        for connection in list(self.connections):
            connection.abandon()
        self._mcp.close()
        self.executor.gate.turn_away()

    def descriptors(self) -> set[int]:
        """Those that are the server's own."""
        listeners = {listener.fileno() for listener in self.listeners}
        return self.loop.descriptors() | listeners | {connection.descriptor for connection in self.connections}

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Take no new requests, let those under way finish within `grace`, then hang up and end the loop."""
        if self.is_closing:
            return
        self.is_closing = True
        for listener in self.listeners:
            self.loop.unwatch(listener.fileno())
            listener.close()
        self._mcp.close()
        for connection in list(self.connections):
            if connection.is_busy:
                connection.ended.then(self._end_if_idle)
            else:
                connection.close()
        self.loop.later(grace, self._end)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self.connections:
            self._end()

    def _end(self) -> None:
        self._mcp.end()
        self.executor.close()
        self.loop.stop()

    def _accept(self, listener: socket.socket, mask: int) -> None:
        for _ in range(_ACCEPT):
            try:
                client, _address = listener.accept()
            except OSError as problem:
                if problem.errno in (errno.EMFILE, errno.ENFILE):
                    self._make_room(listener)
                # Else nobody waits any more, or the one who did has left.
                return
            client.setblocking(False)  # noqa: FBT003 - the socket's own signature
            if client.family != socket.AF_UNIX:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Connection(self, client)

    def _make_room(self, listener: socket.socket) -> None:
        """No descriptor is left for a client that waits: let the longest idle go, and look again in a moment."""
        idle = [connection for connection in self.connections if not connection.is_busy]
        for connection in sorted(idle, key=lambda one: one.used_at)[:_EVICTED]:
            connection.close()
        self.loop.unwatch(listener.fileno())

        def look_again() -> None:
            if not self.is_closing:
                self.loop.watch(listener.fileno(), partial(self._accept, listener))

        self.loop.later(0.0 if idle else _PAUSE_SECONDS, look_again)

    def _handle(self, request: Request) -> Reply | Awaitable[Reply]:
        if (refusal := self._foreign(request)) is not None:
            return refusal
        return self._routes.handle(request)

    def _foreign(self, request: Request) -> Response | None:
        """Keep web pages out: a page elsewhere may make a browser send requests here, also by rebinding its name."""
        host = request.headers.get("host", "")
        if self._only_loopback and host and not _names_loopback(host):
            return failure(ForbiddenOrigin(f"this server is not {host!r}", hint="ask for localhost"))
        origin = request.headers.get("origin")
        if origin is not None and not _is_own_origin(origin, host):
            return failure(ForbiddenOrigin(f"requests of pages from {origin!r} are not served"))
        return None


def open_listener(host: str, port: int) -> socket.socket:
    """A TCP socket that listens; AddressError says who holds the port if that can be known."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as problem:
        raise AddressError(
            f"the host {host!r} is not known here: {problem.strerror}", hint="try 127.0.0.1"
        ) from problem
    family, kind, protocol, _, address = infos[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    hint = "end the other program, or choose another port with --port"
    return _listening(listener, address, f"{host}:{port}", hint)


def open_unix_listener(path: Path) -> socket.socket:
    """A unix socket that listens; a stale file of a server that is gone is replaced, a live one is not."""
    if path.is_socket() and not _answers(path):
        # Whoever may not remove it is told by the bind that follows.
        with contextlib.suppress(OSError):
            path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    return _listening(listener, str(path), repr(str(path)), "choose another path with --uds")


def _listening(listener: socket.socket, address: Any, shown: str, hint: str) -> socket.socket:
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as problem:
        listener.close()
        raise AddressError(
            f"cannot listen on {shown}: {os.strerror(problem.errno or 0).lower()}", hint=hint
        ) from problem
    return listener


def url_of(listener: socket.socket) -> str:
    """How a client on this machine reaches the socket."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def obey_signals(server: Server) -> None:
    """End the server in good order on SIGTERM and SIGINT."""

    def ask(number: int, frame: object) -> None:
        if server.is_closing:
            # Asked twice: whoever asks is in a hurry.
            os._exit(128 + number)
        server.loop.post(server.stop)

    for number in SIGNALS:
        signal.signal(number, ask)


def serve(
    server: Server, listeners: list[socket.socket], ready: Callable[[], None], *, lifeline: int | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or the end of the lifeline; `ready` is called when the sockets are being answered."""
    obey_signals(server)
    launch(server)
    start(server, listeners, ready, lifeline=lifeline)
    server.loop.wait()


def launch(server: Server) -> None:
    """Have the loop run, with nothing to answer yet."""
    server.guard_forks()
    if os.getpid() == 1 and server.executor.orphans is None:
        server.executor.orphans = import_module("aenv.sandbox.orphans").Orphans(server.loop)
    # What is loaded by now stays: a collection need not look at it again, nor touch its memory.
    gc.freeze()
    server.loop.launch()


def start(
    server: Server, listeners: list[socket.socket], ready: Callable[[], None], *, lifeline: int | None = None
) -> None:
    """Have the sockets answered."""
    server.lifeline = lifeline

    def started() -> None:
        server.start(listeners)
        if lifeline is not None:
            server.loop.watch(lifeline, lambda mask: _follow_owner())
        ready()

    server.loop.post(started)


def _follow_owner() -> None:
    """Whoever started us is gone, and nobody else would end us or what author code left running: end all of it."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _is_loopback(listener: socket.socket) -> bool:
    if listener.family == socket.AF_UNIX:
        # Who can open the file is let in; the Host header of a proxied request names somebody else.
        return False
    return ip_address(listener.getsockname()[0]).is_loopback


@lru_cache(maxsize=256)
def _names_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    return name == "localhost" or name.endswith(".localhost") or _is_loopback_address(name)


def _is_loopback_address(name: str) -> bool:
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _is_own_origin(origin: str, host: str) -> bool:
    try:
        asked = urlsplit(origin)
    except ValueError:
        return False
    return asked.netloc == host or _names_loopback(asked.netloc)
