"""Checks of the author's files, by reading them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import PurePath
from typing import NamedTuple

from aenv.build.validate.findings import Flaw
from aenv.build.validate.names import aliases, dotted
from aenv.build.validate.subject import Source, Subject

_KINDS = {f"register_{kind}": kind for kind in ("tool", "reward", "function", "health")}
# Ways to register something without a decorator.
_REGISTRY = {"add_tool", "add_reward", "add_function", "set_health", "get_registry"}
_BLOCKING = {
    "time.sleep": "await asyncio.sleep(...)",
    "os.system": "await asyncio.create_subprocess_shell(...)",
    "urllib.request.urlopen": "await asyncio.to_thread(urlopen, ...)",
    **{
        f"subprocess.{name}": "await asyncio.create_subprocess_exec(...)"
        for name in ("run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
    },
    **{
        f"{library}.{name}": "an async client, or await asyncio.to_thread(...)"
        for library in ("requests", "httpx")
        for name in ("get", "post", "put", "patch", "delete", "head", "options", "request")
    },
}
# The server imports itself before the author's code, so its name is as taken as those of the standard library.
_TAKEN = sys.stdlib_module_names | {"aenv"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Registered(NamedTuple):
    """A function below one of our decorators."""

    kind: str
    name: str | None
    where: str
    function: _Function


def find_missing(subject: Subject) -> Iterator[Flaw]:
    """source.missing."""
    if not subject.sources:
        folder = "src/" if subject.root != subject.folder else "the project's folder"
        yield Flaw(folder, "holds no Python file that a server would import")


def find_no_src(subject: Subject) -> Iterator[Flaw]:
    """source.no_src."""
    if subject.sources and subject.root == subject.folder:
        files = ", ".join(source.shown for source in subject.sources[:3])
        yield Flaw("src/", f"is missing, so every Python file here is imported, such as {files}")


def find_syntax_errors(subject: Subject) -> Iterator[Flaw]:
    """source.syntax."""
    for source in subject.all_sources:
        if source.problem is not None:
            line = f":{source.line}" if source.line is not None else ""
            yield Flaw(f"{source.shown}{line}", f"is not Python: {source.problem}")


def find_shadowing(subject: Subject) -> Iterator[Flaw]:
    """source.shadows_stdlib."""
    prefix = subject.root.relative_to(subject.folder)
    for top in sorted({PurePath(source.shown).relative_to(prefix).parts[0] for source in subject.sources}):
        name = PurePath(top).stem
        if name in _TAKEN:
            owner = "aenv itself" if name == "aenv" else "the standard library"
            yield Flaw(str(prefix / top), f"takes the name {name!r}, which belongs to {owner}")


def find_nothing_registered(subject: Subject) -> Iterator[Flaw]:
    """define.nothing."""
    if subject.sources and not any(source.problem or _registers(source) for source in subject.all_sources):
        yield Flaw("src/", "registers no tool, no reward, no function and no health check")


def find_duplicates(subject: Subject) -> Iterator[Flaw]:
    """define.duplicate: at the top level alone, because two branches of an `if` may define one name each."""
    first: dict[tuple[str, str], str] = {}
    for source in subject.sources:
        known = aliases(source.tree)
        for kind, name, where, _ in _registered(source, source.tree.body, known):
            if name is None or kind == "health":
                continue
            if (kind, name) in first:
                yield Flaw(where, f"registers the {kind} {name!r} again, which is registered in {first[kind, name]}")
            else:
                first[kind, name] = where


def find_blocking_calls(subject: Subject) -> Iterator[Flaw]:
    """source.blocking_call."""
    for source in subject.all_sources:
        known = aliases(source.tree)
        for kind, name, _, function in _registered(source, list(ast.walk(source.tree)), known):
            if not isinstance(function, ast.AsyncFunctionDef):
                continue
            for call in _own_calls(function):
                called = dotted(call.func, known)
                if called in _BLOCKING:
                    message = f"calls {called} in the async {kind} {name or function.name!r}: all others wait for it"
                    yield Flaw(source.at(call), message, f"write {_BLOCKING[called]}, or make it a plain `def`")


def _registers(source: Source) -> bool:
    known = aliases(source.tree)
    names = (dotted(node, known) for node in ast.walk(source.tree) if isinstance(node, ast.Name | ast.Attribute))
    return any(name.rpartition(".")[2] in (_KINDS.keys() | _REGISTRY) for name in names)


def _registered(source: Source, nodes: list[ast.stmt] | list[ast.AST], known: dict[str, str]) -> Iterator[Registered]:
    for node in nodes:
        if not isinstance(node, _Function):
            continue
        for decorator in node.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            kind = _KINDS.get(dotted(target, known).rpartition(".")[2])
            if kind is not None:
                yield Registered(kind, _name(node, decorator), source.at(node), node)


def _name(function: _Function, decorator: ast.expr) -> str | None:
    """The name on the wire; None where only running the code would tell."""
    for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if keyword.arg == "name":
            literal = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
            return literal if isinstance(literal, str) else None
        if keyword.arg is None:
            return None
    return function.name


def _own_calls(function: ast.AsyncFunctionDef) -> Iterator[ast.Call]:
    """Calls in the function's own body: what it defines inside may well run in a thread."""
    ahead: list[ast.AST] = list(function.body)
    while ahead:
        node = ahead.pop(0)
        if isinstance(node, _Function | ast.Lambda):
            continue
        if isinstance(node, ast.Call):
            yield node
        ahead += ast.iter_child_nodes(node)
