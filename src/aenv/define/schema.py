"""From a function's annotations to a JSON Schema, a check of arguments and a check of results."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Protocol

from aenv.define.content import Audio, File, Image
from aenv.define.context import Context
from aenv.define.plain import EMPTY, UNSURE, Kind, Parameter, kind_of, plain_arguments
from aenv.errors import DefinitionError

JSON = dict[str, Any]
_SECTIONS = ("Args:", "Arguments:", "Parameters", "Params:", ":param", "@param")


class Bound(NamedTuple):
    """Checked arguments, ready for the call."""

    args: tuple[object, ...]
    kwargs: dict[str, object]


class _Arguments(Protocol):
    def schema(self) -> JSON: ...

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]: ...


class _Result(Protocol):
    def schema(self) -> JSON: ...

    def check(self, value: object) -> None: ...


class Signature:
    """How one function is called over the wire: `input_schema`, `output_schema`, `bind`, `check_result`."""

    def __init__(self, function: Callable[..., object], *, label: str) -> None:
        self.label = label
        self.context_parameter: str | None = None
        self._takes_extra = False
        hints = _hints(function, label)
        self._parameters = self._read(function, hints)
        self._positional = [parameter.name for parameter in self._parameters if parameter.positional_only]
        self._plain = None if self._takes_extra else plain_arguments(self._parameters)
        self._model: _Arguments | None = None
        self.input_schema = (self._plain or self._full()).schema()
        self._returns = hints.get("return", Any)
        self._result_kind: Kind | None = None
        self._result: _Result | None = None
        self.wraps_result = False
        self.output_schema = self._describe_result()

    @property
    def parameter_names(self) -> list[str]:
        """What a caller may pass by name."""
        return [parameter.name for parameter in self._parameters]

    def bind(self, arguments: Mapping[str, object], context: Context | None = None) -> Bound:
        """The arguments checked and converted; raises ArgumentsInvalid with every field that is wrong.

        Validators of the author's own models run here, and may raise anything.
        """
        return self.bind_plain(arguments, context) or self._ordered(self._full().check(arguments), context)

    def bind_plain(self, arguments: Mapping[str, object], context: Context | None = None) -> Bound | None:
        """The same for arguments that are right and plain, without running anything of an author's; else None."""
        values = None if self._plain is None else self._plain.check(arguments)
        return None if values is None else self._ordered(values, context)

    def _ordered(self, values: dict[str, Any], context: Context | None) -> Bound:
        args = tuple(values.pop(name) for name in self._positional)
        if self.context_parameter is not None:
            values[self.context_parameter] = context or Context()
        return Bound(args, values)

    def check_result(self, value: object) -> None:
        """Refuse a JSON value that the return annotation, and so the published schema, does not allow."""
        if self._result_kind is not None:
            if self._result_kind.accept(value) is not UNSURE:
                return
            self._result = self._result or _models().ModelResult(self.label, self._returns)
        if self._result is not None:
            self._result.check(value)

    def _full(self) -> _Arguments:
        """The arguments as Pydantic sees them, made when they are first needed."""
        if self._model is None:
            self._model = _models().ModelArguments(self.label, self._parameters, takes_extra=self._takes_extra)
        return self._model

    def _read(self, function: Callable[..., object], hints: Mapping[str, Any]) -> list[Parameter]:
        described = _descriptions(function)
        found: list[Parameter] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise DefinitionError(
                    f"{self.label}: parameter '*{name}' cannot be passed by name",
                    hint=f"take a list instead: `{name}: list[str]`",
                    parameter=name,
                )
            annotation = hints.get(name, Any)
            if parameter.kind is parameter.VAR_KEYWORD:
                self._takes_extra = True
            elif annotation is Context or Context in typing.get_args(annotation):
                self.context_parameter = name
            else:
                default = EMPTY if parameter.default is parameter.empty else parameter.default
                positional_only = parameter.kind is parameter.POSITIONAL_ONLY
                found.append(Parameter(name, annotation, default, described.get(name), positional_only))
        return found

    def _describe_result(self) -> JSON | None:
        if self._returns in (Any, None, type(None)) or _mentions_content(self._returns):
            return None
        self._result_kind = kind_of(self._returns)
        if self._result_kind is not None:
            schema = self._result_kind.schema
        else:
            self._result = _models().describe_result(self.label, self._returns)
            if self._result is None:
                return None
            schema = self._result.schema()
        self.wraps_result = schema.get("type") != "object"
        return _wrapped(schema) if self.wraps_result else schema


def _models() -> Any:
    return importlib.import_module("aenv.define.models")


def _hints(function: Callable[..., object], label: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as problem:  # an author's annotation may raise anything when it is evaluated
        raise DefinitionError(
            f"{label}: an annotation cannot be read: {problem}",
            hint="import the type at module level, not only under TYPE_CHECKING",
        ) from problem


def _descriptions(function: Callable[..., object]) -> dict[str, str]:
    doc = inspect.getdoc(function) or ""
    if not any(mark in doc for mark in _SECTIONS):
        return {}
    # The parser costs 10 ms to import: only those pay who wrote a section for it.
    parser = importlib.import_module("aenv.define.docstring")
    return typing.cast("dict[str, str]", parser.parameter_descriptions(doc))


def _wrapped(schema: JSON) -> JSON:
    """A result that is no object travels as `{"result": value}`: older revisions know objects alone."""
    wrapped: JSON = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if "$defs" in schema:
        wrapped["$defs"] = schema.pop("$defs")
    wrapped["x-fastmcp-wrap-result"] = True
    return wrapped


def _mentions_content(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Image | Audio | File):
        return True
    module = getattr(annotation, "__module__", "")
    if isinstance(annotation, type) and module.partition(".")[0] in ("mcp", "mcp_types"):
        return True
    inside = (types.UnionType, typing.Union, Annotated, list, tuple)
    origin = typing.get_origin(annotation)
    return origin in inside and any(_mentions_content(arg) for arg in typing.get_args(annotation))
