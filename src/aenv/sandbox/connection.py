"""A client's connection: HTTP/1.1 read with httptools, requests answered in their order.

The only module that knows the wire library. It runs on the server's loop; a handler returns a Response at once, or a
coroutine, or None once it has closed the stream of events it opened.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
from collections import deque
from functools import lru_cache
from time import monotonic
from typing import Protocol

import httptools

from aenv.errors import AEnvError, PayloadTooLarge, RequestError
from aenv.sandbox.http import Handler, InternalError, Reply, Request, Response, failure, head_of
from aenv.sandbox.loop import Future, Loop, Timer, start

logger = logging.getLogger(__name__)

MAX_HEADERS = 64 * 1024
LINGER_SECONDS = 2.0
DRAIN_SECONDS = 60.0
PARTIAL_SECONDS = 60.0
"""How long the next part of a request may take: a client that stops half-way must not hold a connection for ever."""
_PIPELINE = 16
_READ = 64 * 1024
"""With four times as much, the allocator gave the buffer back to the kernel and fetched it anew for every read, which
took a third of a call's time."""
_MOST_UNSENT = 8 * 2**20


class Host(Protocol):
    """What connections share."""

    loop: Loop
    handler: Handler
    connections: set[Connection]
    max_body: int
    is_closing: bool


