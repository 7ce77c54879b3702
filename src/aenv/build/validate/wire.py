"""Plain HTTP to a served project, one request at a time."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

CALL_SECONDS = 30.0
# Beyond the limit that the server itself keeps: after that it does not answer at all.
_SPARE_SECONDS = 5.0


class Lost(Exception):
    """The server hung up, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the server: the members of its envelope, and how long it took."""

    status: int
    body: Mapping[str, object]
    seconds: float

    @property
    def is_success(self) -> bool:
        """Whether there is a result."""
        return self.body.get("success") is True

    @property
    def result(self) -> object:
        """The value itself."""
        return self.body.get("data")

    @property
    def error(self) -> str:
        """What went wrong, with the author's own frames below it."""
        details = self.body.get("details")
        lines = details.get("traceback") if isinstance(details, dict) else None
        frames = [str(line) for line in lines] if isinstance(lines, list) else []
        return "\n".join([str(self.body.get("error", f"HTTP status {self.status}")), *frames])

    @property
    def code(self) -> str:
        """The code of the error."""
        return str(self.body.get("code", ""))

    @property
    def hint(self) -> str | None:
        """What the server proposes."""
        hint = self.body.get("hint")
        return None if hint is None else str(hint)


class Wire:
    """The way to one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port

    def get(self, path: str) -> Answer:
        """Read a path."""
        return self._ask("GET", path, None)

    def call(self, path: str, arguments: Mapping[str, object]) -> Answer:
        """Call what is at the path."""
        return self._ask("POST", path, json.dumps(arguments).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=CALL_SECONDS + _SPARE_SECONDS)
        headers = {"content-type": "application/json", "aenv-timeout": f"{CALL_SECONDS:g}"}
        began = time.monotonic()
        try:
            connection.request(method, quote(path), body, headers)
            response = connection.getresponse()
            envelope = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise Lost(str(problem) or type(problem).__name__) from problem
        finally:
            connection.close()
        return Answer(response.status, envelope if isinstance(envelope, dict) else {}, time.monotonic() - began)
