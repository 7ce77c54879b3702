"""docs/reference/errors.md: every error class, wherever it lives, and every code of the MCP endpoint."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import aenv
from aenv.errors import AEnvError
from aenv.sandbox import jsonrpc
from pages.tables import MADE, code, table

_PAGE = """\
# Errors

{made}

Whatever aenv refuses or cannot do is an `AEnvError`: a sentence, usually a hint, and a `code` that programs may rely
on. Sentences may be reworded in any release; codes are not.

Over HTTP an error is an envelope with the status below. `retryable` says whether the same request may succeed later.

```json
{{
  "success": false,
  "error": "there is no tool 'ecko'",
  "code": "request.not_found",
  "retryable": false,
  "hint": "did you mean 'echo'?",
  "details": {{"names": ["echo"]}}
}}
```

On the command line it is two lines on stderr, `error:` and `hint:`, and the exit code below.

{errors}

## In MCP

A tool that fails is a result with `isError: true`, so that the model can read it and go on: codes that begin with
`tool.` or `arguments.` arrive this way, with the envelope's members in `_meta["aenv/error"]`. What the client did
wrong is a JSON-RPC error:

{rpc}
"""

_MEANINGS = {
    "PARSE_ERROR": "The body is not JSON.",
    "INVALID_REQUEST": "Not a JSON-RPC message, a wrong media type or method, or a session that is not known.",
    "METHOD_NOT_FOUND": "The method is not one that this server has.",
    "INVALID_PARAMS": "Parameters are missing or wrong; also `call.conflict` and `call.forgotten`, in `data`.",
    "INTERNAL_ERROR": "A defect of the server.",
    "HEADER_MISMATCH": "A header of revision 2026-07-28 is missing, or says something else than the body.",
    "MISSING_CAPABILITY": "The tool needs a capability that the client did not declare.",
    "UNSUPPORTED_VERSION": "A revision of MCP that is not spoken here; `data.supported` lists those that are.",
    "REQUEST_CANCELLED": "The client cancelled the call.",
}

# Classes that no code but their own module names, and that have no docstring.
_PRIVATE = {
    "request.head_too_large": "The request's target and headers are larger than this server takes.",
    "request.too_slow": "The request did not arrive in time.",
}

# Not imported: entry points, and what needs the extra.
_LEFT_OUT = {"aenv.main", "aenv.sandbox.__main__", "aenv.sandbox.asgi", "aenv.sandbox.official"}


def render() -> str:
    """The text of the page."""
    rows = [
        (code(kind.code), str(kind.status), str(kind.exit_code), code(_name(kind)), _about(kind)) for kind in errors()
    ]
    return _PAGE.format(
        made=MADE,
        errors=table(["code", "status", "exit code", "class", "meaning"], rows),
        rpc=table(["code", "meaning"], [(str(number), _MEANINGS[name]) for name, number in rpc_codes()]),
    )


def errors() -> list[type[AEnvError]]:
    """Every error class of the package, by code."""
    for module in pkgutil.walk_packages(aenv.__path__, "aenv."):
        if not any(module.name.startswith(name) for name in _LEFT_OUT):
            importlib.import_module(module.name)
    own = [kind for kind in _family(AEnvError) if kind.__module__.startswith("aenv.")]
    return sorted(own, key=lambda kind: (kind.code, kind.__name__))


def rpc_codes() -> list[tuple[str, int]]:
    """The JSON-RPC codes by name."""
    return [(name, value) for name, value in vars(jsonrpc).items() if name.isupper() and isinstance(value, int)]


def _family(kind: type[AEnvError]) -> Iterator[type[AEnvError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _family(child)


def _name(kind: type[AEnvError]) -> str:
    return "" if kind.__name__.startswith("_") else kind.__name__


def _about(kind: type[AEnvError]) -> str:
    return inspect.cleandoc(kind.__doc__ or _PRIVATE[kind.code]).partition("\n\n")[0]
