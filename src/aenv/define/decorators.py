"""`@register_tool`, `@register_reward`, `@register_function`, `@register_health`: bare or called, sync or async.

And `@register_fork`, which is bare, sync, and asked when a running environment is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from aenv.define.registry import get_registry

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Callable[[], object])


@overload
def register_tool(function: F, /) -> F: ...
@overload
def register_tool(
    *,
    name: str | None = None,
    description: str | None = None,
    annotations: Mapping[str, object] | None = None,
    timeout: float | None = None,
    input_schema: Mapping[str, Any] | None = None,
) -> Callable[[F], F]: ...
def register_tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    annotations: Mapping[str, object] | None = None,
    timeout: float | None = None,
    input_schema: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Make a function a tool that agents call over MCP.

    Args:
        name: Its name on the wire; the function's own otherwise.
        description: What a language model reads; the docstring otherwise.
        annotations: MCP hints: title, readOnlyHint, destructiveHint, idempotentHint, openWorldHint.
        timeout: Seconds after which a call is reported as timed out.
        input_schema: A JSON Schema to publish instead of the one from the annotations, for a function that takes
            `**kwargs` on behalf of something that has a schema already. Arguments are checked by the function alone.
    """

    def register(target: F) -> F:
        get_registry().add_tool(
            target,
            name=name,
            description=description,
            annotations=annotations,
            timeout=timeout,
            input_schema=input_schema,
        )
        return target

    return register if function is None else register(function)


@overload
def register_reward(function: F, /) -> F: ...
@overload
def register_reward(
    *, name: str | None = None, description: str | None = None, default: bool = False, timeout: float | None = None
) -> Callable[[F], F]: ...
def register_reward(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    default: bool = False,
    timeout: float | None = None,
) -> Callable[..., Any]:
    """Make a function a reward at `/task/reward/{name}`; the default one, or the first, is also at `/task/reward`."""

    def register(target: F) -> F:
        get_registry().add_reward(target, name=name, description=description, default=default, timeout=timeout)
        return target

    return register if function is None else register(function)


@overload
def register_function(function: F, /) -> F: ...
@overload
def register_function(
    *,
    endpoint: str | None = None,
    method: str = "POST",
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def register_function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    endpoint: str | None = None,
    method: str = "POST",
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Callable[..., Any]:
    """Make a function an HTTP endpoint, at `/functions/{name}` unless `endpoint` names a path such as `/items/{id}`."""

    def register(target: F) -> F:
        get_registry().add_function(
            target, name=name, description=description, endpoint=endpoint, method=method, timeout=timeout
        )
        return target

    return register if function is None else register(function)


@overload
def register_health(function: F, /) -> F: ...
@overload
def register_health(
    *, name: str | None = None, description: str | None = None, timeout: float | None = None
) -> Callable[[F], F]: ...
def register_health(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Callable[..., Any]:
    """Let a function decide what `/health` answers: True, None or a dictionary with a healthy `status` is healthy."""

    def register(target: F) -> F:
        get_registry().set_health(target, name=name, description=description, timeout=timeout)
        return target

    return register if function is None else register(function)


def register_fork(function: H, /) -> H:
    """Have a function called around every copy of the running environment, to end and begin anew what cannot be copied.

    Memory and files are copied as they are. Threads, child processes, connections and pipes cannot be, and with any of
    them a copy is refused. A generator function takes them away before its `yield`, in the source, and brings them
    back after it, in both; `yield` gives "source" or "copy". A plain function is called in the source alone, before.

        @register_fork
        def on_fork():
            database.close()
            where = yield
            database.open()

    No call runs meanwhile. Of several, the parts before `yield` run in the order of registration, those after it in
    the opposite order. One that raises before its `yield` refuses the copy. None may be async.
    """
    get_registry().add_fork_hook(function)
    return function
