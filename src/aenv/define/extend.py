"""`@extend_mcp`: what the built-in MCP server leaves out, given to the official one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from aenv.define.registry import get_registry
from aenv.errors import DefinitionError

F = TypeVar("F", bound=Callable[[Any], object])


def extend_mcp(function: F, /) -> F:
    """Have a function called once, at start, with the official `mcp.server.MCPServer`.

    It adds what the built-in server has no word for: `@server.prompt()`, `@server.resource("…")`,
    `@server.completion()`, and `@server.tool()` for tools that ask their client something while they run.
    A project that uses it needs `"mcpRuntime": "official"` in `deployConfig.sandbox`.
    """
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
        raise DefinitionError(
            f"{function!r} cannot extend the MCP server", hint="write @extend_mcp directly above a plain `def`"
        )
    get_registry().mcp_extensions.append(function)
    return function
