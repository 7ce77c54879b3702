"""What proxy clients say, HTTP/1.1 or SOCKS5, read from a stream that nobody trusts; egress.py acts on it."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import StreamReader, StreamWriter
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from aenv.engines.local.allow import Address, Target, parse_target, settle_address, settle_host

CHUNK = 65_536
"""Bytes read at once; also the longest line."""
HEAD_BYTES = 32_768
HEAD_SECONDS = 15.0
"""How long a client may take to say what it wants."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e\x80-\xff]+) (HTTP/1\.[01])\r?\n")
_STATUS = re.compile(rb"(HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n\0]*)?)\r?\n")
# Spaces are stripped afterwards: a pattern that does it tries every way to share them out, and a client may send many.
_FIELD = re.compile(rb"(" + _TOKEN + rb"+):([^\r\n\0]*)\r?\n")
_ABSOLUTE = re.compile(rb"(?i:http)://([^/?#]*)([^#]*)")
# What speaks of one connection only (RFC 9110, 7.6.1).
_HOP = {
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"),
    b"upgrade",
}
# Never dropped, even when named in Connection: bodies are passed on as they are, so their framing is too.
_KEPT = {b"transfer-encoding", b"content-length", b"host"}


class Pair(NamedTuple):
    """Both halves of a connection."""

    reader: StreamReader
    writer: StreamWriter


class Refusal(Exception):
    """Why a client gets no connection, in the words of HTTP and of SOCKS."""

    def __init__(self, status: str, socks: int, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        body = json.dumps({"error": message, "code": code, "hint": hint}).encode() + b"\n"
        fields = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.http = f"HTTP/1.1 {status}\r\n{fields}".encode() + body
        self.socks = bytes([5, socks, 0, 1]) + bytes(6)


def _malformed(message: str, *, status: str = "400 Bad Request", socks: int = 1) -> Refusal:
    hint = "this is a proxy: send CONNECT host:port, a request for an http:// URL, or SOCKS5 without a password"
    return Refusal(status, socks, "network.malformed", message, hint)


def unreachable(message: str, *, status: str = "502 Bad Gateway", socks: int = 4) -> Refusal:
    """The answer when a host is allowed but gives no connection."""
    return Refusal(status, socks, "network.unreachable", message, "try again later, or another host")


class Request(NamedTuple):
    """What a client wants: a tunnel, or one HTTP request passed on."""

    target: Target
    reply: bytes
    """What it is told when the connection stands."""
    head: bytes = b""
    """What is sent on before the client's own bytes; none for a tunnel."""
    length: int | None = None
    """How many bytes follow the head, if that is known."""


class Head(NamedTuple):
    """First line and fields of a request or response, hop-by-hop fields left out."""

    first: re.Match[bytes]
    fields: list[tuple[bytes, bytes]]

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key.lower() == name]

    def to_bytes(self, first: bytes) -> bytes:
        """As it is sent on. Each connection carries one request, so no client mistakes the next one's way."""
        return b"\r\n".join([first, *(k + b": " + v for k, v in self.fields), b"Connection: close", b"", b""])


async def read_request(first: bytes, near: Pair) -> Request:
    """What a client wants that began with this byte; Refusal if it cannot be told, or not in time."""
    read = _read_socks if first == b"\x05" else _read_http
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            return await read(first, near)
    except TimeoutError:
        raise _malformed("the request did not come in time", status="408 Request Timeout") from None
    except ValueError as problem:
        raise _malformed(str(problem)) from None


async def _read_http(first: bytes, near: Pair) -> Request:
    head = await _read_head(near.reader, _REQUEST, first)
    method, url, version = head.first.groups()
    if method == b"CONNECT":
        return Request(parse_target(url.decode()), b"HTTP/1.1 200 Connection established\r\n\r\n")
    absolute = _ABSOLUTE.fullmatch(url)
    if absolute is None:
        raise ValueError(f"{url[:200]!r} is not an http:// URL")
    host, path = absolute.groups()
    target = parse_target(host.decode(), default_port=80)
    named = str(target).removesuffix(":80").encode()
    fields = [(b"Host", named), *(each for each in head.fields if each[0].lower() != b"host")]
    line = b"%s %s%s %s" % (method, b"" if path.startswith(b"/") else b"/", path, version)
    return Request(target, b"", head._replace(fields=fields).to_bytes(line), _body_length(head))


async def read_response(reader: StreamReader) -> Head:
    """The head of a response; ValueError if it is none of HTTP."""
    return await _read_head(reader, _STATUS)


async def _read_head(reader: StreamReader, pattern: re.Pattern[bytes], start: bytes = b"") -> Head:
    """Read to the empty line; ValueError at the first line that is none of HTTP."""
    first = pattern.fullmatch(line := start + await _read_line(reader))
    if first is None:
        raise ValueError(f"{line[:200]!r} is no first line of HTTP/1.1")
    fields: list[tuple[bytes, bytes]] = []
    size = len(line)
    while (line := await _read_line(reader)) not in (b"\r\n", b"\n"):
        size += len(line)
        match = _FIELD.fullmatch(line)
        if match is None or size > HEAD_BYTES:
            raise ValueError(f"{line[:200]!r} is not a header field, or the head has more than {HEAD_BYTES} bytes")
        fields.append((match[1], match[2].strip(b" \t")))
    named = {
        word.strip().lower() for key, value in fields if key.lower() == b"connection" for word in value.split(b",")
    }
    dropped = (named | _HOP) - _KEPT
    return Head(first, [(key, value) for key, value in fields if key.lower() not in dropped])


async def _read_line(reader: StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        raise ValueError(f"a line has more than {CHUNK} bytes") from None


def _body_length(head: Head) -> int | None:
    """Bytes that follow the head; None if they say themselves where they end. ValueError if it can be read two ways."""
    codings, lengths = head.values(b"transfer-encoding"), set(head.values(b"content-length"))
    if codings:
        if lengths or [coding.lower() for coding in codings] != [b"chunked"]:
            raise ValueError("the request does not say clearly where its body ends")
        return None
    if len(lengths) > 1 or not all(re.fullmatch(rb"[0-9]{1,18}", length) for length in lengths):
        raise ValueError("the request does not say clearly how long its body is")
    return int(lengths.pop()) if lengths else 0


async def _read_socks(_: bytes, near: Pair) -> Request:
    """RFC 1928, CONNECT without authentication."""
    read = near.reader.readexactly
    methods = await read((await read(1))[0])
    if 0 not in methods:
        refusal = _malformed("SOCKS is spoken without a password only")
        refusal.socks = b"\x05\xff"
        raise refusal
    near.writer.write(b"\x05\x00")
    version, command, _reserved, kind = await read(4)
    if version != 5 or command != 1:
        raise _malformed(f"SOCKS command {command} is not CONNECT", socks=7)
    if kind not in (1, 3, 4):
        raise _malformed(f"SOCKS address type {kind} is unknown", socks=8)
    host: str | Address
    if kind == 1:
        host = IPv4Address(await read(4))
    elif kind == 4:
        host = settle_address(IPv6Address(await read(16)))
    else:
        host = settle_host((await read((await read(1))[0])).decode())
    port = int.from_bytes(await read(2), "big")
    return Request(Target(host, port), bytes([5, 0, 0, 1]) + bytes(6))
