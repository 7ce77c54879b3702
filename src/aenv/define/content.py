"""What a tool returns when JSON is not enough: images, audio, files."""

from __future__ import annotations

import base64
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Self


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: `Image(png_bytes)`, `Image(data, "image/jpeg")` or `Image.from_file("plot.png")`."""

    data: bytes
    mime_type: str = "image/png"

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read it, and tell its type by the file's ending."""
        path = Path(path)
        return cls(path.read_bytes(), mimetypes.guess_type(path.name)[0] or "image/png")

    def to_block(self) -> dict[str, object]:
        """The MCP content block."""
        return {"type": "image", "data": _b64(self.data), "mimeType": self.mime_type}


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound: `Audio(wav_bytes)` or `Audio(data, "audio/mpeg")`."""

    data: bytes
    mime_type: str = "audio/wav"

    def to_block(self) -> dict[str, object]:
        """The MCP content block."""
        return {"type": "audio", "data": _b64(self.data), "mimeType": self.mime_type}


@dataclass(frozen=True, slots=True)
class File:
    """A document that travels inside the result, text or bytes, under a URI of its own."""

    uri: str
    content: str | bytes
    mime_type: str | None = None

    def to_block(self) -> dict[str, object]:
        """The MCP embedded-resource block."""
        resource: dict[str, object] = {"uri": self.uri}
        if self.mime_type is not None:
            resource["mimeType"] = self.mime_type
        if isinstance(self.content, str):
            resource["text"] = self.content
        else:
            resource["blob"] = _b64(self.content)
        return {"type": "resource", "resource": resource}


Content = Image | Audio | File
