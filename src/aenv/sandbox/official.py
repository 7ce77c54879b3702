"""The opt-in MCP endpoint: the official `mcp` package answers `/mcp`, the sandbox server does everything else.

The package is an ASGI application and lives on an asyncio loop in a thread of its own. Requests come to it from the
server's loop and its answers go back there; tool calls come back as well, to the one executor. So time-outs, call ids,
plain HTTP, origin checks, limits and the way the server starts and ends are those of the core, whoever speaks MCP.

The only module that imports `mcp`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from mcp.server import MCPServer, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.subscriptions import InMemorySubscriptionBus, ToolsListChanged
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    InputRequiredResult,
    ListToolsResult,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    SetLevelRequestParams,
)

from aenv._util.jsontext import dumps
from aenv._util.nearest import did_you_mean
from aenv.define.context import MissingCapability
from aenv.define.load import author_traceback
from aenv.define.registry import Registry, Tool, current_registry
from aenv.errors import AEnvError, CallConflict, CallForgotten, ConfigError, LoadError, ToolCancelled
from aenv.sandbox import era, jsonrpc
from aenv.sandbox.encode import Result, to_json
from aenv.sandbox.execute import Call, Executor
from aenv.sandbox.http import EventStream, InternalError, Reply, Request, Response, failure
from aenv.sandbox.log import CapturedStream
from aenv.sandbox.loop import Future, Loop, start
from aenv.sandbox.mcp import (
    CALL_ID_KEY,
    SESSION_HEADER,
    TIMEOUT_KEY,
    Identity,
    _failed,
    _protocol_error,
    _shown,
    _told,
)
from aenv.sandbox.routes import Routes
from aenv.sandbox.server import GRACE_SECONDS, Options, Server
from aenv.sandbox.sessions import Session, Sessions

logger = logging.getLogger(__name__)

END_SECONDS = 1.0
"""How long the end of the server waits for asyncio's thread, which author code may hold."""
LOOK_SECONDS = 0.05
"""How often a client that reads too slowly is looked at: a connection does not tell when it has room again."""
MOST_WAITING = 1000
"""Progress and log messages of one call that may wait for a slow client; further ones are dropped."""
_FRESH = CacheHint(ttl_ms=60_000, scope="public")

Tell = Callable[..., None]
Application = Callable[..., Awaitable[None]]


class OfficialServer(Server):
    """The sandbox server with `/mcp` handed to the official package."""

    def __init__(
        self, registry: Registry, options: Options, loop: Loop, streams: list[CapturedStream] | None = None
    ) -> None:
        super().__init__(registry, options, loop, streams)
        self._official = Official(self.executor, options)
        self._routes = Routes(self.executor, options.identity, self._official.handle)
        if options.with_inspector:
            import_module("aenv.sandbox.inspector").add_to(self._routes)

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """As the core's, and let go those who wait for news."""
        self._official.close()
        super().stop(grace)

    def _end(self) -> None:
        self._official.end()
        super()._end()


class Official:
    """Answers requests to `/mcp` in the words of the official package, from one registry through one executor."""

    def __init__(self, executor: Executor, options: Options) -> None:
        registry = executor.registry
        self._loop = executor.loop
        self._standing: set[_Exchange] = set()
        self._news = InMemorySubscriptionBus()
        self._thread = _Thread(registry)
        server = _server(options.identity, self._news)
        tools = _Tools(server, executor, self._thread.tell)
        _extend(server, registry, options.project)
        self._application = _application(server, options.max_body)
        self._thread.start(server.session_manager.run, tools.check)
        registry.on_change(self._tools_changed)

    # on the server's loop

    async def handle(self, request: Request) -> Reply:
        """Have the package answer."""
        exchange = _Exchange(request, self._application, self._loop, self._thread.tell)
        request.on_disconnect = exchange.hang_up
        if exchange.is_standing:
            self._standing.add(exchange)
        self._thread.spawn(exchange.run)
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


async def _announce_changes(ctx: ServerRequestContext, proceed: Callable[..., Awaitable[Any]]) -> Any:
    """Say in the older revisions' handshake, too, that the list of tools may change."""
    result = await proceed(ctx)
    if ctx.method == "initialize":
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
    strangers = [route.path for route in app.routes if route.path != "/mcp"]
    if strangers:
        raise ConfigError(
            f"@extend_mcp added the route {strangers[0]!r}, and the official server is asked for /mcp alone",
            hint=f"write @register_function(endpoint={strangers[0]!r}) instead of @server.custom_route",
        )
    handle: Application = server.session_manager.handle_request
    return handle


