"""The seam at which the sandbox server and whoever speaks MCP for it meet."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aenv.sandbox.execute import Executor, Policy
from aenv.sandbox.http import MAX_BODY, Reply, Request


@dataclass(frozen=True, slots=True)
class Identity:
    """What the server says it is."""

    name: str
    version: str
    description: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """How a project is served."""

    project: Path | None
    identity: Identity
    policy: Policy = field(default_factory=Policy)
    max_body: int = MAX_BODY
    with_inspector: bool = False


class Endpoint(Protocol):
    """Answers requests to `/mcp`; made, and called, on the server's loop."""

    def handle(self, request: Request) -> Reply | Awaitable[Reply]:
        """Answer one request."""

    def close(self) -> None:
        """The server takes no more requests: let the clients go that only wait for news."""

    def end(self) -> None:
        """The server ends: let go of everything."""


class MakeEndpoint(Protocol):
    """Builds an Endpoint before the server listens; may refuse the project with an AEnvError."""

    def __call__(self, executor: Executor, options: Options) -> Endpoint: ...
