"""Whether a server that says nothing by itself answers yet."""

from __future__ import annotations

import asyncio

_REST_SECONDS = 0.01
_LONGEST_REST = 0.25
_REQUEST = b"GET /health HTTP/1.1\r\nhost: aenv\r\nconnection: close\r\n\r\n"


async def until_healthy(path: str) -> None:
    """Ask the server on this unix socket for `/health` until it answers 200; the caller sets the deadline."""
    rest = _REST_SECONDS
    while not await _is_healthy(path):
        # It tells nobody when it is ready.
        await asyncio.sleep(rest)
        rest = min(_LONGEST_REST, rest * 1.5)


async def _is_healthy(path: str) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(_REQUEST)
            return b" 200 " in await reader.readline()
        finally:
            writer.close()
    except OSError:
        return False
