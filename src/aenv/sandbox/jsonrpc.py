"""JSON-RPC 2.0 messages as MCP uses them."""

from __future__ import annotations

from typing import Any, NamedTuple

from aenv._util.jsontext import JSONDecodeError, dumps, loads

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
REQUEST_CANCELLED = -32800


class RpcError(Exception):
    """A protocol error: what JSON-RPC reports in place of a result, with the HTTP status it travels under."""

    def __init__(self, code: int, message: str, *, status: int = 400, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.data = data


class Message(NamedTuple):
    """A request (with an id), a notification (without), or a response to one of ours (no method)."""

    method: str | None
    id: str | int | None
    params: dict[str, Any]
    meta: dict[str, Any]


def parse(body: bytes) -> Message:
    """The one message of a request body; RpcError when it is none."""
    try:
        raw = loads(body)
    except JSONDecodeError as problem:
        raise RpcError(PARSE_ERROR, f"the body is not JSON: {problem}") from None
    if not isinstance(raw, dict):
        raise RpcError(INVALID_REQUEST, "the body must be one JSON-RPC message; batches are not part of MCP")
    if raw.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'a message needs "jsonrpc": "2.0"')
    params = _params(raw)
    meta = params.get("_meta")
    return Message(_method(raw), _id(raw), params, meta if isinstance(meta, dict) else {})


def _method(raw: dict[str, Any]) -> str | None:
    method = raw.get("method")
    if isinstance(method, str):
        return method
    if method is None and ("result" in raw or "error" in raw):
        return None
    raise RpcError(INVALID_REQUEST, "a message needs a method")


def _id(raw: dict[str, Any]) -> str | int | None:
    if "id" not in raw:
        return None
    value = raw["id"]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RpcError(INVALID_REQUEST, "a request's id is text or a whole number")
    return value


def _params(raw: dict[str, Any]) -> dict[str, Any]:
    params = raw.get("params", {})
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "params must be an object")
    return params


def known_id(body: bytes) -> str | int | None:
    """The id of a message that was refused, as far as it can be made out."""
    try:
        raw = loads(body)
    except JSONDecodeError:
        return None
    value = raw.get("id") if isinstance(raw, dict) else None
    return value if isinstance(value, str | int) and not isinstance(value, bool) else None


def result(id_: str | int | None, value: object) -> bytes:
    """A response that carries a result."""
    return dumps({"jsonrpc": "2.0", "id": id_, "result": value})


def error(id_: str | int | None, problem: RpcError) -> bytes:
    """A response that carries an error."""
    body: dict[str, object] = {"code": problem.code, "message": problem.message}
    if problem.data is not None:
        body["data"] = problem.data
    return dumps({"jsonrpc": "2.0", "id": id_, "error": body})


def notification(method: str, params: object) -> bytes:
    """A message that expects no answer."""
    return dumps({"jsonrpc": "2.0", "method": method, "params": params})
