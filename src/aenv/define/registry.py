"""The tools, rewards, functions and health check that one environment offers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from aenv.define.schema import Signature
from aenv.errors import DefinitionError

Function = Callable[..., Any]
Kind = Literal["tool", "reward", "function", "health"]

_NAME = re.compile(r"[A-Za-z0-9_.\-/]{1,128}")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_HINTS = ("title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_RESERVED = ("/mcp", "/health", "/tools", "/functions/list", "/task/reward", "/inspector", "/")


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One registered function, of whatever kind: how it is named, described and called."""

    kind: Kind
    name: str
    description: str | None
    function: Function
    signature: Signature
    timeout: float | None = None
    is_async: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Tool(Entry):
    """A function that agents call over MCP."""

    annotations: Mapping[str, object] = field(default_factory=dict)
    hidden: bool = False
    own_schema: Mapping[str, Any] | None = None

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """What callers are told to send: the author's own schema, or the one of the signature."""
        return self.signature.input_schema if self.own_schema is None else self.own_schema

    def to_mcp(self) -> dict[str, object]:
        """The tool as `tools/list` shows it."""
        shown: dict[str, object] = {"name": self.name}
        if "title" in self.annotations:
            shown["title"] = self.annotations["title"]
        if self.description is not None:
            shown["description"] = self.description
        shown["inputSchema"] = self.input_schema
        if self.signature.output_schema is not None:
            shown["outputSchema"] = self.signature.output_schema
        if self.annotations:
            shown["annotations"] = dict(self.annotations)
        return shown


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint(Entry):
    """A function that is called over plain HTTP at a path of its own: functions, rewards, health."""

    path: str = "/"
    method: str = "POST"

    def to_wire(self) -> dict[str, object]:
        """The entry as `/functions/list` shows it."""
        return {
            "name": self.name,
            "endpoint": self.path,
            "method": self.method,
            "description": self.description or "",
            "parameters": _legacy_parameters(self.function),
            "input_schema": self.signature.input_schema,
            "is_async": self.is_async,
        }


