"""How the engine and its supervisor talk: JSON with bytes beside it, framed by their lengths, over one stream."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from aenv._util import jsontext

_HEAD = struct.Struct("<II")
_LARGEST = 1 << 30

Message = dict[str, Any]


class Frame(NamedTuple):
    """One message, and the bytes that belong to it."""

    message: Message
    blob: bytes


def encode(message: Message, blob: bytes = b"") -> bytes:
    """As it goes over the wire."""
    text = jsontext.dumps(message)
    return b"".join((_HEAD.pack(len(text), len(blob)), text, blob))


class Decoder:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, part: bytes) -> list[Frame]:
        """The frames that are whole now; ValueError when this is no stream of ours."""
        self._buffer += part
        frames = []
        place = 0
        while len(self._buffer) - place >= _HEAD.size:
            text_size, blob_size = _HEAD.unpack_from(self._buffer, place)
            if text_size + blob_size > _LARGEST:
                raise ValueError(f"a frame of {text_size + blob_size} bytes")
            start = place + _HEAD.size
            end = start + text_size + blob_size
            if len(self._buffer) < end:
                break
            text = bytes(self._buffer[start : start + text_size])
            frames.append(Frame(jsontext.loads(text), bytes(self._buffer[start + text_size : end])))
            place = end
        del self._buffer[:place]
        return frames
