"""Requests, responses and streams of events, as handlers see them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from time import gmtime, time
from typing import Protocol

from aenv._util.jsontext import dumps
from aenv.errors import AEnvError

MAX_BODY = 64 * 2**20
_CONGESTED = 4 * 2**20

_REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


class Response:
    """Status, headers and body of an answer."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        content_type: str = "application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers


def success(data: object, *, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Response:
    """The envelope around a result."""
    return Response(status, dumps({"success": True, "data": data}), headers=headers)


def failure(error: AEnvError, *, data: object = None, headers: Iterable[tuple[str, str]] = ()) -> Response:
    """The envelope around an error, with what there is to say beside it."""
    envelope = {"success": False, **error.to_wire()} | ({} if data is None else {"data": data})
    return Response(error.status, dumps(envelope), headers=headers)


class Client(Protocol):
    """Whoever reads the answer."""

    unsent: int
    """Bytes that wait to be read."""

    def write(self, data: bytes) -> None:
        """Send, or drop if nobody is there any more."""


class Request:
    """One request, complete with its body."""

    __slots__ = ("body", "connection", "headers", "keep_alive", "method", "on_disconnect", "path", "query")

    def __init__(self, connection: Client) -> None:
        self.connection = connection
        self.method = ""
        self.path = ""
        self.query = ""
        self.headers: dict[str, str] = {}
        self.body = b""
        self.keep_alive = True
        self.on_disconnect: Callable[[], None] | None = None

    def open_stream(self, headers: Iterable[tuple[str, str]] = ()) -> EventStream:
        """Answer with server-sent events; the handler then returns None when it has closed the stream."""
        return EventStream(self, headers)


Reply = Response | None
Handler = Callable[[Request], Reply | Awaitable[Reply]]


class EventStream:
    """A response of server-sent events. What is written after the client left is dropped."""

    def __init__(self, request: Request, headers: Iterable[tuple[str, str]] = ()) -> None:
        self._connection = request.connection
        self.is_closed = False
        extra = (("cache-control", "no-cache, no-transform"), ("x-accel-buffering", "no"), *headers)
        head = head_of(200, "text/event-stream", extra, keep_alive=request.keep_alive)
        self._connection.write(head + b"transfer-encoding: chunked\r\n\r\n")

    def send(self, message: bytes) -> None:
        """One `message` event; JSON text has no line breaks, so it is one data line."""
        self._chunk(b"event: message\r\ndata: " + message + b"\r\n\r\n")

    def relay(self, events: bytes) -> None:
        """Events that were written out elsewhere, as they are."""
        self._chunk(events)

    @property
    def is_congested(self) -> bool:
        """Whether the client reads more slowly than it is written to."""
        return self._connection.unsent > _CONGESTED

    def comment(self) -> None:
        """Something to read for whatever closes quiet connections."""
        self._chunk(b":\r\n\r\n")

    def close(self) -> None:
        """End the response; the connection is free for the next request."""
        if not self.is_closed:
            self._connection.write(b"0\r\n\r\n")
            self.is_closed = True

    def _chunk(self, data: bytes) -> None:
        # A chunk of no bytes would end the response.
        if data and not self.is_closed:
            self._connection.write(b"%x\r\n%b\r\n" % (len(data), data))


class InternalError(AEnvError):
    """A defect of ours, not of the author's code."""

    code, status = "server.defect", 500


def head_of(status: int, content_type: str, headers: Iterable[tuple[str, str]], *, keep_alive: bool) -> bytes:
    """The head of a response, up to what says how long its body is."""
    start = _start(int(time()), status, content_type, keep_alive)
    extra = "".join([f"{name}: {value}\r\n" for name, value in headers])
    return start + extra.encode("latin-1") if extra else start


@lru_cache(maxsize=64)
def _start(second: int, status: int, content_type: str, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\ndate: {_date(second)}\r\n"]
    if content_type:
        lines.append(f"content-type: {content_type}\r\n")
    if not keep_alive:
        lines.append("connection: close\r\n")
    return "".join(lines).encode("latin-1")


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def _date(second: int) -> str:
    """The Date header's value; strftime would speak the author's locale."""
    at = gmtime(second)
    clock = f"{at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d}"
    return f"{_DAYS[at.tm_wday]}, {at.tm_mday:02d} {_MONTHS[at.tm_mon - 1]} {at.tm_year} {clock} GMT"
