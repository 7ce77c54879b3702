"""docs/reference/http.md: the sandbox server's own table of routes, with the words for each."""

from __future__ import annotations

from pathlib import Path

from aenv.define.registry import Registry
from aenv.sandbox import inspector
from aenv.sandbox.connection import MAX_HEADERS, PARTIAL_SECONDS
from aenv.sandbox.endpoint import Identity
from aenv.sandbox.execute import Executor, Policy
from aenv.sandbox.http import MAX_BODY, Reply, Request
from aenv.sandbox.loop import Loop
from aenv.sandbox.present import CALL_ID_KEY, ERROR_KEY, TIMEOUT_KEY
from aenv.sandbox.routes import HEALTH_SECONDS, Routes
from aenv.sandbox.sessions import BEAT_SECONDS, MOST_SESSIONS
from pages.tables import MADE, code, table

_PROSE = Path(__file__).parents[2] / "docs" / "reference" / "_parts" / "http.md"

# What the server matches by itself, and what follows from the names that an author registered.
_FIXED = {
    "/": "Name, version and description of the environment, what it has how many of, since when it runs.",
    "/health": "200 with the status `healthy` or `success`, or 503. The query holds arguments of the author's check.",
    "/tools": "The tools with their schemas, as MCP's `tools/list` shows them.",
    "/functions/list": "Functions, rewards and the health check, with endpoints and schemas.",
    "/task/reward": "The default reward; the body holds its arguments.",
    "/inspector": "The page to try the environment on; only with `--inspector`.",
}
_NAMED = {
    ("POST", "/tools/{name}"): "One tool; the body holds its arguments.",
    ("POST", "/task/reward/{name}"): "One reward.",
    ("POST", "/functions/{name}"): "One function, unless its decorator gives another method.",
    ("as registered", "the `endpoint` of a function"): "One function; `{parts}` of its path are arguments.",
    ("POST, GET, DELETE", "/mcp"): "MCP over streamable HTTP.",
}


def render() -> str:
    """The text of the page."""
    rows = [(method, code(path), _FIXED[path]) for method, path in exact_routes()]
    named = [(method, path if "`" in path else code(path), about) for (method, path), about in _NAMED.items()]
    values = {
        "made": MADE,
        "routes": table(["method", "path", "answers"], [*rows, *named]),
        "max_body": f"{MAX_BODY // 2**20} MiB",
        "max_headers": f"{MAX_HEADERS // 1024} KiB",
        "partial": f"{PARTIAL_SECONDS:g} s",
        "health": f"{HEALTH_SECONDS:g} s",
        "beat": f"{BEAT_SECONDS:g} s",
        "sessions": f"{MOST_SESSIONS:,}",
        "call_id": CALL_ID_KEY,
        "timeout": TIMEOUT_KEY,
        "error": ERROR_KEY,
    }
    text = _PROSE.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def exact_routes() -> list[tuple[str, str]]:
    """Method and path of every route that has a fixed path, the files behind the inspector's page left out."""
    loop = Loop()
    routes = Routes(Executor(Registry(), Policy(), loop), Identity("any", "1.0.0"), _nobody)
    inspector.add_to(routes)
    # The server's own table has no public reader: nothing but this page wants one.
    held: dict[str, dict[str, object]] = vars(routes)["_exact"]
    return [
        (method, path) for path, methods in held.items() if not path.startswith("/inspector/") for method in methods
    ]


def _nobody(request: Request) -> Reply:
    """Stands for MCP."""
