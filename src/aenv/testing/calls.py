"""The smallest HTTP caller that reaches a sandbox: one request on a connection of its own, standard library only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

PATIENCE = 60.0
_PIECE = 1 << 16


class Answer(NamedTuple):
    """One response, its body read."""

    status: int
    body: bytes

    @property
    def envelope(self) -> dict[str, object]:
        """The JSON object that every plain HTTP answer is."""
        read: dict[str, object] = json.loads(self.body)
        return read

    @property
    def result(self) -> object:
        """What the envelope of a success holds."""
        assert self.envelope["success"] is True, self.envelope
        return self.envelope["data"]


async def ask(address: str, method: str, path: str, body: object = None, *, patience: float = PATIENCE) -> Answer:
    """Send one request to `unix:/path` or `http://host:port`; OSError when nobody is there or they hang up."""
    async with asyncio.timeout(patience):
        reader, writer = await _connect(address)
        try:
            payload = b"" if body is None else json.dumps(body).encode()
            head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
            writer.write(head.encode() + payload)
            await writer.drain()
            return _read(await _everything(reader))
        finally:
            writer.close()


async def call(address: str, tool: str, arguments: Mapping[str, object], *, patience: float = PATIENCE) -> object:
    """Call a tool and return its result."""
    return (await ask(address, "POST", f"/tools/{tool}", arguments, patience=patience)).result


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    parts = urlsplit(address)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def _everything(reader: asyncio.StreamReader) -> bytes:
    pieces: list[bytes] = []
    while piece := await reader.read(_PIECE):
        pieces.append(piece)
    return b"".join(pieces)


def _read(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if "content-length" not in headers or len(body) < int(headers["content-length"]):
        raise ConnectionResetError(f"the sandbox hung up after {len(raw)} bytes")
    return Answer(int(lines[0].split()[1]), body)