class _Thread:
    """An asyncio loop in a thread of its own, with a group of tasks that lives as long as it does."""

    def __init__(self, registry: Registry) -> None:
        # What runs there finds this environment's registry, not the process's.
        self._context = copy_context()
        self._context.run(current_registry.set, registry)
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended = asyncio.Event()
        self._asyncio: asyncio.AbstractEventLoop
        self._tasks: anyio.abc.TaskGroup
        self._thread: threading.Thread

    def start(
        self, serving: Callable[[], AbstractAsyncContextManager[None]], check: Callable[[], Awaitable[None]]
    ) -> None:
        """Return when `serving` is entered, or raise what `check` or it raised."""
        work = partial(self._serve, serving, check)
        self._thread = threading.Thread(target=anyio.run, args=(work,), name="aenv-mcp", daemon=True)
        self._thread.start()
        self._started.result()

    def tell(self, callback: Callable[..., object], *args: object) -> None:
        """Have it called there soon; nobody is told once the thread has ended."""
        try:
            self._asyncio.call_soon_threadsafe(partial(callback, *args), context=self._context)
        except RuntimeError:
            return

    def spawn(self, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Run a coroutine function there."""
        self.tell(self._tasks.start_soon, function, *args)

    def end(self) -> None:
        """Cancel everything; a thread that author code blocks is left to end with the process."""
        self.tell(self._ended.set)
        self._thread.join(END_SECONDS)

    async def _serve(
        self, serving: Callable[[], AbstractAsyncContextManager[None]], check: Callable[[], Awaitable[None]]
    ) -> None:
        self._asyncio = asyncio.get_running_loop()
        try:
            await check()
            async with serving(), anyio.create_task_group() as self._tasks:
                self._started.set_result(None)
                await self._ended.wait()
                self._tasks.cancel_scope.cancel()
        except Exception as problem:
            if self._started.done():
                raise
            self._started.set_exception(problem)


class _Relay(EventStream):
    """A stream of events that were written out elsewhere."""

    def relay(self, events: bytes) -> None:
        """Pass them on as they are; a chunk of no bytes would end the response."""
        if events:
            self._chunk(events)


_OWN_HEADERS = {"content-type", "content-length", "cache-control", "connection", "x-accel-buffering"}


class _Exchange:
    """One request told to an ASGI application in asyncio's thread, and its answer carried back to the server's loop."""

    def __init__(self, request: Request, application: Application, loop: Loop, tell: Tell) -> None:
        self.reply: Future[Reply] = Future()
        self._request = request
        self._application = application
        self._loop = loop
        self._tell = tell
        self._has_body = True
        self._left = asyncio.Event()
        self._status = 500
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._stream: _Relay | None = None

    @property
    def is_standing(self) -> bool:
        """Whether the client waits for news, and not for an answer that will come."""
        return self._request.method == "GET" or self._request.headers.get("mcp-method") == "subscriptions/listen"

    # on the server's loop

    def hang_up(self) -> None:
        """The client has left, or is to be let go."""
        self._tell(self._left.set)

    def tell_change(self) -> None:
        """Tell a client of an older revision that the list of tools is another; newer ones subscribe to it."""
        if self._stream is not None and self._request.method == "GET":
            self._stream.send(jsonrpc.notification("notifications/tools/list_changed", {}))

    def _open(self, written: asyncio.Event) -> None:
        self._stream = _Relay(self._request, self._other_headers())
        self._tell(written.set)

    def _write(self, events: bytes, written: asyncio.Event) -> None:
        assert self._stream is not None
        self._stream.relay(events)
        self._release(self._stream, written)

    def _release(self, stream: EventStream, written: asyncio.Event) -> None:
        """Let the writer go on when its client has read most of what there is."""
        if stream.is_congested:
            self._loop.later(LOOK_SECONDS, lambda: self._release(stream, written))
        else:
            self._tell(written.set)

    def _answer(self) -> None:
        content_type = self._headers.get("content-type", "")
        self.reply.set(Response(self._status, b"".join(self._body), content_type, self._other_headers()))

    def _end(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self.reply.set(None)
        else:
            # Nothing, if it was answered.
            self.reply.set(failure(InternalError("the official MCP server gave no answer", hint="see the log")))

    def _other_headers(self) -> list[tuple[str, str]]:
        return [(name, value) for name, value in self._headers.items() if name not in _OWN_HEADERS]

    # in asyncio's thread

    async def run(self) -> None:
        """Ask the application."""
        try:
            await self._application(self._scope(), self._receive, self._send)
        except Exception:
            # The other requests of the task group go on.
            logger.exception("the official MCP server failed to answer a request")
        finally:
            self._loop.post(self._end)

    def _scope(self) -> dict[str, object]:
        request = self._request
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "path": request.path,
            "raw_path": request.path.encode("latin-1"),
            "query_string": request.query.encode("latin-1"),
            "root_path": "",
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()],
            "client": None,
            "server": None,
        }

    async def _receive(self) -> dict[str, object]:
        if self._has_body:
            self._has_body = False
            return {"type": "http.request", "body": self._request.body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
            if self._streams:
                await self._written(self._open)
        elif self._streams:
            await self._written(partial(self._write, message.get("body", b"")))
        else:
            self._body.append(message.get("body", b""))
            if not message.get("more_body", False):
                self._loop.post(self._answer)

    @property
    def _streams(self) -> bool:
        return self._headers.get("content-type", "").startswith("text/event-stream")

    async def _written(self, write: Callable[[asyncio.Event], None]) -> None:
        written = asyncio.Event()
        self._loop.post(partial(write, written))
        await written.wait()


class _Note(NamedTuple):
    """What a tool says while it runs."""

    method: str
    params: dict[str, Any]


class _Outcome(NamedTuple):
    """How a call ended."""

    result: Result | None
    problem: Exception | None


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
        self._call_other = handlers.get_request_handler("tools/call").handler
        handlers.add_request_handler("tools/list", PaginatedRequestParams, self._list)
        handlers.add_request_handler("tools/call", CallToolRequestParams, self._call)
        handlers.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)
        self._schema_of_other = handlers.get_tool_input_schema
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
        schema: Mapping[str, Any] | None = (
            self._schema_of_other(name) if tool is None else tool.signature.input_schema
        )
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

    async def _call(
        self, ctx: ServerRequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        tool = self._registry.find_tool(params.name)
        if tool is None:
            return await self._not_ours(ctx, params)
        try:
            value = _shown(tool, await self._run(ctx, tool, params.arguments))
        except (MissingCapability, CallConflict, CallForgotten, ToolCancelled) as problem:
            told = _protocol_error(problem)
            raise MCPError(told.code, told.message, told.data) from None
        except AEnvError as problem:
            value = _failed(_told(tool, problem), problem)
        return CallToolResult.model_validate_json(dumps(value))

    async def _not_ours(
        self, ctx: ServerRequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        others = [tool.name for tool in await self._server.list_tools()]
        if params.name in others:
            return await self._call_other(ctx, params)
        near = did_you_mean(params.name, [*self._registry.tools, *others])
        text = f"Unknown tool: {params.name}" + (f" ({near})" if near else "")
        if _is_modern(ctx):
            raise MCPError(INVALID_PARAMS, text)
        return CallToolResult.model_validate(_failed(text))

    async def _run(self, ctx: ServerRequestContext, tool: Tool, arguments: dict[str, Any] | None) -> Result:
        """Have the executor run it on the server's loop; pass on what it says, in order, and how it ends."""
        inbox: asyncio.Queue[_Note | _Outcome] = asyncio.Queue()
        call = self._read(ctx, tool, arguments, inbox)
        cancels: list[Callable[[], None]] = []

        def ended(result: Result | None, problem: Exception | None) -> None:
            self._tell(inbox.put_nowait, _Outcome(result, problem))

        self._loop.post(lambda: start(self._executor.call(call, cancels.append), ended))
        is_over = False
        try:
            while isinstance(said := await inbox.get(), _Note):
                await _say(ctx, said)
            is_over = True
        finally:
            # In the newest revision a client that hangs up means it; one that named its call may come back for it.
            if not is_over and not (_is_modern(ctx) and call.call_id is not None):
                self._loop.post(lambda: [cancel() for cancel in cancels])
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
        call_id = meta.get(CALL_ID_KEY, _header(ctx, "idempotency-key"))
        if call_id is not None and not (isinstance(call_id, str) and 0 < len(call_id) <= 256):
            raise MCPError(INVALID_PARAMS, f"{CALL_ID_KEY!r} must be text of 1 to 256 characters")
        timeout = meta.get(TIMEOUT_KEY)
        if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0):
            raise MCPError(INVALID_PARAMS, f"{TIMEOUT_KEY!r} must be seconds above zero")
        levels = self._wanted_levels(ctx, meta)
        wants_progress = meta.get("progressToken") is not None

        def notify(method: str, params: dict[str, object]) -> None:
            """From the tool's own thread; refused values raise there."""
            if wants_progress if method == "notifications/progress" else params["level"] in levels:
                self._tell(_offer, inbox, _Note(method, to_json(params, "notification")))

        capabilities = ctx.session.client_capabilities
        declared = {} if capabilities is None else capabilities.model_dump(by_alias=True, exclude_none=True)
        return Call(tool, arguments or {}, call_id, timeout, notify, declared)

    def _wanted_levels(self, ctx: ServerRequestContext, meta: Mapping[str, Any]) -> Iterable[str]:
        if _is_modern(ctx):
            level = meta.get(era.LOG_LEVEL_KEY)
        else:
            session = self._levels.get(_header(ctx, SESSION_HEADER) or "")
            level = "debug" if session is None else session.log_level
        return () if level is None else era.LEVELS[era.LEVELS.index(level) :]


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
