"""docs/reference/config.md: every key of config.json, from the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from aenv.model.sections import Artifact, Section
from aenv.model.spec import EnvSpec, config_schema
from pages.tables import MADE, code, table

_PAGE = """\
# config.json

{made}

Each environment has a `config.json` in its project folder. Two keys are required:

```json
{{
  "name": "my-env",
  "version": "1.0.0"
}}
```

A value that a key cannot have is an error that names the key and what it takes; nothing is converted or guessed.
Unknown keys are kept and ignored; `aenv validate` points out those that look misspelt. Editors can check the file as
you type: copy `config.schema.json` from this folder beside it and add `"$schema": "./config.schema.json"`.

The commands act on `name`, `version`, `description`, `testConfig` and `deployConfig.sandbox`; `aenv validate` also
looks at `buildConfig.dockerfile`, `deployConfig.memory` and `deployConfig.environmentVariables`. The local engine acts
on `deployConfig`: `cpu`, `memory` and `ephemeralStorage` with their `Limit` forms, `processes`, `openFiles`, `network`,
`networkAllow`, `environmentVariables`, `isolation`, `preload`, `forkable`, `command` and `runAsRoot`
([Start sandboxes](../howto/start-sandboxes.md)). The other keys are checked now and wait for the builder, the hub and
the engines that later releases bring. The block `validation` is described with the
[findings](findings.md#examples-and-promises).

{sections}
"""


class _Row(NamedTuple):
    key: str
    field: FieldInfo
    schema: dict[str, Any]


def render() -> str:
    """The text of the page."""
    schema = config_schema()
    sections = "\n\n".join(_section(title, kind, schema) for title, kind in _sections(EnvSpec, "Top level", ""))
    return _PAGE.format(made=MADE, sections=sections)


def paths() -> list[str]:
    """Every key by its path."""
    return [f"{title}.{row.key}" for title, kind in _sections(EnvSpec, "", "") for row in _rows(kind, config_schema())]


def _sections(kind: type[Section], title: str, path: str) -> Iterator[tuple[str, type[Section]]]:
    yield title, kind
    for name, field in kind.model_fields.items():
        key = f"{path}.{field.alias or name}" if path else (field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _sections(field.annotation, key, key)
        elif key == "artifacts":
            yield "artifacts[]", Artifact


def _section(title: str, kind: type[Section], schema: dict[str, Any]) -> str:
    rows = [(code(row.key), _takes(row), _default(row), row.field.description or "") for row in _rows(kind, schema)]
    return f"## {title}\n\n{table(['key', 'takes', 'default', 'meaning'], rows)}"


def _rows(kind: type[Section], schema: dict[str, Any]) -> Iterator[_Row]:
    block = schema if kind is EnvSpec else schema["$defs"][kind.__name__]
    for name, field in kind.model_fields.items():
        key = field.alias or name
        yield _Row(key, field, block["properties"][key])


def _takes(row: _Row) -> str:
    schema = _unwrapped(row.schema)
    if "enum" in schema:
        return " or ".join(code(word) for word in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    if "$ref" in schema:
        return "object"
    kinds = schema.get("type", "any")
    words = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    examples = schema.get("examples") or row.schema.get("examples") or []
    return words + (f", such as {code(json.dumps(examples[0]))}" if examples else "")


def _unwrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """The one alternative that is not null."""
    choices = [choice for choice in schema.get("anyOf", []) if choice.get("type") != "null"]
    return choices[0] if choices else schema


def _default(row: _Row) -> str:
    if row.field.is_required():
        return "required"
    value = row.field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, Section):
        return ""
    return code(json.dumps(list(value) if isinstance(value, tuple) else value))
