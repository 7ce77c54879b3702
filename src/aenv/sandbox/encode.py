"""What a function returned, as JSON: converted by the rules below, or refused with the path to the culprit.

| value | becomes |
|---|---|
| str, int, bool, None, finite float | itself |
| dict (text, integer or enum keys), list, tuple | object, array |
| set, frozenset | array, sorted where its members can be |
| dataclass, named tuple, Pydantic model | object |
| Enum | its value |
| datetime, date, time | ISO 8601 text |
| timedelta | seconds |
| UUID, Path, finite Decimal | text |
| numpy or torch scalar, array | number, nested arrays |
| NaN, Infinity, bytes, half a surrogate pair, two keys with one text, anything else | refused |
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from aenv._util.jsontext import dumps
from aenv.define.content import Audio, File, Image
from aenv.errors import ResultInvalid

_TEXT = (uuid.UUID, pathlib.PurePath, decimal.Decimal)
_DEEPEST = 200


class Result(NamedTuple):
    """A finished call's result: a JSON value with its bytes, or MCP content blocks."""

    value: Any
    json: bytes
    blocks: list[dict[str, Any]] | None = None


def to_result(value: object) -> Result:
    """Turn a function's return value into a Result; ResultInvalid says what cannot be carried and where it is."""
    blocks = _blocks(value)
    if blocks is not None:
        return Result({"content": blocks}, dumps({"content": blocks}), blocks)
    plain = to_json(value)
    try:
        return Result(plain, dumps(plain, strict=True))
    except UnicodeEncodeError as problem:
        raise ResultInvalid(
            f"result holds text that is not Unicode: {problem.reason} at {problem.object[problem.start]!r}",
            hint='decode bytes with errors="replace" instead of "surrogateescape"',
        ) from None


def to_json(value: object, path: str = "result", depth: int = 0) -> Any:
    """The same value made of nothing but JSON types."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return _finite(value, path)  # type: ignore[arg-type] # `kind is float` does not narrow
    if depth > _DEEPEST:
        raise ResultInvalid(
            f"{path} is nested more than {_DEEPEST} deep", hint="return a flatter value, or an id of it"
        )
    if kind is dict:
        return _object(value, path, depth)  # type: ignore[arg-type] # `kind is dict` does not narrow
    if kind is list or kind is tuple:
        return [to_json(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]  # type: ignore[arg-type, var-annotated] # nor does this
    return _converted(value, path, depth)


def _object(value: Mapping[object, object], path: str, depth: int) -> dict[str, Any]:
    plain = {_key(key, path): to_json(item, f"{path}[{key!r}]", depth + 1) for key, item in value.items()}
    if len(plain) < len(value):
        raise ResultInvalid(f"{path} has two keys that are the same as text", hint="make the keys text, each its own")
    return plain


def _key(key: object, path: str) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise ResultInvalid(
        f"{path} has the key {key!r} of type {type(key).__name__}, and JSON knows text keys alone",
        hint="make the keys text",
    )


def _finite(value: float, path: str) -> float:
    if math.isfinite(value):
        return value
    raise ResultInvalid(
        f"{path} is {value!r}, for which JSON has no number",
        hint="return None, or raise, when there is no number to give",
    )


def _converted(value: Any, path: str, depth: int) -> Any:
    simple = _simple(value, path)
    if simple is not _UNKNOWN:
        return simple
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields: dict[object, object] = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _object(fields, path, depth)
    if hasattr(value, "model_dump"):
        return to_json(value.model_dump(mode="python", by_alias=True), path, depth + 1)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _object(value._asdict(), path, depth)
    if isinstance(value, Mapping):
        return _object(value, path, depth)
    if isinstance(value, set | frozenset):
        return to_json(_ordered(value), path, depth)
    if isinstance(value, list | tuple):
        return to_json(list(value), path, depth)
    return _foreign(value, path, depth)


_UNKNOWN = object()


def _simple(value: Any, path: str) -> Any:
    if isinstance(value, enum.Enum):
        return to_json(value.value, path)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, _TEXT):
        return _as_text(value, path)
    for kind in (str, int):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, float):
        return _finite(float(value), path)
    return _UNKNOWN


def _as_text(value: Any, path: str) -> str:
    if isinstance(value, decimal.Decimal) and not value.is_finite():
        _finite(float(value), path)
    return str(value)


def _ordered(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _foreign(value: Any, path: str, depth: int) -> Any:
    """Numbers and arrays of numpy, torch and their kin, known by what they can do."""
    if not isinstance(value, type) and not isinstance(value, bytes | bytearray | memoryview):
        if callable(listed := getattr(value, "tolist", None)):
            return to_json(listed(), path, depth + 1)
        if callable(item := getattr(value, "item", None)):
            return to_json(item(), path, depth + 1)
    raise ResultInvalid(
        f"{path} is of type {type(value).__module__}.{type(value).__qualname__}, which has no JSON form".replace(
            "builtins.", ""
        ),
        hint=_hint(value),
    )


def _hint(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return "decode text, or return aenv.Image, aenv.Audio or aenv.File for what is not text"
    return "return numbers, text, lists, dictionaries, dataclasses or Pydantic models"


def _blocks(value: object) -> list[dict[str, Any]] | None:
    """MCP content blocks if the value is content, or a list that holds some; text and data beside it become text."""
    if _is_content(value):
        return [_block(value)]
    if isinstance(value, list | tuple) and any(_is_content(item) for item in value):
        return [_block(item) for item in value]
    return None


def _is_content(value: object) -> bool:
    if isinstance(value, Image | Audio | File):
        return True
    return type(value).__module__.partition(".")[0] in ("mcp", "mcp_types") and hasattr(value, "model_dump")


def _block(value: Any) -> dict[str, Any]:
    if isinstance(value, Image | Audio | File):
        return value.to_block()
    if _is_content(value):
        dumped: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return dumped
    return {"type": "text", "text": value if isinstance(value, str) else text_of(to_json(value))}


def text_of(value: Any) -> str:
    """A JSON value as the text a model reads: text as it is, everything else as compact JSON."""
    return value if isinstance(value, str) else dumps(value).decode()


def fragment(result: Result) -> orjson.Fragment:
    """The result's bytes for embedding into a larger document without encoding them again."""
    return orjson.Fragment(result.json)
