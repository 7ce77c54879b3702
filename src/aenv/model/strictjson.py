"""JSON text into plain values, stricter than the standard library: nothing is dropped, nothing is guessed."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from aenv._util.unreadable import shown
from aenv.errors import ConfigError
from aenv.model.problems import Place, Problem, spell_path

# Far more than any configuration needs, far less than what Python's own recursion stands.
DEEPEST = 64
_LONGEST_INT = 300
_EXCERPT = 72
_TOO_LARGE = 2**1024
_SAID = {
    "Expecting value": "a value is expected here",
    "Expecting property name enclosed in double quotes": "a key in double quotes is expected here",
    "Expecting ':' delimiter": "a colon is expected here",
    "Expecting ',' delimiter": "a comma or a closing bracket is expected here",
    "Illegal trailing comma before end of object": "a comma is followed by nothing",
    "Illegal trailing comma before end of array": "a comma is followed by nothing",
    "Unterminated string starting at": "this text has no closing quote",
    "Invalid control character at": "a line break or tab inside a text is written \\n or \\t",
    "Extra data": "more text follows the end of the value",
}


class _Repeated(dict[str, object]):
    """An object that wrote some of its keys more than once."""

    again: tuple[str, ...] = ()


class _Node(NamedTuple):
    place: Place
    value: object


def read_json(text: str | bytes, *, where: str) -> object:
    """The value that the text holds; ConfigError with line, column and the line itself when it holds none.

    Keys written twice are remembered for `find_repeated`, numbers without a value for `find_unwritable`.
    """
    try:
        decoded = text.decode("utf-8") if isinstance(text, bytes) else text
        # Some editors start a file with a byte order mark.
        return json.loads(decoded.removeprefix("\ufeff"), object_pairs_hook=_collect, parse_int=_read_int)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where} is not UTF-8 text: byte {error.start} is wrong", hint="save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise _syntax_error(error, where) from error
    except RecursionError as error:
        raise ConfigError(f"{where} is nested more than {DEEPEST} deep") from error


def find_repeated(root: object) -> list[Problem]:
    """Keys that an object wrote twice. JSON lets the last one win in silence; here it is a problem."""
    return [
        Problem(spell_path((*node.place, key)), node.value[key], "is written twice", "keep one of the two")
        for node in _walk(root)
        if isinstance(node.value, _Repeated)
        for key in node.value.again
    ]


def find_unwritable(root: object) -> list[Problem]:
    """Whatever JSON text could not give back: NaN, sets, keys that are no text, half characters, endless depth."""
    return [Problem(spell_path(node.place), None, flaw) for node in _walk(root) for flaw in _flaws(node)]


def _walk(root: object) -> Iterator[_Node]:
    stack = [_Node((), root)]
    while stack:
        node = stack.pop()
        yield node
        if len(node.place) < DEEPEST:
            stack += reversed([_Node((*node.place, step), value) for step, value in _members(node.value)])


def _members(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, dict):
        return [(key, member) for key, member in value.items() if isinstance(key, str)]
    return list(enumerate(value)) if isinstance(value, list | tuple) else []


def _flaws(node: _Node) -> Iterator[str]:
    match node.value:
        case dict() | list() | tuple() if len(node.place) == DEEPEST:
            yield f"is nested more than {DEEPEST} deep"
        case dict() as members:
            yield from (f"has the key {key!r}, which is no text" for key in members if _is_broken(key))
        case str() as text if _is_broken(text):
            yield f"is {shown(text)}, which has half a character"
        case float() as number if math.isnan(number):
            yield "is NaN, which JSON does not have"
        case int() | float() as number if abs(number) >= _TOO_LARGE:
            yield "is a number too large to keep"
        case value if not isinstance(value, dict | list | tuple | str | int | float | None):
            yield f"is a Python {type(value).__name__}, which JSON does not have"


def _is_broken(text: object) -> bool:
    # JSON can escape one half of a surrogate pair; no encoding can write it to a file.
    return not isinstance(text, str) or re.search("[\ud800-\udfff]", text) is not None


def _collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = _Repeated(pairs)
    if len(members) == len(pairs):
        return dict(pairs)
    members.again = tuple(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return members


def _read_int(digits: str) -> int | float:
    # Python refuses to convert numbers of thousands of digits with an error that names no place.
    return int(digits) if len(digits) <= _LONGEST_INT else math.inf


def _syntax_error(error: json.JSONDecodeError, where: str) -> ConfigError:
    text = error.doc.rstrip()
    if not text:
        return ConfigError(f"{where} is empty", hint='write { "name": ..., "version": ... }')
    # A text that ends too early is wrong at its last word, not on the empty line below it.
    position = min(error.pos, len(text))
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    message = _SAID.get(error.msg, error.msg) if position < len(text) else "the text ends too early"
    excerpt = _excerpt(text.split("\n")[line - 1], column - 1)
    hint = _syntax_hint(text[:position].rstrip(), text[position:].lstrip())
    return ConfigError(
        f"{where}: line {line}, column {column}: {message}\n{excerpt}", hint=hint, line=line, column=column
    )


def _excerpt(line: str, index: int) -> str:
    start = max(0, index - _EXCERPT // 2)
    visible = "".join(char if char.isprintable() else " " for char in line[start : start + _EXCERPT])
    return f"  {visible}\n  {'^':>{index - start + 1}}"


def _syntax_hint(before: str, after: str) -> str | None:
    # Python 3.13 points at the comma, older ones behind it.
    behind = after[1:].lstrip() if after[:1] == "," else after if before.endswith(",") else ""
    if behind[:1] in {"}", "]"}:
        return "remove the comma before the closing bracket"
    if after[:1] == "'":
        return "JSON takes double quotes"
    return "JSON has no comments" if after[:1] in {"/", "#"} else None