class Connection:
    """One client's connection."""

    def __init__(self, host: Host, client: socket.socket) -> None:
        self._host = host
        self._loop = host.loop
        self._parser = httptools.HttpRequestParser(self)
        self._socket: socket.socket | None = client
        self.descriptor = client.fileno()
        self._unsent: deque[memoryview] = deque()
        self.unsent = 0
        """Bytes that wait for the client to read."""
        self.used_at = monotonic()
        self._request: Request | None = None
        self._url = b""
        self._chunks: list[bytes] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._received = 0
        self._arrived = 0
        self._completed = False
        self._head_size = 0
        self._is_in_head = False
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None
        self._timer: Timer | None = None
        self._is_closing = False
        self._is_refused = False
        self._refusal: AEnvError | None = None
        self.ended: Future[None] = Future()
        host.connections.add(self)
        self._watch()

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._current is not None

    def write(self, data: bytes) -> None:
        """To the client, if it is still there; what it does not take now follows as it reads."""
        if self._socket is None or self._is_closing:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._lost()
                return
            if sent == len(data):
                return
            data = data[sent:]
        self._unsent.append(memoryview(data))
        self.unsent += len(data)
        self._watch()

    def close(self) -> None:
        """Hang up when everything is sent, or when the client has not read it for a while."""
        self._is_closing = True
        if self._unsent:
            self._loop.later(DRAIN_SECONDS, self._lost)
        else:
            self._lost()

    def abandon(self) -> None:
        """Hang up now, whatever is unsent."""
        self._lost()

    # the loop's callback

    def _ready(self, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._flush()
        if mask & selectors.EVENT_READ and self._socket is not None:
            self._read()

    def _read(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
        elif not self._is_refused:
            self._parse(data)

    def _flush(self) -> None:
        try:
            while self._unsent and self._socket is not None:
                part = self._unsent[0]
                sent = self._socket.send(part)
                self.unsent -= sent
                if sent < len(part):
                    self._unsent[0] = part[sent:]
                    self._watch()
                    return
                self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._lost()
            return
        if self._is_closing:
            self._lost()
        else:
            self._watch()

    def _watch(self) -> None:
        if self._socket is not None:
            # A client that asks and does not read is not read from either.
            reads = len(self._waiting) < _PIPELINE and self.unsent < _MOST_UNSENT
            self._loop.watch(self.descriptor, self._ready, reads=reads, writes=bool(self._unsent))

    def _lost(self) -> None:
        """The client, or we, closed it. What runs goes on unless its handler wants to know."""
        if self._socket is None:
            return
        self._loop.unwatch(self.descriptor)
        self._socket.close()
        self._socket = None
        self._unsent.clear()
        self.unsent = 0
        self._waiting.clear()
        self._stop_timer()
        self._host.connections.discard(self)
        if self._current is not None and self._current.on_disconnect is not None:
            self._current.on_disconnect()
        self.ended.set(None)

    def _parse(self, data: bytes) -> None:
        self._arrived = len(data)
        self._completed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_refused = True
        except (httptools.HttpParserError, httptools.HttpParserCallbackError) as problem:
            cause = problem.__context__
            self._refuse(cause if isinstance(cause, AEnvError) else RequestError(f"not HTTP/1.1: {problem}"))
        if self._request is not None:
            self._await_rest(len(data))

    def _await_rest(self, size: int) -> None:
        """Part of a request is there: do not wait for the rest for ever, nor for a head without an end."""
        self._stop_timer()
        self._timer = self._loop.later(PARTIAL_SECONDS, self._too_slow)
        # What came before the end of another request in the same read was not part of this head.
        self._head_size = 0 if self._completed else self._head_size + size
        if self._is_in_head and self._head_size > MAX_HEADERS:
            self._refuse(_HeadTooLarge(f"the request's head is larger than {MAX_HEADERS} bytes"))

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A request starts."""
        self._request = Request(self)
        self._url = b""
        self._chunks = []
        self._headers = []
        self._received = 0
        self._is_in_head = True

    def on_url(self, url: bytes) -> None:
        """The target, possibly in parts."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is there; the body may follow."""
        assert self._request is not None
        headers = self._request.headers = _header_table(self._headers)
        self._is_in_head = False
        if self._head_size + self._arrived > MAX_HEADERS and self._size_of_head() > MAX_HEADERS:
            raise _HeadTooLarge(f"the request's head is larger than {MAX_HEADERS} bytes")
        if (length := headers.get("content-length")) is not None and int(length) > self._host.max_body:
            raise _too_large(self._host.max_body)
        if self._parser.should_upgrade() and (length not in (None, "0") or "transfer-encoding" in headers):
            # The parser takes what follows for the other protocol; without a body nothing follows.
            raise RequestError("this server does not upgrade connections", hint="send plain HTTP/1.1")
        if headers.get("expect", "").lower() == "100-continue" and self._current is None:
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _size_of_head(self) -> int:
        return len(self._url) + sum(len(name) + len(value) for name, value in self._headers)

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        self._received += len(body)
        if self._received > self._host.max_body:
            raise _too_large(self._host.max_body)
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """The request is whole: answer it, or let it wait for those before it."""
        request = self._request
        assert request is not None
        self._request = None
        self._completed = True
        self._stop_timer()
        request.method = self._parser.get_method().decode("latin-1")
        # An offer to upgrade is declined by answering plainly; what would follow it is not for this parser.
        request.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        target = httptools.parse_url(self._url)
        request.path = (target.path or b"/").decode("latin-1")
        request.query = (target.query or b"").decode("latin-1")
        request.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        if self._current is None:
            self._answer(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= _PIPELINE:
            self._watch()

    # answering

    def _answer(self, request: Request) -> None:
        self._current = request
        self.used_at = monotonic()
        try:
            reply = self._host.handler(request)
        except BaseException as problem:  # noqa: BLE001 - a defect of ours becomes an answer here instead of silence
            reply = _defect(problem)
        if reply is None or isinstance(reply, Response):
            self._finish(request, reply)
        else:
            start(reply, lambda value, problem: self._finish(request, _defect(problem) if problem else value))

    def _finish(self, request: Request, response: Reply) -> None:
        if response is not None:
            keep_alive = request.keep_alive and not self._host.is_closing
            body = b"" if request.method == "HEAD" else response.body
            head = head_of(response.status, response.content_type, response.headers, keep_alive=keep_alive)
            self.write(head + b"content-length: %d\r\n\r\n" % len(response.body) + body)
        self._current = None
        if not request.keep_alive or self._host.is_closing:
            self.close()
        elif self._refusal is not None and not self._waiting:
            self._refuse(self._refusal)
        elif self._waiting:
            following = self._current = self._waiting.popleft()
            if len(self._waiting) == _PIPELINE - 1:
                self._watch()
            self._loop.post(lambda: self._answer(following))

    def _refuse(self, error: AEnvError) -> None:
        """Answer what cannot be parsed, after those before it, and hang up: where the next one starts is unknown."""
        self._is_refused = True
        self._request = None
        self._stop_timer()
        if self._current is not None:
            self._refusal = error
            return
        response = failure(error)
        head = head_of(response.status, response.content_type, (), keep_alive=False)
        self.write(head + b"content-length: %d\r\n\r\n" % len(response.body) + response.body)
        # A client that is still sending would lose the answer to a reset if we closed at once: read on, for a while.
        self._loop.later(LINGER_SECONDS, self._lost)
        if self._socket is not None and not self._unsent:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse(_Slow(f"the request did not arrive within {PARTIAL_SECONDS:g} s"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Slow(RequestError):
    """The request did not arrive in time."""

    code, status = "request.too_slow", 408


class _HeadTooLarge(RequestError):
    """The request's line and headers are larger than this server takes."""

    code, status = "request.head_too_large", 431


def _defect(problem: BaseException) -> Response:
    if isinstance(problem, AEnvError):
        return failure(problem)
    logger.error("a request ended in a defect of the server", exc_info=problem)
    return failure(InternalError("the sandbox server failed to answer", hint="see the instance log, and report it"))


def _header_table(raw: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name; those that came more than once are joined as RFC 9110 says."""
    table = {_header_name(name): value.decode("latin-1").rstrip(" \t") for name, value in raw}
    if len(table) < len(raw):
        table.clear()
        for name, value in raw:
            key, text = _header_name(name), value.decode("latin-1").rstrip(" \t")
            table[key] = f"{table[key]}, {text}" if key in table else text
    return table


@lru_cache(maxsize=256)
def _header_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the request body is larger than {limit} bytes", hint="send less, or raise --max-body", limit=limit
    )