class Registry:
    """What decorators write and servers read. A name is taken once, unless a later registration `replaces` it."""

    def __init__(self, *, replaces: bool = False) -> None:
        self._replaces = replaces
        self.tools: dict[str, Tool] = {}
        self.rewards: dict[str, Endpoint] = {}
        self.functions: dict[str, Endpoint] = {}
        self.health: Endpoint | None = None
        self.mcp_extensions: list[Callable[[Any], object]] = []
        self.fork_hooks: list[Callable[[], object]] = []
        self._aliases: dict[str, str] = {}
        self._default_reward: str | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def default_reward(self) -> Endpoint | None:
        """The reward that answers without a name: the one marked default, or the first."""
        return self.rewards.get(self._default_reward or next(iter(self.rewards), ""))

    def find_tool(self, name: str) -> Tool | None:
        """By its name on the wire, or by its function's name when that was replaced."""
        return self.tools.get(name) or self.tools.get(self._aliases.get(name, ""))

    def visible_tools(self) -> Iterable[Tool]:
        """Those that `tools/list` shows."""
        return (tool for tool in self.tools.values() if not tool.hidden)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever the set of tools changes, in whatever thread changes it."""
        self._listeners.append(listener)

    def add_tool(
        self,
        function: Function,
        *,
        name: str | None = None,
        description: str | None = None,
        annotations: Mapping[str, object] | None = None,
        timeout: float | None = None,
        hidden: bool = False,
        input_schema: Mapping[str, Any] | None = None,
    ) -> Tool:
        """Register a tool; DefinitionError when its name is taken or its signature cannot be expressed."""
        base = _entry("tool", function, name, description, timeout)
        if input_schema is not None and input_schema.get("type") != "object":
            raise DefinitionError(
                f"tool {base[1]!r}: input_schema does not describe an object", hint='it needs "type": "object"'
            )
        tool = Tool(
            *base,
            annotations=_checked_annotations(base[1], annotations or {}),
            hidden=hidden,
            own_schema=input_schema,
        )
        self._put(self.tools, tool)
        # An older caller knows the function's name, under which tools were served whatever `name` said.
        self._aliases.setdefault(getattr(function, "__name__", tool.name), tool.name)
        for listener in self._listeners:
            listener()
        return tool

    def remove_tool(self, name: str) -> None:
        """Take a tool out of service."""
        if self.tools.pop(name, None) is not None:
            for listener in self._listeners:
                listener()

    def add_reward(
        self,
        function: Function,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        default: bool = False,
    ) -> Endpoint:
        """Register a reward; the first, or the one marked default, answers `/task/reward`."""
        base = _entry("reward", function, name, description, timeout)
        reward = Endpoint(*base, path=f"/task/reward/{base[1]}")
        if default and self._default_reward is not None and not self._replaces:
            raise DefinitionError(
                f"reward {reward.name!r}: {self._default_reward!r} is the default already",
                hint="mark one reward with default=True",
            )
        self._put(self.rewards, reward)
        if default:
            self._default_reward = reward.name
        return reward

    def add_function(
        self,
        function: Function,
        *,
        name: str | None = None,
        description: str | None = None,
        endpoint: str | None = None,
        method: str = "POST",
        timeout: float | None = None,
    ) -> Endpoint:
        """Register an HTTP function, at `/functions/{name}` unless `endpoint` says otherwise."""
        base = _entry("function", function, name, description, timeout)
        label = f"function {base[1]!r}"
        entry = Endpoint(
            *base,
            path=_checked_path(label, endpoint, base[4]) if endpoint is not None else f"/functions/{base[1]}",
            method=_checked_method(label, method),
        )
        for other in self.functions.values():
            if (other.path, other.method) == (entry.path, entry.method) and not self._replaces:
                raise DefinitionError(
                    f"{label}: {entry.method} {entry.path} is {other.name!r} already", hint="give it another endpoint"
                )
        self._put(self.functions, entry)
        return entry

    def set_health(
        self,
        function: Function,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> Endpoint:
        """Register the health check; an environment has one."""
        entry = Endpoint(*_entry("health", function, name, description, timeout), path="/health", method="GET")
        if self.health is not None and not self._replaces:
            raise DefinitionError(
                f"health {entry.name!r}: {self.health.name!r} is the health check already",
                hint="call one from the other",
            )
        self.health = entry
        return entry

    def add_fork_hook(self, function: Callable[[], object]) -> None:
        """Register what is done around a copy of the running environment; DefinitionError for async functions."""
        label = f"fork hook {getattr(function, '__name__', None) or repr(function)}"
        if _needs_arguments(function):
            raise DefinitionError(
                f"{label} cannot be called without arguments",
                hint="write @register_fork directly above a `def` without parameters",
            )
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise DefinitionError(
                f"{label} is async, and no event loop runs while the environment is copied",
                hint="write `def`; reach the loop with its call_soon_threadsafe",
            )
        if self._replaces:
            self.fork_hooks = [hook for hook in self.fork_hooks if _where(hook) != _where(function)]
        self.fork_hooks.append(function)

    def _put(self, shelf: dict[str, Any], entry: Entry) -> None:
        if (other := shelf.get(entry.name)) is not None and not self._replaces:
            raise DefinitionError(
                f"{entry.kind} {entry.name!r} is registered already, in {_where(other.function)}; again in "
                f"{_where(entry.function)}",
                hint="give one of them another name, or register it once",
            )
        shelf[entry.name] = entry


# A decorator runs when its module is imported and can be handed nothing, so where it writes has to be ambient. A loader
# sets its own registry around the import; a module imported by anybody else lands in the process's, which nobody
# serves and which lets a notebook import it again.
current_registry: ContextVar[Registry] = ContextVar("aenv_registry", default=Registry(replaces=True))  # noqa: B039


def get_registry() -> Registry:
    """The registry that decorators write to here and now."""
    return current_registry.get()


_Entry = tuple[Kind, str, str | None, Function, Signature, float | None, bool]


def _entry(kind: Kind, function: Function, name: str | None, description: str | None, timeout: float | None) -> _Entry:
    if not callable(function):
        raise DefinitionError(
            f"{function!r} is not a function", hint=f"write @register_{kind} directly above a `def`, options by name"
        )
    name = getattr(function, "__name__", None) if name is None else name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{kind} name {name!r} is not usable",
            hint="use 1 to 128 of the letters A-Z a-z, digits and _ . - /",
        )
    if timeout is not None and not _is_positive(timeout):
        raise DefinitionError(
            f"{kind} {name!r}: timeout is {timeout!r}", hint="give seconds above zero, or leave it out"
        )
    text = inspect.getdoc(function) if description is None else description
    is_async = inspect.iscoroutinefunction(function)
    return kind, name, text, function, Signature(function, label=f"{kind} {name!r}"), timeout, is_async


def _needs_arguments(function: Function) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    return False


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _where(function: Function) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(function)


def _checked_annotations(name: str, annotations: Mapping[str, object]) -> dict[str, object]:
    for key, value in annotations.items():
        if key not in _HINTS or not isinstance(value, str if key == "title" else bool):
            raise DefinitionError(
                f"tool {name!r}: annotation {key!r} cannot be {value!r}",
                hint="MCP knows title (text) and readOnlyHint, destructiveHint, idempotentHint, openWorldHint (bool)",
            )
    return dict(annotations)


def _checked_method(label: str, method: str) -> str:
    if str(method).upper() not in _METHODS:
        raise DefinitionError(f"{label}: method {method!r} is not one of {', '.join(_METHODS)}")
    return method.upper()


def _checked_path(label: str, path: str, signature: Signature) -> str:
    path = "/" + path.strip("/")
    if path in _RESERVED or not re.fullmatch(r"(/((?!\.+(/|$))[A-Za-z0-9_.~\-]+|\{[A-Za-z_]\w*\}))+", path):
        raise DefinitionError(
            f"{label}: endpoint {path!r} is not usable",
            hint="write a path such as /items/{item_id} that is not one of the server's own",
        )
    for name in re.findall(r"\{(\w+)\}", path):
        if name not in signature.parameter_names:
            raise DefinitionError(
                f"{label}: endpoint {path!r} names {{{name}}}, which is no parameter of the function",
                hint=f"parameters are: {', '.join(signature.parameter_names) or 'none'}",
            )
    return path


def _legacy_parameters(function: Function) -> dict[str, dict[str, str | None]]:
    """Parameters as older clients read them: the annotation's and the default's text."""
    return {
        name: {
            "type": "Any" if parameter.annotation is parameter.empty else str(parameter.annotation),
            "default": None if parameter.default is parameter.empty else str(parameter.default),
        }
        for name, parameter in inspect.signature(function).parameters.items()
    }
