"""Signatures made of JSON's own types, described and checked without Pydantic.

Importing Pydantic takes longer than the whole rest of a server's start, and most tools take text and numbers. What is
here only ever *accepts*: a value of exactly the annotated type. Whatever else arrives, to be converted or refused, is
`UNSURE`, and Pydantic decides. So there is one set of rules, and this is a way to know early that they are met.
"""

from __future__ import annotations

import copy
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

JSON = dict[str, Any]
UNSURE: Final = object()
EMPTY: Final = object()

_NONE = type(None)
_SCALARS: dict[Any, str] = {str: "string", int: "integer", bool: "boolean", _NONE: "null"}
_EXACT_INTEGER = 2**53


class Parameter(NamedTuple):
    """One parameter of a function, as its signature gives it."""

    name: str
    annotation: Any
    default: Any
    description: str | None
    positional_only: bool


class Kind(NamedTuple):
    """A type: its schema, and the function that returns an acceptable value, or UNSURE."""

    schema: JSON
    accept: Callable[[Any], Any]


class PlainArguments:
    """The arguments of a function whose parameters are all plain."""

    def __init__(self, kinds: list[tuple[Parameter, Kind]]) -> None:
        self._kinds = kinds
        self._accepts = {parameter.name: kind.accept for parameter, kind in kinds}
        self._defaults = {parameter.name: parameter.default for parameter, _ in kinds}

    def schema(self) -> JSON:
        """The JSON Schema of the object that callers send."""
        properties = {}
        for parameter, kind in self._kinds:
            shown = dict(kind.schema)
            if parameter.description:
                shown["description"] = parameter.description
            if parameter.default is not EMPTY:
                shown["default"] = parameter.default
            properties[parameter.name] = shown
        schema: JSON = {"type": "object", "properties": properties, "additionalProperties": False}
        if required := [parameter.name for parameter, _ in self._kinds if parameter.default is EMPTY]:
            schema["required"] = required
        return schema

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Each parameter's value, or None when it takes more to know."""
        values: dict[str, Any] = {}
        for name, given in arguments.items():
            accept = self._accepts.get(name)
            if accept is None:
                return None
            value = accept(given)
            if value is UNSURE:
                return None
            values[name] = value
        if len(values) < len(self._defaults):
            for name, default in self._defaults.items():
                if name not in values:
                    if default is EMPTY:
                        return None
                    values[name] = copy.deepcopy(default) if isinstance(default, list | dict) else default
        return values


def plain_arguments(parameters: list[Parameter]) -> PlainArguments | None:
    """The plain description of these parameters, or None when one of them is not plain."""
    kinds = []
    for parameter in parameters:
        kind = kind_of(parameter.annotation)
        if kind is None or not (parameter.default is EMPTY or _is_json(parameter.default)):
            return None
        kinds.append((parameter, kind))
    return PlainArguments(kinds)


def kind_of(annotation: Any) -> Kind | None:
    """The kind of a plain annotation; None for every other."""
    if annotation is Any:
        return Kind({}, _anything)
    if annotation is None:
        annotation = _NONE
    if isinstance(annotation, type) and annotation in _SCALARS:
        return Kind({"type": _SCALARS[annotation]}, _exactly(annotation))
    if annotation is float:
        return Kind({"type": "number"}, _number)
    return _composed(annotation, typing.get_origin(annotation) or annotation, typing.get_args(annotation))


def _composed(annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> Kind | None:
    if origin is list:
        inner = kind_of(arguments[0] if arguments else Any)
        return inner and Kind({"type": "array", "items": inner.schema}, _list_of(inner.accept))
    if origin is dict:
        return _dictionary(arguments)
    if origin in (types.UnionType, typing.Union):
        kinds = [kind_of(argument) for argument in arguments]
        if None in kinds:
            return None
        known = [kind for kind in kinds if kind is not None]
        return Kind({"anyOf": [kind.schema for kind in known]}, _any_of([kind.accept for kind in known]))
    if origin is Literal:
        return _literal(arguments)
    return None


def _anything(value: Any) -> Any:
    return value


def _exactly(kind: type) -> Callable[[Any], Any]:
    return lambda value: value if type(value) is kind else UNSURE


def _number(value: Any) -> Any:
    if type(value) is float:
        return value
    return float(value) if type(value) is int and abs(value) <= _EXACT_INTEGER else UNSURE


def _list_of(accept: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not list:
            return UNSURE
        checked = [accept(item) for item in value]
        return UNSURE if any(item is UNSURE for item in checked) else checked

    return check


def _dictionary(arguments: tuple[Any, ...]) -> Kind | None:
    key, item = arguments or (str, Any)
    inner = kind_of(item)
    if key is not str or inner is None:
        return None
    accept = inner.accept

    def check(value: Any) -> Any:
        if type(value) is not dict or not all(type(name) is str for name in value):
            return UNSURE
        checked = {name: accept(member) for name, member in value.items()}
        return UNSURE if any(member is UNSURE for member in checked.values()) else checked

    return Kind({"type": "object", "additionalProperties": inner.schema or True}, check)


def _any_of(accepts: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        for accept in accepts:
            # Equal and of the same type: nothing was converted, so no other member of the union fits better.
            checked = accept(value)
            if checked is not UNSURE and type(checked) is type(value) and checked == value:
                return checked
        return UNSURE

    return check


def _literal(values: tuple[Any, ...]) -> Kind | None:
    kinds = {type(value) for value in values}
    if len(kinds) != 1 or not kinds <= {str, int}:
        return None
    kind = kinds.pop()
    shown: JSON = {"const": values[0]} if len(values) == 1 else {"enum": list(values)}
    allowed = frozenset(values)
    return Kind(
        {**shown, "type": _SCALARS[kind]}, lambda value: value if type(value) is kind and value in allowed else UNSURE
    )


def _is_json(value: Any) -> bool:
    if value is None or type(value) in (str, int, bool):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return all(_is_json(item) for item in value)
    return type(value) is dict and all(type(key) is str and _is_json(item) for key, item in value.items())
