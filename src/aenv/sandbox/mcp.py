"""The MCP endpoint: tools, progress, logging, cancellation, for every published revision, on `/mcp`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from aenv._util.ids import new_id
from aenv._util.jsontext import dumps
from aenv.define.registry import Tool
from aenv.errors import AEnvError
from aenv.sandbox import era, jsonrpc
from aenv.sandbox.encode import to_json
from aenv.sandbox.endpoint import Options
from aenv.sandbox.execute import Call, Executor
from aenv.sandbox.http import EventStream, Reply, Request, Response
from aenv.sandbox.jsonrpc import Message, RpcError
from aenv.sandbox.loop import Loop
from aenv.sandbox.present import CallersFault, failed, protocol_error, read_wishes, said, shown, unknown
from aenv.sandbox.sessions import Session, Sessions, Streams

SESSION_HEADER = "mcp-session-id"
_FRESH_MS = 60_000


class Mcp:
    """Answers requests to `/mcp` from one registry through one executor."""

    def __init__(self, executor: Executor, options: Options) -> None:
        loop = executor.loop
        self._executor = executor
        self._registry = executor.registry
        self._identity = options.identity
        self._sessions = Sessions()
        self._news = Streams(loop)
        self._filters: dict[EventStream, str | int | None] = {}
        self._loop = loop
        self._tools: orjson.Fragment | None = None
        self._mirrored: dict[str, dict[str, tuple[str, ...]]] = {}
        self._registry.on_change(self._tools_changed)

    def handle(self, request: Request) -> Reply | Awaitable[Reply]:
        """POST a message, GET a stream of news, DELETE a session."""
        if request.method == "POST":
            return self._post(request)
        if request.method == "GET":
            return self._get(request)
        if request.method == "DELETE":
            return self._delete(request)
        return _refused(RpcError(jsonrpc.INVALID_REQUEST, "use POST, GET or DELETE", status=405), allow=True)

    def close(self) -> None:
        """Let the clients that wait for news go."""
        self._news.close()

    def end(self) -> None:
        """Nothing of its own is left to end."""

    def _post(self, request: Request) -> Reply | Awaitable[Reply]:
        id_ = None
        try:
            era.check_media(request.headers)
            message = jsonrpc.parse(request.body)
            id_ = message.id
            if era.is_modern(request.headers, message):
                return self._modern(request, message)
            return self._legacy(request, message)
        except RpcError as problem:
            return _refused(problem, id_ if id_ is not None else jsonrpc.known_id(request.body))

    # revision 2026-07-28

    def _modern(self, request: Request, message: Message) -> Reply | Awaitable[Reply]:
        if message.id is None:
            return Response(202, content_type="")
        era.check_modern(request.headers, message)
        if message.method == "tools/call":
            return self._modern_call(request, message)
        if message.method == "subscriptions/listen":
            return self._listen(request, message)
        if message.method == "server/discover":
            value = {
                "supportedVersions": list(era.SUPPORTED),
                "capabilities": _CAPABILITIES,
                **({"instructions": self._identity.description} if self._identity.description else {}),
            }
        elif message.method == "tools/list":
            _check_cursor(message)
            value = {"tools": self._tool_list()}
        else:
            raise RpcError(jsonrpc.METHOD_NOT_FOUND, f"method not found: {message.method}", status=404)
        hints = {"resultType": "complete", "ttlMs": _FRESH_MS, "cacheScope": "public", "_meta": self._signature()}
        return Response(body=jsonrpc.result(message.id, value | hints))

    def _modern_call(self, request: Request, message: Message) -> Awaitable[Reply]:
        level = message.meta.get(era.LOG_LEVEL_KEY)
        threshold = None if level is None else era.check_log_level(level)
        tool = self._tool(message)
        if tool is None:
            raise RpcError(jsonrpc.INVALID_PARAMS, self._unknown(message), status=200)
        self._check_mirrored(request, tool, message)
        capabilities = message.meta[era.CAPABILITIES_KEY]
        exchange = _Exchange(request, message, threshold, self._loop)
        return self._call(exchange, tool, capabilities, modern=True)

    def _check_mirrored(self, request: Request, tool: Tool, message: Message) -> None:
        if tool.name not in self._mirrored:
            self._mirrored[tool.name] = era.mirrored_parameters(tool.input_schema)
        if mirrored := self._mirrored[tool.name]:
            era.check_mirrored(request.headers, mirrored, message.params.get("arguments"))

    async def _listen(self, request: Request, message: Message) -> Reply:
        wanted = message.params.get("notifications")
        if not isinstance(wanted, dict):
            return _refused(RpcError(jsonrpc.INVALID_PARAMS, "params.notifications must be an object"), message.id)
        honoured = {"toolsListChanged": True} if wanted.get("toolsListChanged") is True else {}
        stream = request.open_stream()
        meta = {era.SUBSCRIPTION_KEY: message.id}
        acknowledged = {"notifications": honoured, "_meta": meta}
        stream.send(jsonrpc.notification("notifications/subscriptions/acknowledged", acknowledged))
        if honoured:
            self._filters[stream] = message.id
        try:
            await self._news.hold(request, stream, last=jsonrpc.result(message.id, {**_COMPLETE, "_meta": meta}))
        finally:
            self._filters.pop(stream, None)
        return None

    # revisions with sessions

    def _legacy(self, request: Request, message: Message) -> Reply | Awaitable[Reply]:
        if message.method == "initialize":
            return self._initialize(message)
        era.check_legacy(request.headers)
        session = self._session(request)
        if message.id is None or message.method is None:
            self._noticed(session, message)
            return Response(202, content_type="")
        if message.method == "tools/call":
            return self._legacy_call(request, message, session)
        return Response(body=jsonrpc.result(message.id, self._legacy_result(message, session)))

    def _legacy_result(self, message: Message, session: Session | None) -> object:
        if message.method == "tools/list":
            _check_cursor(message)
            return {"tools": self._tool_list()}
        if message.method == "ping":
            return {}
        if message.method == "logging/setLevel":
            level = era.check_log_level(message.params.get("level"))
            if session is not None:
                session.log_level = level
            return {}
        raise RpcError(jsonrpc.METHOD_NOT_FOUND, f"method not found: {message.method}", status=200)

    def _initialize(self, message: Message) -> Reply:
        asked = message.params.get("protocolVersion")
        if not isinstance(asked, str):
            raise RpcError(jsonrpc.INVALID_PARAMS, "params.protocolVersion must be text")
        version = asked if asked in era.LEGACY else era.LEGACY[0]
        capabilities = message.params.get("capabilities")
        session = Session(new_id("mcp"), version, _names(capabilities))
        self._sessions.add(session)
        value: dict[str, object] = {
            "protocolVersion": version,
            "capabilities": _CAPABILITIES,
            "serverInfo": {"name": self._identity.name, "version": self._identity.version},
        }
        if self._identity.description:
            value["instructions"] = self._identity.description
        return Response(body=jsonrpc.result(message.id, value), headers=[(SESSION_HEADER, session.id)])

    def _session(self, request: Request) -> Session | None:
        """The caller's session; a caller that names none is served all the same, one that names a lost one is told."""
        id_ = request.headers.get(SESSION_HEADER)
        if id_ is None:
            return None
        session = self._sessions.get(id_)
        if session is None:
            raise RpcError(jsonrpc.INVALID_REQUEST, "Session not found", status=404)
        return session

    def _noticed(self, session: Session | None, message: Message) -> None:
        if message.method == "notifications/cancelled" and session is not None:
            cancelled = message.params.get("requestId")
            if isinstance(cancelled, str | int) and (cancel := session.cancels.get(cancelled)) is not None:
                cancel()

    def _legacy_call(self, request: Request, message: Message, session: Session | None) -> Awaitable[Reply]:
        tool = self._tool(message)
        level = "debug" if session is None else session.log_level
        exchange = _Exchange(request, message, level, self._loop)
        if tool is None:
            # The model that invented the name reads this and goes on; an error would end its episode.
            return _immediately(exchange.reply(said(self._unknown(message))))
        return self._call(exchange, tool, session.capabilities if session else {}, modern=False, session=session)

    def _get(self, request: Request) -> Reply | Awaitable[Reply]:
        if "text/event-stream" not in request.headers.get("accept", ""):
            problem = RpcError(
                jsonrpc.INVALID_REQUEST, "Not Acceptable: Client must accept text/event-stream", status=406
            )
            return _refused(problem)
        if request.headers.get("mcp-protocol-version") == era.MODERN or SESSION_HEADER not in request.headers:
            problem = RpcError(jsonrpc.INVALID_REQUEST, "there is no stream without a session", status=405)
            return _refused(problem, allow=True)
        try:
            session = self._session(request)
        except RpcError as problem:
            return _refused(problem)
        assert session is not None
        return self._wait(request, session)

    async def _wait(self, request: Request, session: Session) -> Reply:
        stream = request.open_stream([(SESSION_HEADER, session.id)])
        # News go to one stream of a session, the newest: the specification forbids to send a message on several.
        for older in session.streams:
            self._filters.pop(older, None)
        session.streams.append(stream)
        self._filters[stream] = None
        try:
            await self._news.hold(request, stream)
        finally:
            session.streams.remove(stream)
            self._filters.pop(stream, None)
        return None

    def _delete(self, request: Request) -> Reply:
        id_ = request.headers.get(SESSION_HEADER)
        if id_ is None:
            return _refused(RpcError(jsonrpc.INVALID_REQUEST, f"the {SESSION_HEADER} header is missing"))
        session = self._sessions.end(id_)
        if session is None:
            return _refused(RpcError(jsonrpc.INVALID_REQUEST, "Session not found", status=404))
        for cancel in list(session.cancels.values()):
            cancel()
        for stream in list(session.streams):
            self._news.release(stream)
        return Response(200, content_type="")

    # tools, for both eras

    async def _call(
        self,
        exchange: _Exchange,
        tool: Tool,
        capabilities: dict[str, object],
        *,
        modern: bool,
        session: Session | None = None,
    ) -> Reply:
        message = exchange.message
        try:
            call = _read_call(tool, message, exchange, capabilities)
        except RpcError as problem:
            return exchange.reply_error(problem)

        def on_start(cancel: Callable[[], None]) -> None:
            if session is not None and message.id is not None:
                session.cancels[message.id] = cancel
            if modern and call.call_id is None:
                # In this revision a client that hangs up means it; one that named its call may come back for it.
                exchange.request.on_disconnect = cancel

        try:
            value = await self._outcome(call, tool, on_start)
        except RpcError as problem:
            return exchange.reply_error(problem)
        finally:
            if session is not None and message.id is not None:
                session.cancels.pop(message.id, None)
        if modern:
            value["resultType"] = "complete"
        return exchange.reply(value)

    async def _outcome(self, call: Call, tool: Tool, on_start: Callable[[Callable[[], None]], None]) -> dict[str, Any]:
        """A tool that fails is a result its model can read; what the client did wrong is a protocol error."""
        try:
            return shown(tool, await self._executor.call(call, on_start))
        except CallersFault as problem:
            raise protocol_error(problem) from None
        except AEnvError as problem:
            return failed(tool, problem)

    def _tool(self, message: Message) -> Tool | None:
        name = message.params.get("name")
        if not isinstance(name, str):
            raise RpcError(jsonrpc.INVALID_PARAMS, "params.name must be a tool's name")
        return self._registry.find_tool(name)

    def _unknown(self, message: Message) -> str:
        return unknown(message.params.get("name"), self._registry.tools)

    def _tool_list(self) -> orjson.Fragment:
        if self._tools is None:
            self._tools = orjson.Fragment(dumps([tool.to_mcp() for tool in self._registry.visible_tools()]))
        return self._tools

    def _signature(self) -> dict[str, object]:
        return {era.SERVER_KEY: {"name": self._identity.name, "version": self._identity.version}}

    def _tools_changed(self) -> None:
        """From whatever thread registered a tool."""
        self._loop.post(self._tell_change)

    def _tell_change(self) -> None:
        self._tools = None
        self._mirrored.clear()
        method = "notifications/tools/list_changed"

        def message(stream: EventStream) -> bytes | None:
            if stream not in self._filters:
                return None
            subscription = self._filters[stream]
            params = {} if subscription is None else {"_meta": {era.SUBSCRIPTION_KEY: subscription}}
            return jsonrpc.notification(method, params)

        self._news.send(message)


