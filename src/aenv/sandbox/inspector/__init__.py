"""The page on which an author tries the environment out, served beside it when asked for."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from aenv.sandbox.http import Reply, Request, Response

if TYPE_CHECKING:
    from aenv.sandbox.routes import Routes

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
_HEADERS = (
    ("content-security-policy", "default-src 'self'; img-src 'self' data:; media-src data:; frame-ancestors 'none'"),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-cache"),
)


def add_to(routes: Routes) -> None:
    """Serve the page's files under `/inspector`."""
    for file in resources.files(__name__).iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            response = Response(200, file.read_bytes(), _TYPES[suffix], _HEADERS)
            path = "/inspector" if file.name == "index.html" else f"/inspector/{file.name}"
            routes.add(path, _always(response))


def _always(response: Response) -> _Fixed:
    return _Fixed(response)


class _Fixed:
    def __init__(self, response: Response) -> None:
        self._response = response

    def __call__(self, request: Request) -> Reply:
        # Relative links of the page need the slash at its end.
        if request.path == "/inspector":
            return Response(308, headers=(("location", "/inspector/"),), content_type="")
        return self._response
