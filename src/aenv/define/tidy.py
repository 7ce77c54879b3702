"""JSON Schemas as a language model wants to read them: no generated titles, nested models in place."""

from __future__ import annotations

from typing import Any

JSON = dict[str, Any]

_NAMED = ("properties", "patternProperties")
_ONE = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")


def tidy(schema: JSON) -> JSON:
    """The same schema without titles, and with each `$ref` replaced by what it names unless that contains itself."""
    definitions: dict[str, JSON] = schema.get("$defs", {})
    kept: set[str] = set()
    clean = _walk({key: value for key, value in schema.items() if key != "$defs"}, definitions, (), kept)
    if kept:
        # What a kept definition refers to must be kept as well, so the set grows while it is walked.
        walked: dict[str, JSON] = {}
        while missing := sorted(kept - walked.keys()):
            for name in missing:
                walked[name] = _walk(definitions[name], definitions, (name,), kept)
        clean["$defs"] = walked
    return clean


def _walk(schema: JSON, definitions: dict[str, JSON], inside: tuple[str, ...], kept: set[str]) -> JSON:
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if name in inside or _recursive(name, definitions):
            kept.add(name)
            return {"$ref": reference, **_walk(rest, definitions, inside, kept)}
        return {
            **_walk(definitions[name], definitions, (*inside, name), kept),
            **_walk(rest, definitions, inside, kept),
        }
    return {key: _value(key, value, definitions, inside, kept) for key, value in schema.items() if key != "title"}


def _value(key: str, value: Any, definitions: dict[str, JSON], inside: tuple[str, ...], kept: set[str]) -> Any:
    if key in _NAMED and isinstance(value, dict):
        return {name: _walk(child, definitions, inside, kept) for name, child in value.items()}
    if key in _ONE and isinstance(value, dict):
        return _walk(value, definitions, inside, kept)
    if key in _MANY and isinstance(value, list):
        return [_walk(child, definitions, inside, kept) for child in value]
    return value


def _recursive(name: str, definitions: dict[str, JSON]) -> bool:
    """Whether the definition leads back to itself."""
    seen: set[str] = set()
    ahead = _references(definitions[name])
    while ahead:
        step = ahead.pop()
        if step == name:
            return True
        if step not in seen:
            seen.add(step)
            ahead |= _references(definitions[step])
    return False


def _references(node: Any) -> set[str]:
    if isinstance(node, dict):
        own = {node["$ref"].rpartition("/")[2]} if isinstance(node.get("$ref"), str) else set()
        return own.union(*(_references(value) for value in node.values()))
    if isinstance(node, list):
        return set().union(*(_references(value) for value in node))
    return set()
