"""Plain HTTP: health, rewards, functions and tools as JSON envelopes, for callers that do not speak MCP."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from aenv._util.jsontext import JSONDecodeError, loads
from aenv._util.nearest import did_you_mean
from aenv._version import __version__
from aenv.define.registry import Endpoint, Entry, Registry
from aenv.errors import AEnvError, MethodNotAllowed, NotFound, RequestError, ToolError
from aenv.sandbox.encode import Result, fragment
from aenv.sandbox.endpoint import Identity
from aenv.sandbox.execute import Call, Executor
from aenv.sandbox.http import Handler, Reply, Request, failure, success
from aenv.sandbox.journal import CALL_ID_ALLOWED, is_call_id

HEALTH_SECONDS = 10.0
_HEALTHY = {"healthy", "success", "ok", "pass", "up"}
_LONGEST_NAME = 200
_BODY_METHODS = ("POST", "PUT", "PATCH")


class _Custom(NamedTuple):
    pattern: re.Pattern[str]
    endpoint: Endpoint


class Routes:
    """The table of paths. `extra` adds handlers by exact path, as the inspector does."""

    def __init__(self, executor: Executor, identity: Identity, mcp: Handler) -> None:
        self._executor = executor
        self._registry: Registry = executor.registry
        self._identity = identity
        self.begin()
        self._exact: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._about},
            "/health": {"GET": self._health},
            "/tools": {"GET": self._list_tools},
            "/functions/list": {"GET": self._list_functions},
            "/task/reward": {"POST": self._default_reward},
        }
        self._mcp = mcp
        self._custom: list[_Custom] = []
        self._known_functions = 0

    def begin(self) -> None:
        """Count from now."""
        self._started = self._last_active = time.time()

    def add(self, path: str, handler: Handler) -> None:
        """Serve GET on one more path."""
        self._exact[path] = {"GET": handler}

    def handle(self, request: Request) -> Reply | Awaitable[Reply]:
        """Find who answers; whatever is refused on the way is an envelope."""
        path = request.path if len(request.path) == 1 else request.path.rstrip("/")
        if path == "/mcp":
            self._last_active = time.time()
            return self._mcp(request)
        try:
            return self._route(request, path)(request)
        except AEnvError as error:
            return _refusal(error)

    def _route(self, request: Request, path: str) -> Handler:
        methods = self._exact.get(path)
        if methods is None:
            methods = self._named(path) or self._customs(path)
        if not methods:
            raise self._no_such_path(path)
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            allow = ", ".join(sorted(methods))
            raise MethodNotAllowed(f"{request.method} is not for {path}", hint=f"use {allow}", allow=allow)
        return handler

    def _named(self, path: str) -> dict[str, Handler]:
        """`/tools/{name}` and `/task/reward/{name}`."""
        for prefix, shelf, find in (
            ("/tools/", self._registry.tools, self._registry.find_tool),
            ("/task/reward/", self._registry.rewards, self._registry.rewards.get),
        ):
            if path.startswith(prefix):
                name = unquote(path[len(prefix) :])
                entry: Entry | None = find(name)
                if entry is None:
                    raise _unknown(prefix.strip("/").rpartition("/")[2].rstrip("s"), name, shelf)
                return {"POST": self._calls(entry, {})}
        return {}

    def _customs(self, path: str) -> dict[str, Handler]:
        """Endpoints of registered functions, their `/functions/{name}` included."""
        if len(self._registry.functions) != self._known_functions:
            functions = self._registry.functions.values()
            self._custom = [_Custom(_pattern(endpoint.path), endpoint) for endpoint in functions]
            self._known_functions = len(self._registry.functions)
        found: dict[str, Handler] = {}
        for custom in self._custom:
            if (match := custom.pattern.fullmatch(path)) is not None:
                parts = {name: unquote(value) for name, value in match.groupdict().items()}
                found.setdefault(custom.endpoint.method, self._calls(custom.endpoint, parts))
        return found

    def _calls(self, entry: Entry, parts: Mapping[str, str]) -> Handler:
        async def handler(request: Request) -> Reply:
            return await self._call(request, entry, parts)

        return handler

    async def _call(self, request: Request, entry: Entry, parts: Mapping[str, str]) -> Reply:
        self._last_active = time.time()
        headers: list[tuple[str, str]] = []
        try:
            if (call_id := _call_id(request)) is not None:
                headers.append(("idempotency-key", call_id))
            call = Call(entry, {**_arguments(request, entry), **parts}, call_id, _timeout(request))
            result = await self._executor.call(call)
        except AEnvError as error:
            return _refusal(error, headers)
        return success(fragment(result), headers=headers)

    async def _default_reward(self, request: Request) -> Reply:
        reward = self._registry.default_reward
        if reward is None:
            raise NotFound("this environment has no reward", hint="register one with @register_reward")
        return await self._call(request, reward, {})

    def _list_tools(self, request: Request) -> Reply:
        return success({"tools": [tool.to_mcp() for tool in self._registry.visible_tools()]})

    def _list_functions(self, request: Request) -> Reply:
        registry = self._registry
        functions = [function.to_wire() for function in registry.functions.values()]
        default = registry.default_reward
        rewards = [{**reward.to_wire(), "default": reward is default} for reward in registry.rewards.values()]
        health = [registry.health.to_wire() if registry.health is not None else _DEFAULT_HEALTH]
        total = len(functions) + len(rewards) + len(health)
        return success({"total": total, "functions": functions, "reward": rewards, "health": health})

    def _about(self, request: Request) -> Reply:
        registry = self._registry
        return success(
            {
                "name": self._identity.name,
                "version": self._identity.version,
                "description": self._identity.description,
                "aenv_version": __version__,
                "tools": sum(1 for _ in registry.visible_tools()),
                "rewards": len(registry.rewards),
                "functions": len(registry.functions),
                "started_at": self._started,
            }
        )

    def _health(self, request: Request) -> Reply | Awaitable[Reply]:
        health = self._registry.health
        if health is not None:
            return self._author_health(request, health)
        return success(
            {
                "status": "success",
                "message": "MCP server is healthy",
                "details": {"tool_count": len(self._registry.tools)},
                "last_active": self._last_active,
            }
        )

    async def _author_health(self, request: Request, health: Endpoint) -> Reply:
        try:
            call = Call(health, _query(request, health), None, min(HEALTH_SECONDS, _timeout(request) or HEALTH_SECONDS))
            result = await self._executor.call(call)
        except ToolError as error:
            return _unhealthy({"status": "unhealthy", "last_active": self._last_active}, error)
        except AEnvError as error:
            return _refusal(error)
        data = _judged(result)
        data.setdefault("last_active", self._last_active)
        if data["status"] in ("healthy", "success"):
            return success(data)
        return _unhealthy(data, Unhealthy("the environment's health check says it is not healthy"))

    def _no_such_path(self, path: str) -> NotFound:
        path = path[:_LONGEST_NAME]
        if path.startswith("/functions/"):
            return _unknown("function", unquote(path[len("/functions/") :]), self._registry.functions)
        known = [*self._exact, *(custom.endpoint.path for custom in self._custom), "/mcp"]
        return NotFound(f"nothing is served at {path!r}", hint=did_you_mean(path, known) or "see GET / and /tools")


class Unhealthy(AEnvError):
    """The author's health check says no."""

    code, status, retryable = "health.unhealthy", 503, True