MOST_WAITING = 1000
"""Progress and log messages of one call that may wait to be sent; further ones are dropped."""

_COMPLETE = {"resultType": "complete"}
_CAPABILITIES = {"tools": {"listChanged": True}, "logging": {}}


class _Exchange:
    """One tools/call: a plain JSON answer, or a stream if the tool has something to say before it ends."""

    def __init__(self, request: Request, message: Message, threshold: str | None, loop: Loop) -> None:
        self.request = request
        self.message = message
        self._threshold = None if threshold is None else era.LEVELS.index(threshold)
        self._streams = "text/event-stream" in request.headers.get("accept", "")
        self._token = message.meta.get("progressToken")
        self._loop = loop
        self._stream: EventStream | None = None
        self._is_over = False
        self._waiting = 0

    def notify(self, method: str, params: dict[str, object]) -> None:
        """From the tool's own thread; refused values raise there."""
        if not self._wants(method, params):
            return
        if method == "notifications/progress":
            params = {"progressToken": self._token, **params}
        text = jsonrpc.notification(method, to_json(params, "notification"))
        if self._waiting >= MOST_WAITING:
            # Faster than anybody can read: those that wait already tell the story.
            return
        self._waiting += 1
        self._loop.post(lambda: self._emit(text))

    def _wants(self, method: str, params: dict[str, object]) -> bool:
        if not self._streams:
            return False
        if method == "notifications/progress":
            return self._token is not None
        return self._threshold is not None and era.LEVELS.index(str(params["level"])) >= self._threshold

    def _emit(self, text: bytes) -> None:
        self._waiting -= 1
        if self._is_over:
            return
        if self._stream is None:
            self._stream = self.request.open_stream()
        if not self._stream.is_congested:
            self._stream.send(text)

    def reply(self, value: dict[str, Any]) -> Reply:
        """The result, where the client waits for it."""
        return self._end(jsonrpc.result(self.message.id, value), 200)

    def reply_error(self, problem: RpcError) -> Reply:
        """The error, where the client waits for it."""
        return self._end(jsonrpc.error(self.message.id, problem), problem.status)

    def _end(self, text: bytes, status: int) -> Reply:
        self._is_over = True
        if self._stream is None:
            return Response(status, text)
        self._stream.send(text)
        self._stream.close()
        return None


def _read_call(tool: Tool, message: Message, exchange: _Exchange, capabilities: dict[str, object]) -> Call:
    wishes = read_wishes(message.meta, exchange.request.headers.get("idempotency-key"))
    arguments = message.params.get("arguments")
    return Call(tool, {} if arguments is None else arguments, *wishes, exchange.notify, capabilities)


def _names(capabilities: object) -> dict[str, object]:
    """The capabilities that a client declares, by name alone: what it says beside them may be of any size."""
    if not isinstance(capabilities, dict):
        return {}
    return {name: {} for name in list(capabilities)[:64] if len(name) <= 64}


def _check_cursor(message: Message) -> None:
    if message.params.get("cursor") is not None:
        raise RpcError(jsonrpc.INVALID_PARAMS, "unknown cursor: the list has one page", status=200)


def _refused(problem: RpcError, id_: str | int | None = None, *, allow: bool = False) -> Response:
    headers = [("allow", "POST, GET, DELETE")] if allow else []
    return Response(problem.status, jsonrpc.error(id_, problem), headers=headers)


async def _immediately(reply: Reply) -> Reply:
    return reply
