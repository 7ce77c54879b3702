"""Checks of tools as a language model and its provider see them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aenv.build.validate.findings import Flaw
from aenv.build.validate.visit import Json, Visit

SHORTEST_DESCRIPTION = 10
DEEPEST_SCHEMA = 5
# OpenAI's limits, which most other providers copied: https://platform.openai.com/docs/api-reference/chat/create
MOST_TOOLS = 128
PORTABLE_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_TYPED = {"type", "anyOf", "oneOf", "allOf", "enum", "const", "$ref"}


class _Parameter(NamedTuple):
    where: str
    schema: Json


def find_undescribed(visit: Visit) -> Iterator[Flaw]:
    """tool.undescribed."""
    for tool in visit.tools:
        if not _description(tool):
            yield Flaw(_where(tool), "has no description")


def find_vague(visit: Visit) -> Iterator[Flaw]:
    """tool.vague."""
    for tool in visit.tools:
        text = _description(tool)
        if text and (len(text) < SHORTEST_DESCRIPTION or _letters(text) == _letters(str(tool["name"]))):
            yield Flaw(_where(tool), f"is described as {text!r}, which says no more than its name")


def find_untyped(visit: Visit) -> Iterator[Flaw]:
    """parameter.untyped."""
    for where, schema in _parameters(visit):
        if not _TYPED & schema.keys():
            yield Flaw(where, "has no type")


def find_undescribed_parameters(visit: Visit) -> Iterator[Flaw]:
    """parameter.undescribed."""
    for where, schema in _parameters(visit):
        if not schema.get("description"):
            yield Flaw(where, "has no description")


def find_too_many(visit: Visit) -> Iterator[Flaw]:
    """tool.many."""
    if len(visit.tools) > MOST_TOOLS:
        yield Flaw("tools", f"are {len(visit.tools)}, and many models take {MOST_TOOLS} at most")


def find_unportable_names(visit: Visit) -> Iterator[Flaw]:
    """tool.unportable_name."""
    for tool in visit.tools:
        if not PORTABLE_NAME.fullmatch(str(tool["name"])):
            yield Flaw(_where(tool), "has a name that OpenAI and others refuse")


def find_deep(visit: Visit) -> Iterator[Flaw]:
    """schema.deep."""
    for tool in visit.tools:
        depth = schema_depth(tool.get("inputSchema"))
        if depth > DEEPEST_SCHEMA:
            yield Flaw(_where(tool), f"takes parameters that are nested {depth} deep")


def find_recursive(visit: Visit) -> Iterator[Flaw]:
    """schema.recursive: references are kept for what contains itself alone, so any one is a sign."""
    for tool in visit.tools:
        if _refers(tool.get("inputSchema")):
            yield Flaw(_where(tool), "takes a parameter that contains itself, which some models cannot fill in")


def schema_depth(schema: object) -> int:
    """How many objects and arrays lie in one another; the arguments themselves are the first."""
    if isinstance(schema, list):
        return max(map(schema_depth, schema), default=0)
    if not isinstance(schema, Mapping):
        return 0
    named = schema.get("properties")
    inside = [*named.values()] if isinstance(named, Mapping) else []
    inside += [schema[key] for key in ("items", "additionalProperties", "prefixItems") if key in schema]
    beside = [schema[key] for key in ("anyOf", "oneOf", "allOf") if key in schema]
    own = 1 if inside or schema.get("type") in ("object", "array") else 0
    return max(own + schema_depth(inside), schema_depth(beside))


def _refers(node: object) -> bool:
    if isinstance(node, Mapping):
        return isinstance(node.get("$ref"), str) or any(map(_refers, node.values()))
    return isinstance(node, list) and any(map(_refers, node))


def _parameters(visit: Visit) -> Iterator[_Parameter]:
    for tool in visit.tools:
        schema = tool.get("inputSchema")
        members = schema.get("properties") if isinstance(schema, Mapping) else None
        for name, member in members.items() if isinstance(members, Mapping) else ():
            yield _Parameter(f"{_where(tool)}, parameter {name!r}", member)


def _description(tool: Json) -> str:
    return str(tool.get("description") or "").strip()


def _letters(text: str) -> str:
    return re.sub(r"[\W_]+", "", text).casefold()


def _where(tool: Json) -> str:
    return f"tool {tool['name']!r}"