def _refusal(error: AEnvError, headers: list[tuple[str, str]] | None = None) -> Reply:
    sent = list(headers or ())
    if isinstance(error, MethodNotAllowed):
        sent.append(("allow", str(error.details["allow"])))
    return failure(error, headers=sent)


def _unhealthy(data: dict[str, Any], error: AEnvError) -> Reply:
    return failure(Unhealthy(error.message, hint=error.hint, **error.details), data=data)


def _judged(result: Result) -> dict[str, Any]:
    """The health function's answer with a `status` that older clients understand."""
    value = result.value
    if not isinstance(value, dict):
        return {"status": _status(True if value is None else value)}
    said = next((value[key] for key in ("status", "healthy", "ok") if key in value), True)
    return {**value, "status": _status(said)}


def _status(said: object) -> str:
    if isinstance(said, bool):
        return "healthy" if said else "unhealthy"
    text = str(said)
    if text.lower() not in _HEALTHY:
        return text
    # Older clients know these two words, and no others.
    return "success" if text.lower() == "success" else "healthy"


_DEFAULT_HEALTH = {
    "name": "default_health_handler",
    "endpoint": "/health",
    "method": "GET",
    "description": "Healthy as long as the server answers.",
    "parameters": {},
    "input_schema": {"type": "object", "properties": {}},
    "is_async": False,
}


