"""Checks of requirements.txt against what the author's files import."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from aenv.build.validate.findings import Flaw
from aenv.build.validate.names import aliases, dotted
from aenv.build.validate.subject import REQUIREMENTS_FILE, Source, Subject

# https://packaging.python.org/en/latest/specifications/dependency-specifiers/
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_CLAUSE = r"(?:===|~=|==|!=|<=|>=|<|>)\s*[A-Za-z0-9.*+!_-]+"
_CLAUSES = rf"{_CLAUSE}(?:\s*,\s*{_CLAUSE})*\s*,?"
_REQUIREMENT = re.compile(
    rf"(?P<name>{_NAME})\s*(?:\[\s*(?:{_NAME}(?:\s*,\s*{_NAME})*)?\s*\])?\s*"
    rf"(?:@\s*\S+|{_CLAUSES}|\(\s*(?:{_CLAUSES})?\s*\))?\s*(?:;.*|\s--\S.*)?"
)
# Options, addresses, archives and folders: pip reads them, and no name of a package can be had from them.
_OPAQUE = re.compile(r"-.*|.*://.*|\.{0,2}/.*|\.|.*\.(?:whl|zip|tar\.gz)(?:\s*;.*)?|.*\$\{.*", re.DOTALL)

# Distributions named unlike their module, where the module is not installed here to tell.
_KNOWN = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "jwt": "pyjwt",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


class Import(NamedTuple):
    """A module from outside the project, and where it is first imported."""

    module: str
    where: str


class Requirements(NamedTuple):
    """What requirements.txt says; `is_complete` is False where lines pull in what their text does not name."""

    names: frozenset[str]
    wrong: tuple[Flaw, ...]
    is_complete: bool


def find_invalid_lines(subject: Subject) -> Iterable[Flaw]:
    """requirements.invalid."""
    return read_requirements(subject.requirements or "").wrong


def find_missing_file(subject: Subject) -> Iterator[Flaw]:
    """requirements.missing."""
    if subject.requirements is None and not subject.has("pyproject.toml"):
        modules = sorted({found.module for found in third_party(subject)})
        if modules:
            yield Flaw(REQUIREMENTS_FILE, f"is missing, and the code imports {', '.join(modules)}")


def find_unlisted(subject: Subject) -> Iterator[Flaw]:
    """requirements.unlisted."""
    if subject.requirements is None:
        return
    listed = read_requirements(subject.requirements)
    if not listed.is_complete:
        return
    modules = third_party(subject)
    # Reads the metadata of every package there is, so only once, and only where it is needed.
    installed = importlib.metadata.packages_distributions() if modules else {}
    for module, where in modules:
        if not listed.names & _distributions(module, installed):
            yield Flaw(where, f"imports {module!r}, and no line of {REQUIREMENTS_FILE} seems to bring it")


def read_requirements(text: str) -> Requirements:
    """Names of packages in their normal form, and the lines that pip would refuse."""
    names: set[str] = set()
    wrong: list[Flaw] = []
    is_complete = True
    for number, line in _logical_lines(text):
        if _OPAQUE.fullmatch(line):
            is_complete = False
        elif match := _REQUIREMENT.fullmatch(line):
            names.add(_normal(match["name"]))
        else:
            wrong.append(Flaw(f"{REQUIREMENTS_FILE}:{number}", f"is {line!r}, which pip cannot read"))
    return Requirements(frozenset(names), tuple(wrong), is_complete)


def third_party(subject: Subject) -> list[Import]:
    """Modules that neither Python nor the project has, each once."""
    beside = [path for folder in {subject.root, subject.folder} for path in folder.iterdir()]
    own = {path.stem for path in beside if path.suffix == ".py" or path.is_dir()}
    known = sys.stdlib_module_names | own | {"aenv"}
    found: dict[str, Import] = {}
    for source in subject.all_sources:
        for module, where in _imports(source):
            if module not in known:
                found.setdefault(module, Import(module, where))
    return list(found.values())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    started, held = 0, ""
    for number, raw in enumerate(text.splitlines(), start=1):
        started = started if held else number
        line = re.sub(r"(^|\s)#.*$", "", held + raw.removeprefix("\ufeff")).strip()
        held = line[:-1] if line.endswith("\\") else ""
        if line and not held:
            yield started, line
    if held.strip():
        yield started, held.strip()


def _imports(source: Source) -> Iterator[Import]:
    known = aliases(source.tree)
    ahead: list[ast.AST] = [source.tree]
    while ahead:
        node = ahead.pop(0)
        if _is_optional(node, known):
            continue
        if isinstance(node, ast.Import):
            yield from (Import(name.name.partition(".")[0], source.at(node)) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield Import(node.module.partition(".")[0], source.at(node))
        ahead += ast.iter_child_nodes(node)


def _is_optional(node: ast.AST, known: dict[str, str]) -> bool:
    """A `try` that has an answer to ImportError, or a block that only type checkers read."""
    if isinstance(node, ast.Try):
        caught = {dotted(name, known) for handler in node.handlers for name in _classes(handler)}
        return bool(caught & {"ImportError", "ModuleNotFoundError", "Exception", ""})
    return isinstance(node, ast.If) and dotted(node.test, known).endswith("TYPE_CHECKING")


def _classes(handler: ast.ExceptHandler) -> list[ast.expr]:
    if handler.type is None:
        return [ast.Name("Exception")]
    return handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]


def _distributions(module: str, installed: Mapping[str, list[str]]) -> set[str]:
    """Under which names a package that brings the module may be listed."""
    # What an environment needs to be one at all comes with us, and authors may use it.
    ours = {"aenvironment"} if module == "pydantic" else set()
    names = {*ours, module, _KNOWN.get(module, module), f"python-{module}", f"py{module}", *installed.get(module, ())}
    return {_normal(name) for name in names}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
