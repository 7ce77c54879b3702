"""The opt-in MCP endpoint: the official `mcp` package answers `/mcp`, the sandbox server does everything else.

The package is an ASGI application and lives on an asyncio loop in a thread of its own. Requests come to it from the
server's loop and its answers go back there; tool calls come back as well, to the one executor. So time-outs, call ids,
plain HTTP, origin checks, limits and the way the server starts and ends are those of the core, whoever speaks MCP.

The only module that imports `mcp`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mcp.server import MCPServer, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    ListToolsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    SetLevelRequestParams,
)

from aenv._util.jsontext import dumps
from aenv.define.load import author_traceback
from aenv.define.registry import Registry, Tool, current_registry
from aenv.errors import AEnvError, ConfigError, LoadError
from aenv.sandbox import era
from aenv.sandbox.asgi import Application, AsyncioThread, Exchange, Tell
from aenv.sandbox.encode import Result, to_json
from aenv.sandbox.endpoint import Identity, Options
from aenv.sandbox.execute import Call, Executor
from aenv.sandbox.http import InternalError, Reply, Request, failure
from aenv.sandbox.jsonrpc import RpcError
from aenv.sandbox.loop import start
from aenv.sandbox.mcp import SESSION_HEADER
from aenv.sandbox.present import CallersFault, failed, protocol_error, read_wishes, said, shown, unknown
from aenv.sandbox.sessions import Session, Sessions

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.001
"""How long a thread may keep the interpreter while another wants it. Two busy loops wait for each other at every system
call: with Python's 5 ms, 16 clients got 550 calls a second; with 1 ms they got 800, and /health half the delay."""
MOST_WAITING = 1000
"""Progress and log messages of one call that may wait for a slow client; further ones are dropped."""
_FRESH = CacheHint(ttl_ms=60_000, scope="public")


class Official:
    """Answers requests to `/mcp` in the words of the official package, from one registry through one executor."""

    def __init__(self, executor: Executor, options: Options) -> None:
        sys.setswitchinterval(min(SWITCH_SECONDS, sys.getswitchinterval()))
        registry = executor.registry
        self._loop = executor.loop
        self._standing: set[Exchange] = set()
        self._news = InMemorySubscriptionBus()
        self._thread = AsyncioThread(registry)
        server = _server(options.identity, self._news)
        tools = _Tools(server, executor, self._thread.tell)
        _extend(server, registry, options.project)
        self._application = _application(server, options.max_body)
        self._thread.start(server.session_manager.run, tools.check)
        registry.on_change(self._tools_changed)

    # on the server's loop

    async def handle(self, request: Request) -> Reply:
        """Have the package answer."""
        exchange = Exchange(request, self._application, self._loop, self._thread.tell)
        if not self._thread.spawn(exchange.run):
            return failure(InternalError("the official MCP server has ended", hint="see the log"))
        request.on_disconnect = exchange.hang_up
        if exchange.is_standing:
            self._standing.add(exchange)
        reply = await exchange.reply
        self._standing.discard(exchange)
        return reply

    def close(self) -> None:
        """Let the clients that wait for news go."""
        for exchange in self._standing:
            exchange.hang_up()

    def end(self) -> None:
        """End the thread, whatever runs in it."""
        self._thread.end()

    def _tell_change(self) -> None:
        for exchange in self._standing:
            exchange.tell_change()

    # from whatever thread registered a tool

    def _tools_changed(self) -> None:
        self._thread.spawn(self._news.publish, ToolsListChanged())
        self._loop.post(self._tell_change)


def _server(identity: Identity, news: InMemorySubscriptionBus) -> MCPServer:
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        # It tells of every session and every message: too much for an instance log.
        for name in ("mcp", "sse_starlette"):
            logging.getLogger(name).setLevel(logging.WARNING)
    return MCPServer(
        identity.name,
        version=identity.version,
        instructions=identity.description,
        subscriptions=news,
        cache_hints={"tools/list": _FRESH, "server/discover": _FRESH},
        middleware=[_announce_changes],
    )


