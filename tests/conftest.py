"""What several suites share: projects written on the spot, and real servers that serve them."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import pytest

from aenv.build.serving import Served, served

T = TypeVar("T")

MODERN = "2026-07-28"
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Answer(NamedTuple):
    """One HTTP response, its body read."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> Any:
        assert self.json["success"] is True, self.json
        return self.json["data"]

    @property
    def messages(self) -> list[Any]:
        """The JSON-RPC messages of the body, plain or as events."""
        if self.headers.get("content-type") == "application/json":
            return [self.json]
        lines = self.body.decode().splitlines()
        return [json.loads(line[5:]) for line in lines if line.startswith("data:")]


@dataclass
class Environment:
    """A served project, and how to talk to it."""

    served: Served
    log: list[str]
    _stack: ExitStack = field(repr=False, default_factory=ExitStack)

    @property
    def url(self) -> str:
        return self.served.url

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None
        return port

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, timeout: float = 20
    ) -> Answer:
        """One request on a connection of its own; `body` is JSON unless it is bytes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: object = None, **options: Any) -> Answer:
        return self.ask("POST", path, {} if body is None else body, **options)

    def tool(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> Answer:
        return self.post(f"/tools/{name}", arguments or {}, **options)

    def rpc(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        id_: object = 1,
        headers: dict[str, str] | None = None,
        timeout: float = 20,
    ) -> Answer:
        """A JSON-RPC request of the session era, without a session unless the headers name one."""
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params or {}}
        accept = {"accept": "application/json, text/event-stream"}
        return self.post("/mcp", message, headers={**accept, **(headers or {})}, timeout=timeout)

    def modern(self, method: str, params: dict[str, Any] | None = None, **options: Any) -> Answer:
        """A JSON-RPC request of revision 2026-07-28."""
        params = {**(params or {}), "_meta": {**MODERN_META, **(params or {}).get("_meta", {})}}
        headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
        if "name" in params:
            headers["mcp-name"] = params["name"]
        return self.rpc(method, params, headers={**headers, **options.pop("headers", {})}, **options)

    def connect(self) -> socket.socket:
        """A raw connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def await_log(self, *words: str, seconds: float = 10) -> str:
        """The first log line that holds all of these words."""
        return wait_for(lambda: next((line for line in self.log if all(word in line for word in words)), ""), seconds)

    def stop(self) -> None:
        self._stack.close()


def wait_for(look: Callable[[], T], seconds: float = 10) -> T:
    """What `look` returns once that is true; another process gives no other sign."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing came of {look} within {seconds} s")
        time.sleep(0.01)
    return found


def write_project(folder: Path, source: str, config: dict[str, Any] | None = None) -> Path:
    """A project of one source file."""
    (folder / "src").mkdir(parents=True, exist_ok=True)
    (folder / "src" / "author.py").write_text(source)
    (folder / "config.json").write_text(json.dumps({"name": "probe", "version": "1.2.3", **(config or {})}))
    return folder


def open_environment(
    project: Path, *options: str, environ: dict[str, str] | None = None, python: str = sys.executable
) -> Environment:
    """Serve a project until `stop`."""
    stack = ExitStack()
    log: list[str] = []
    running = stack.enter_context(served(project, log=log.append, options=options, environ=environ, python=python))
    return Environment(running, log, stack)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Environment]]:
    """Serve source code: `env = serve(SOURCE, "--tool-threads", "2", config={...})`."""
    opened: list[Environment] = []

    def start(source: str, *options: str, config: dict[str, Any] | None = None) -> Environment:
        project = write_project(tmp_path / f"project{len(opened)}", source, config)
        opened.append(open_environment(project, *options))
        return opened[-1]

    yield start
    for environment in opened:
        environment.stop()


def later(work: Callable[[], T]) -> Future[T]:
    """Start it in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return future


def in_parallel(*work: Callable[[], T]) -> list[T]:
    """All at once, each in a thread; results in their order."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(one) for one in work]]


def is_ci() -> bool:
    """Whether a suite that cannot run must fail instead of being skipped."""
    return os.environ.get("AENV_CI") == "1"


def need(part: object, reason: str) -> None:
    """Skip with a reason and the command that helps; in CI, fail."""
    if part:
        return
    if is_ci():
        pytest.fail(f"promised in CI, but {reason}")
    pytest.skip(reason)


PYTHON = sys.executable