def _pattern(path: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", path)
    return re.compile("".join(re.escape(part) if i % 2 == 0 else f"(?P<{part}>[^/]+)" for i, part in enumerate(parts)))


def _arguments(request: Request, entry: Entry) -> dict[str, Any]:
    arguments = _query(request, entry)
    if request.body:
        body = _body(request.body)
        # A body is what POST is for; what the query says beside it only fills in.
        return {**arguments, **body} if request.method in _BODY_METHODS else {**body, **arguments}
    return arguments


def _body(text: bytes) -> dict[str, Any]:
    try:
        body = loads(text)
    except JSONDecodeError as problem:
        raise RequestError(f"the body is not JSON: {problem}", hint="send a JSON object of arguments") from None
    if not isinstance(body, dict):
        kind = {list: "an array", str: "text", type(None): "null"}.get(type(body), "a number or boolean")
        raise RequestError(
            f"the body is {kind}, not a JSON object", hint='send {"parameter": value, …}; {} for no arguments'
        )
    return body


def _query(request: Request, entry: Entry) -> dict[str, Any]:
    """The query as arguments: all text, but lists and objects may be written as JSON where one is expected."""
    try:
        pairs = parse_qsl(request.query, keep_blank_values=True, max_num_fields=1000)
    except ValueError:
        raise RequestError("the query has more than 1000 fields", hint="send a body") from None
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        given.setdefault(name, []).append(value)
    properties = entry.signature.input_schema["properties"]
    return {name: _queried(values, _types(properties.get(name, {}))) for name, values in given.items()}


def _queried(values: list[str], types: set[str]) -> Any:
    if len(values) > 1:
        return values
    if "array" in types:
        read = _json_if_structured(values[0])
        return read if isinstance(read, list) else values
    return values[0] if "string" in types else _json_if_structured(values[0])


def _types(schema: Mapping[str, Any]) -> set[str]:
    members = [schema, *schema.get("anyOf", ())]
    return {kind for member in members if isinstance(kind := member.get("type"), str)}


def _json_if_structured(value: str) -> Any:
    """Older clients put lists and objects into a query as JSON; plain text stays text."""
    if value[:1] in ("{", "["):
        try:
            return loads(value)
        except JSONDecodeError:
            return value
    return value


def _call_id(request: Request) -> str | None:
    call_id = request.headers.get("idempotency-key")
    if call_id is not None and not is_call_id(call_id):
        raise RequestError("the header Idempotency-Key cannot name a call", hint=f"use {CALL_ID_ALLOWED}")
    return call_id


def _timeout(request: Request) -> float | None:
    text = request.headers.get("aenv-timeout")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise RequestError(f"the header Aenv-Timeout is {text!r}", hint="give seconds above zero, such as 2.5")
    return seconds


def _unknown(kind: str, name: str, shelf: Mapping[str, object]) -> NotFound:
    name = name[:_LONGEST_NAME]
    near = did_you_mean(name, shelf)
    names = ", ".join(sorted(shelf)) or "none"
    return NotFound(f"there is no {kind} {name!r}", hint=near or f"{kind}s are: {names}", names=sorted(shelf))