async def _announce_changes(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Say in the older revisions' handshake, too, that the list of tools may change."""
    result = await call_next(ctx)
    if ctx.method == "initialize" and isinstance(result, dict):
        result["capabilities"]["tools"]["listChanged"] = True
    return result


def _extend(server: MCPServer, registry: Registry, project: Path | None) -> None:
    token = current_registry.set(registry)
    try:
        for extend in registry.mcp_extensions:
            extend(server)
    except AEnvError:
        raise
    except Exception as problem:
        raise LoadError(
            f"@extend_mcp {extend.__name__}: {type(problem).__name__}: {problem}",
            traceback=author_traceback(problem, project),
        ) from problem
    finally:
        current_registry.reset(token)


def _application(server: MCPServer, max_body: int) -> Application:
    """The package's ASGI application for `/mcp`. Host and Origin were checked before a request gets there."""
    unguarded = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = server.streamable_http_app(transport_security=unguarded, max_request_body_size=max_body)
    strangers = [path for route in app.routes if (path := getattr(route, "path", "")) != "/mcp"]
    if strangers:
        raise ConfigError(
            f"@extend_mcp added the route {strangers[0]!r}, and the official server is asked for /mcp alone",
            hint=f"write @register_function(endpoint={strangers[0]!r}) instead of @server.custom_route",
        )
    handle: Application = server.session_manager.handle_request
    return handle


class _Note(NamedTuple):
    """What a tool says while it runs."""

    method: str
    params: dict[str, Any]


class _Outcome(NamedTuple):
    """How a call ended."""

    result: Result | None
    problem: BaseException | None


class _Tools:
    """The registry's tools beside those that the author gave the official server itself."""

    def __init__(self, server: MCPServer, executor: Executor, tell: Tell) -> None:
        self._server = server
        self._registry = executor.registry
        self._executor = executor
        self._loop = executor.loop
        self._tell = tell
        self._levels = Sessions()
        # There is no public way to a request handler in 2.x; the package's own examples reach for this attribute.
        handlers = server._lowlevel_server  # noqa: SLF001
        others = handlers.get_request_handler("tools/call")
        assert others is not None
        self._call_other: Callable[..., Awaitable[HandlerResult]] = others.handler
        handlers.add_request_handler("tools/list", PaginatedRequestParams, self._list)
        handlers.add_request_handler("tools/call", CallToolRequestParams, self._call)
        handlers.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        # Absent before 2.3, where the package looks the schema up in tools/list.
        self._schema_of_other: Callable[[str], Any] = getattr(handlers, "get_tool_input_schema", None) or _no_schema
        handlers.get_tool_input_schema = self._schema

    async def check(self) -> None:
        """Refuse a name that would mean two tools."""
        for tool in await self._server.list_tools():
            if tool.name in self._registry.tools:
                raise ConfigError(
                    f"the tool {tool.name!r} is registered with @register_tool and with @server.tool",
                    hint="give one of them another name",
                )

    def _schema(self, name: str) -> Mapping[str, Any] | None:
        tool = self._registry.find_tool(name)
        schema: Mapping[str, Any] | None = self._schema_of_other(name) if tool is None else tool.input_schema
        return schema

    async def _list(self, ctx: ServerRequestContext, params: PaginatedRequestParams) -> ListToolsResult:
        if params.cursor is not None:
            raise MCPError(INVALID_PARAMS, "unknown cursor: the list has one page")
        own = ListToolsResult.model_validate({"tools": [tool.to_mcp() for tool in self._registry.visible_tools()]})
        return ListToolsResult(tools=[*own.tools, *await self._server.list_tools()])

    async def _set_level(self, ctx: ServerRequestContext, params: SetLevelRequestParams) -> EmptyResult:
        if (id_ := _header(ctx, SESSION_HEADER)) is not None:
            self._levels.add(Session(id_, ctx.protocol_version, log_level=params.level))
        return EmptyResult()

    async def _call(self, ctx: ServerRequestContext, params: CallToolRequestParams) -> HandlerResult:
        tool = self._registry.find_tool(params.name)
        if tool is None:
            return await self._not_ours(ctx, params)
        try:
            value = shown(tool, await self._run(ctx, tool, params.arguments))
        except CallersFault as problem:
            raise _as_theirs(protocol_error(problem)) from None
        except AEnvError as problem:
            value = failed(tool, problem)
        return CallToolResult.model_validate_json(dumps(value))

    async def _not_ours(self, ctx: ServerRequestContext, params: CallToolRequestParams) -> HandlerResult:
        others = [tool.name for tool in await self._server.list_tools()]
        if params.name in others:
            return await self._call_other(ctx, params)
        text = unknown(params.name, [*self._registry.tools, *others])
        if _is_modern(ctx):
            raise MCPError(INVALID_PARAMS, text)
        return CallToolResult.model_validate(said(text))

    async def _run(self, ctx: ServerRequestContext, tool: Tool, arguments: dict[str, Any] | None) -> Result:
        """Have the executor run it on the server's loop; pass on what it says, in order, and how it ends."""
        inbox: asyncio.Queue[_Note | _Outcome] = asyncio.Queue()
        call = self._read(ctx, tool, arguments, inbox)
        cancels: list[Callable[[], None]] = []

        def ended(result: Result | None, problem: BaseException | None) -> None:
            self._tell(inbox.put_nowait, _Outcome(result, problem))

        def give_up() -> None:
            for cancel in cancels:
                cancel()

        self._loop.post(lambda: start(self._executor.call(call, cancels.append), ended))
        is_over = False
        try:
            while isinstance(said := await inbox.get(), _Note):
                await _say(ctx, said)
            is_over = True
        finally:
            # In the newest revision a client that hangs up means it; one that named its call may come back for it.
            if not is_over and not (_is_modern(ctx) and call.call_id is not None):
                self._loop.post(give_up)
        if said.problem is not None:
            raise said.problem
        assert said.result is not None
        return said.result

    def _read(
        self,
        ctx: ServerRequestContext,
        tool: Tool,
        arguments: dict[str, Any] | None,
        inbox: asyncio.Queue[_Note | _Outcome],
    ) -> Call:
        meta = (ctx.params or {}).get("_meta") or {}
        try:
            wishes = read_wishes(meta, _header(ctx, "idempotency-key"))
        except RpcError as problem:
            raise _as_theirs(problem) from None
        levels = self._wanted_levels(ctx, meta)
        wants_progress = meta.get("progressToken") is not None

        def notify(method: str, params: dict[str, object]) -> None:
            """From the tool's own thread; refused values raise there."""
            is_wanted = wants_progress if method == "notifications/progress" else params["level"] in levels
            if is_wanted:
                self._tell(_offer, inbox, _Note(method, to_json(params, "notification")))

        capabilities = ctx.session.client_capabilities
        declared = {} if capabilities is None else capabilities.model_dump(by_alias=True, exclude_none=True)
        return Call(tool, arguments or {}, *wishes, notify, declared)

    def _wanted_levels(self, ctx: ServerRequestContext, meta: Mapping[str, Any]) -> tuple[str, ...]:
        if _is_modern(ctx):
            level = meta.get(era.LOG_LEVEL_KEY)
        else:
            session = self._levels.get(_header(ctx, SESSION_HEADER) or "")
            level = "debug" if session is None else session.log_level
        return () if level is None else era.LEVELS[era.LEVELS.index(level) :]


def _as_theirs(problem: RpcError) -> MCPError:
    return MCPError(problem.code, problem.message, problem.data)


def _no_schema(name: str) -> None:
    """The package knows none."""


def _offer(inbox: asyncio.Queue[_Note | _Outcome], note: _Note) -> None:
    if inbox.qsize() < MOST_WAITING:
        inbox.put_nowait(note)


async def _say(ctx: ServerRequestContext, note: _Note) -> None:
    if note.method == "notifications/progress":
        await ctx.session.report_progress(**note.params)
        return
    message = LoggingMessageNotification(params=LoggingMessageNotificationParams.model_validate(note.params))
    await ctx.session.send_notification(message, related_request_id=ctx.request_id)


def _is_modern(ctx: ServerRequestContext) -> bool:
    return bool(ctx.protocol_version == era.MODERN)


def _header(ctx: ServerRequestContext, name: str) -> str | None:
    value: str | None = None if ctx.request is None else ctx.request.headers.get(name)
    return value
