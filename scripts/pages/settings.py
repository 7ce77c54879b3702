"""docs/reference/settings.md: every setting, from the class that holds them and the function that reads them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise
from types import FunctionType
from typing import Any, NamedTuple, get_args, get_type_hints

from aenv import settings
from aenv.settings import EngineSettings
from pages.tables import MADE, code, table

_PAGE = """\
# Settings

{made}

What an engine is told by variables of the process that opens it. They are read once, when its settings are loaded; a
value that a variable cannot have is an error that names the variable. An empty variable counts as not set.
`aenv doctor` lists those that are not at their default.

{read}

From Python alone, as arguments of `EngineSettings`:

{others}

[Start sandboxes](../howto/start-sandboxes.md) uses them; [Isolation](../explanation/isolation.md) says what each mode
holds. What an environment asks for is said in its [config.json](config.md), not here.
"""

_PREFIX = "AENV_"
_KINDS = {"str": "text", "int": "whole number", "Path": "folder"}


class _Setting(NamedTuple):
    name: str
    variable: str
    takes: str
    default: str
    about: str


def render() -> str:
    """The text of the page."""
    known = list(_settings())
    read = [(code(one.variable), one.takes, one.default, one.about) for one in known if one.variable]
    others = [(code(one.name), one.takes, one.default, one.about) for one in known if not one.variable]
    return _PAGE.format(
        made=MADE,
        read=table(["variable", "takes", "default", "meaning"], read),
        others=table(["name", "takes", "default", "meaning"], others),
    )


def _settings() -> Iterator[_Setting]:
    hints, loads, nodes = get_type_hints(EngineSettings), _loads(), _fields()
    for field in fields(EngineSettings):
        value, about = nodes[field.name]
        yield _Setting(
            field.name,
            _variable(loads.get(field.name)),
            _takes(hints[field.name]),
            _default(field.default, value),
            about,
        )


def _tree(thing: Callable[..., object] | type) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _fields() -> dict[str, tuple[ast.expr, str]]:
    """Each field's default as it is written, and the text below it."""
    found: dict[str, tuple[ast.expr, str]] = {}
    body = _tree(EngineSettings).body
    for node, below in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            assert isinstance(below, ast.Expr), node.target.id
            assert isinstance(below.value, ast.Constant), node.target.id
            found[node.target.id] = node.value, inspect.cleandoc(str(below.value.value))
    return found


def _loads() -> dict[str, ast.expr]:
    """What `load` gives each field, as it is written."""
    calls = (node for node in ast.walk(_tree(EngineSettings.load)) if isinstance(node, ast.Call))
    (made,) = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "cls")
    return {word.arg: word.value for word in made.keywords if word.arg is not None}


def _variable(value: ast.AST | None) -> str:
    """The variable that an expression reads, itself or in the function that it calls."""
    if value is None:
        return ""
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and str(node.value).startswith(_PREFIX):
            return str(node.value)
    called = [_function(node) for node in ast.walk(value)]
    return next((found for one in called if one is not None and (found := _variable(_tree(one)))), "")


def _function(node: ast.AST) -> FunctionType | None:
    found = getattr(settings, node.id, None) if isinstance(node, ast.Name) else None
    return found if isinstance(found, FunctionType) and found.__module__ == settings.__name__ else None


def _takes(hint: Any) -> str:
    words = get_args(hint)
    return " or ".join(code(word) for word in words) if words else _KINDS[hint.__name__]


def _default(value: object, written: ast.expr) -> str:
    """The value; where a function makes it, what that says of itself; where it is the machine's, how it is written."""
    for node in ast.walk(written):
        if (one := _function(node)) is not None:
            return (inspect.getdoc(one) or "").partition(", else ")[2].rstrip(".")
    return code(ast.unparse(written) if isinstance(written, ast.Attribute) else str(value))
