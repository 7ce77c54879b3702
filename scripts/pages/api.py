"""docs/reference/api.md: the public names of `aenv` with signatures and docstrings."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import aenv
from pages.tables import MADE

_PAGE = """\
# Python API

{made}

What `import aenv` offers. Names are loaded when first used. Anything that is not on this page is private and may change
in any release.

{names}
"""
_VERSION = """\
## __version__

The version of aenv, as text."""

_LONGEST = 88
_STAR = inspect.Parameter.VAR_POSITIONAL
_STARS = defaultdict[object, str](str, {_STAR: "*", inspect.Parameter.VAR_KEYWORD: "**"})


def render() -> str:
    """The text of the page."""
    names = sorted(
        (name for name in aenv.__all__ if name != "__version__"), key=lambda name: (_rank(name), name.lower())
    )
    return _PAGE.format(made=MADE, names="\n\n".join([*(_entry(name) for name in names), _VERSION]))


def _rank(name: str) -> int:
    """Decorators first: they are what most readers look for."""
    return 0 if name.startswith("register_") else 1


def _entry(name: str) -> str:
    value = getattr(aenv, name)
    parts = [f"## {name}", _code(f"{name}{_signature(value)}"), _doc(value)]
    if inspect.isclass(value):
        parts += list(_members(value))
    return "\n\n".join(part for part in parts if part)


def _members(kind: type[Any]) -> Iterator[str]:
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        title = f"### {kind.__name__}.{name}"
        if isinstance(member, property):
            yield f"{title}\n\n{_doc(member)}"
        elif inspect.isfunction(plain):
            call = name + _laid_out(inspect.signature(plain), skip_first=True)
            yield f"{title}\n\n{_code(call)}\n\n{_doc(plain)}"


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _doc(value: object) -> str:
    doc = inspect.getdoc(value) or ""
    head, mark, args = doc.partition("\nArgs:\n")
    if not mark:
        return doc
    return f"{head.strip()}\n\n" + "\n".join(_argument(line) for line in _joined(args))


def _joined(args: str) -> Iterator[str]:
    """One line per argument, continuation lines joined to it."""
    held = ""
    for line in inspect.cleandoc(args).splitlines():
        if held and not line.startswith(" "):
            yield held
            held = line
        else:
            held = f"{held} {line.strip()}".strip()
    yield held


def _argument(line: str) -> str:
    name, _, about = line.partition(": ")
    return f"- `{name}`: {about}"


def _signature(value: Any) -> str:
    if inspect.isclass(value) and issubclass(value, aenv.AEnvError):
        return "(message, *, hint=None, **details)"
    return _laid_out(inspect.signature(value), skip_first=False)


def _laid_out(signature: inspect.Signature, *, skip_first: bool) -> str:
    """On one line where it fits, else one parameter a line."""
    parts = list(_parameters(list(signature.parameters.values())[skip_first:]))
    returns = f" -> {_name(signature.return_annotation)}" if signature.return_annotation not in (None, "None") else ""
    text = f"({', '.join(parts)}){returns}"
    return text if len(text) <= _LONGEST else "(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _parameters(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    before = None
    for parameter in parameters:
        if before is inspect.Parameter.POSITIONAL_ONLY and parameter.kind is not before:
            yield "/"
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and before not in (parameter.kind, _STAR):
            yield "*"
        before = parameter.kind
        yield _parameter(parameter)


def _parameter(parameter: inspect.Parameter) -> str:
    stars = _STARS[parameter.kind]
    typed = "" if parameter.annotation is parameter.empty else f": {_name(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{typed}"
    # A function or a factory as a default would be shown with its address.
    default = json.dumps(parameter.default) if isinstance(parameter.default, str) else repr(parameter.default)
    return f"{stars}{parameter.name}{typed} = {default if '<' not in default else '...'}"


def _name(annotation: object) -> str:
    """As it was written."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
