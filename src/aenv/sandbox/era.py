"""Which revision of MCP a request speaks, and whether its headers and its body agree about it.

Revision 2026-07-28 ("modern") carries version, client and capabilities with every request and knows no sessions. The
older ones ("legacy") open a session with `initialize`. One endpoint serves both; a request tells its era itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from aenv.sandbox.jsonrpc import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    UNSUPPORTED_VERSION,
    Message,
    RpcError,
)

MODERN = "2026-07-28"
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
SUPPORTED = (MODERN, *LEGACY)

PREFIX = "io.modelcontextprotocol/"
VERSION_KEY = f"{PREFIX}protocolVersion"
CAPABILITIES_KEY = f"{PREFIX}clientCapabilities"
LOG_LEVEL_KEY = f"{PREFIX}logLevel"
SUBSCRIPTION_KEY = f"{PREFIX}subscriptionId"
SERVER_KEY = f"{PREFIX}serverInfo"

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def check_media(headers: Mapping[str, str]) -> None:
    """Refuse a body that is not said to be JSON, and a client that can read none of our answers."""
    if not _is_json(headers.get("content-type", "")):
        raise RpcError(INVALID_REQUEST, "Invalid Content-Type header: send application/json")
    if not _is_acceptable(headers.get("accept", "*/*")):
        raise RpcError(INVALID_REQUEST, "accept application/json and text/event-stream", status=406)


@lru_cache(maxsize=64)
def _is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


@lru_cache(maxsize=64)
def _is_acceptable(accept: str) -> bool:
    return any(kind in accept for kind in ("application/json", "text/event-stream", "application/*", "*/*"))


def is_modern(headers: Mapping[str, str], message: Message) -> bool:
    """Whether the request is to be read by the rules of 2026-07-28."""
    return headers.get("mcp-protocol-version") == MODERN or VERSION_KEY in message.meta


def check_legacy(headers: Mapping[str, str]) -> None:
    """Refuse a version header that names no revision we speak."""
    version = headers.get("mcp-protocol-version")
    if version is not None and version not in SUPPORTED:
        raise _unsupported(version)


def check_modern(headers: Mapping[str, str], message: Message) -> None:
    """Refuse a request whose headers are missing, or say something else than its body."""
    declared = headers.get("mcp-protocol-version")
    version = message.meta.get(VERSION_KEY)
    if version is None:
        raise RpcError(INVALID_PARAMS, f"params._meta needs {VERSION_KEY!r}")
    if declared != version:
        raise _mismatch("MCP-Protocol-Version", declared, version)
    if version != MODERN:
        raise _unsupported(version)
    if not isinstance(message.meta.get(CAPABILITIES_KEY), dict):
        raise RpcError(INVALID_PARAMS, f"params._meta needs {CAPABILITIES_KEY!r}, an object")
    if headers.get("mcp-method") != message.method:
        raise _mismatch("Mcp-Method", headers.get("mcp-method"), message.method)
    field = _NAMED.get(message.method or "")
    if field is not None and decoded(headers.get("mcp-name")) != message.params.get(field):
        raise _mismatch("Mcp-Name", headers.get("mcp-name"), message.params.get(field))


def check_log_level(level: object) -> str:
    """A level that MCP knows."""
    if level not in LEVELS:
        raise RpcError(INVALID_PARAMS, f"log level {level!r} is not one of {', '.join(LEVELS)}")
    return str(level)


def mirrored_parameters(schema: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The parameters that a tool's schema marks with `x-mcp-header`: header name -> path in the arguments."""
    found: dict[str, tuple[str, ...]] = {}
    for name, child in schema.get("properties", {}).items():
        if not isinstance(child, dict):
            continue
        if isinstance(child.get("x-mcp-header"), str):
            found[f"mcp-param-{child['x-mcp-header'].lower()}"] = (*path, name)
        found |= mirrored_parameters(child, (*path, name))
    return found


def check_mirrored(headers: Mapping[str, str], mirrored: Mapping[str, tuple[str, ...]], arguments: Any) -> None:
    """Refuse a call whose mirrored headers do not say what its arguments say."""
    for header, path in mirrored.items():
        value = arguments
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        given = headers.get(header)
        if not _agree(decoded(given), value):
            raise _mismatch(header, given, value)


def _agree(given: str | None, value: object) -> bool:
    if value is None or given is None:
        return given is None and value is None
    if isinstance(value, bool):
        return given == str(value).lower()
    if isinstance(value, int | float):
        try:
            return float(given) == float(value)
        except ValueError:
            return False
    return given == value


def decoded(value: str | None) -> str | None:
    """A header's value, out of its Base64 wrapping if it has one."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return base64.b64decode(value[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise RpcError(HEADER_MISMATCH, f"header value {value!r} is not Base64 of UTF-8 text") from None


def _mismatch(header: str, given: object, wanted: object) -> RpcError:
    said = "is missing" if given is None else f"is {given!r}"
    return RpcError(HEADER_MISMATCH, f"header mismatch: {header} {said}, the body says {wanted!r}")


def _unsupported(version: object) -> RpcError:
    data = {"supported": list(SUPPORTED), "requested": version}
    return RpcError(UNSUPPORTED_VERSION, f"unsupported protocol version {version!r}", data=data)
