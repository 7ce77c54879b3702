"""JSON text at orjson's speed, without its limit on integers."""

from __future__ import annotations

import json
from typing import Any

import orjson

JSONDecodeError = orjson.JSONDecodeError


def dumps(value: Any, *, in_order: bool = False, strict: bool = False) -> bytes:
    """Compact UTF-8 JSON; `in_order` sorts keys, so that equal values give equal bytes.

    Half a surrogate pair, which UTF-8 has no bytes for, is written as its escape; `strict` raises UnicodeEncodeError.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if in_order else 0)
    except TypeError:
        # Integers past 64 bits and lone surrogates, which orjson refuses; the slow way has no such limits.
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_fragment, sort_keys=in_order
        )
        return text.encode("utf-8", "strict" if strict else "backslashreplace")


def loads(text: bytes | str) -> Any:
    """The value, or JSONDecodeError; duplicate keys keep the last, as everywhere."""
    return orjson.loads(text)


def _fragment(value: Any) -> Any:
    if isinstance(value, orjson.Fragment):
        return json.loads(value.contents)
    raise TypeError(f"{type(value).__name__} is not JSON")
