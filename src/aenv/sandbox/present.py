"""Tool calls as MCP writes them: what a client may ask beside the arguments, results, failures, protocol errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aenv._util.nearest import did_you_mean
from aenv.define.context import MissingCapability
from aenv.define.registry import Tool
from aenv.errors import AEnvError, CallConflict, CallForgotten, ToolCancelled, ToolFailed
from aenv.sandbox import jsonrpc
from aenv.sandbox.encode import Result, fragment, text_of
from aenv.sandbox.journal import CALL_ID_ALLOWED, is_call_id
from aenv.sandbox.jsonrpc import RpcError

CALL_ID_KEY = "aenv/callId"
TIMEOUT_KEY = "aenv/timeout"
ERROR_KEY = "aenv/error"

CallersFault = (MissingCapability, CallConflict, CallForgotten, ToolCancelled)
"""What is answered as a protocol error: no model could do anything about it."""


class Wishes(NamedTuple):
    """What a caller asks of one call."""

    call_id: str | None
    timeout: float | None


def read_wishes(meta: Mapping[str, Any], idempotency_key: str | None) -> Wishes:
    """From the request's `_meta`, or the header that means the same; RpcError when they cannot be meant."""
    call_id = meta.get(CALL_ID_KEY, idempotency_key)
    if call_id is not None and not is_call_id(call_id):
        raise RpcError(jsonrpc.INVALID_PARAMS, f"{CALL_ID_KEY!r} must be {CALL_ID_ALLOWED}")
    timeout = meta.get(TIMEOUT_KEY)
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
        raise RpcError(jsonrpc.INVALID_PARAMS, f"{TIMEOUT_KEY!r} must be seconds above zero")
    return Wishes(call_id, timeout)


def shown(tool: Tool, result: Result) -> dict[str, Any]:
    """The result as MCP shows it: text for the model, structured content for the program."""
    if result.blocks is not None:
        return {"content": result.blocks, "isError": False}
    value = result.value
    shown: dict[str, Any] = {"content": [] if value is None else [{"type": "text", "text": text_of(value)}]}
    if isinstance(value, dict) and not tool.signature.wraps_result:
        shown["structuredContent"] = fragment(result)
    elif value is not None or tool.signature.wraps_result:
        shown["structuredContent"] = {"result": fragment(result)}
    shown["isError"] = False
    return shown


def failed(tool: Tool, problem: AEnvError) -> dict[str, Any]:
    """A failure as a result that the model can read, with all that is known of it for the program."""
    if isinstance(problem, ToolFailed):
        text = f"Error calling tool {tool.name!r}: {problem.message}"
    else:
        text = problem.message if problem.hint is None else f"{problem.message} (hint: {problem.hint})"
    return {**said(text), "_meta": {ERROR_KEY: problem.to_wire()}}


def said(text: str) -> dict[str, Any]:
    """A sentence for the model in place of a result."""
    return {"content": [{"type": "text", "text": text}], "isError": True}


def unknown(name: object, names: Mapping[str, object] | list[str]) -> str:
    """What is said of a tool that is not there."""
    near = did_you_mean(str(name), names)
    return f"Unknown tool: {str(name)[:200]}" + (f" ({near})" if near else "")


def protocol_error(problem: AEnvError) -> RpcError:
    """One of CallersFault as JSON-RPC reports it."""
    if isinstance(problem, MissingCapability):
        needed: object = {"requiredCapabilities": {str(problem.details["capability"]): {}}}
        return RpcError(jsonrpc.MISSING_CAPABILITY, problem.message, data=needed)
    if isinstance(problem, ToolCancelled):
        return RpcError(jsonrpc.REQUEST_CANCELLED, problem.message, status=200)
    return RpcError(jsonrpc.INVALID_PARAMS, problem.message, status=problem.status, data=problem.to_wire())
