"""What every engine promises: the types that cross its boundary, and when each method may be called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from aenv.model.spec import EnvSpec

Reason = Literal["exited", "crashed", "killed", "oom", "disk_full", "pids", "cpu", "stopped", "lost"]
"""Why a sandbox is no more.

`exited`: it ended by itself with code 0; `crashed`: with another code, or by a signal of its own making; `killed`: by
a signal from outside; `oom`, `disk_full`, `pids`, `cpu`: it went beyond that limit; `stopped`: it was asked to;
`lost`: the engine no longer knows it, so nothing of it is left.
"""
BREACHES: tuple[Reason, ...] = ("oom", "disk_full", "pids", "cpu")


@dataclass(frozen=True, slots=True)
class Launch:
    """All that an engine needs to start one sandbox."""

    id: str
    """Id of the instance; unique for ever."""
    spec: EnvSpec
    """What the environment's config.json says, limits included."""
    project: Path
    """Folder with the environment's files. It is only read, and only the first time this digest is seen."""
    digest: str
    """Identity of those files: two launches with one digest run the same code."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The instance's own variables, over those of the environment."""
    arguments: Sequence[str] = ()
    """The instance's arguments; author code finds them in `sys.argv[1:]`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str | None = None
    start_seconds: float = 120.0
    """How long the start may take before it is given up."""


@dataclass(frozen=True, slots=True)
class Handle:
    """A sandbox, as text: whatever its engine needs to find it again, also after a restart."""

    id: str
    engine: str
    address: str
    """Where we connect: `unix:/path` or `http://host:port`."""
    state: Mapping[str, object] = field(default_factory=dict)
    """The engine's own; JSON."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended."""

    reason: Reason
    message: str
    """One sentence for people."""
    code: int | None = None
    """Exit code, or minus the number of the signal; None when nobody saw it."""
    log_tail: str = ""
    """The last lines of its log."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses now; None where the machine does not tell."""

    memory_bytes: int | None = None
    cpu_seconds: float | None = None
    processes: int | None = None
    storage_bytes: int | None = None
    breaches: Mapping[Reason, int] = field(default_factory=dict)
    """How often it has met each limit and lived."""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in a sandbox printed, and how it ended."""

    code: int
    stdout: bytes
    stderr: bytes
    is_truncated: bool = False
    """Whether it printed more than was kept."""


class Engine(Protocol):
    """Starts, watches and stops sandboxes. Holds no state that a handle does not carry.

    Every method may be cancelled at any point: a cancelled start leaves nothing behind, a cancelled stop goes on.
    """

    @property
    def name(self) -> str:
        """The engine's word in settings and handles."""
        ...

    async def start(self, launch: Launch) -> Handle:
        """Start one sandbox; returns when it answers.

        Raises EngineError (SandboxFailed with the log tail, SandboxTimedOut, PythonFailed …) with nothing left behind.
        The same id again while the first lives returns the same sandbox.
        """
        ...

    async def poll(self, handle: Handle) -> Exit | None:
        """None while it lives, else how it ended.

        May be called at any time, also after a restart, also for a handle that never existed (`lost`): it answers, it
        does not raise.
        """
        ...

    async def stop(self, handle: Handle, *, grace: float = 0.0) -> None:
        """End it with every process in it; returns when nothing is left. Idempotent.

        With `grace`, it is first asked to end (SIGTERM) and given so many seconds.
        """
        ...

    async def list(self) -> list[Handle]:
        """Every sandbox of this engine that lives."""
        ...

    def logs(self, handle: Handle, *, tail: int | None = None, follow: bool = False) -> AsyncIterator[bytes]:
        """The last `tail` bytes of its log (all that is kept, if not said); on `follow`, then what comes until its end.

        Nothing for a sandbox that the engine no longer knows.
        """
        ...

    async def aclose(self) -> None:
        """Stop every sandbox and let go of everything."""
        ...


@runtime_checkable
class SupportsExec(Protocol):
    """Runs commands inside a sandbox, beside the environment's own server."""

    async def exec(
        self,
        handle: Handle,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float = 60.0,  # noqa: ASYNC109 - of the command, which is killed; not of this coroutine
        keep: int = 1 << 20,
    ) -> ExecResult:
        """Run it with the sandbox's own rights and limits; keeps the first `keep` bytes of each stream.

        Raises SandboxGone if there is no such sandbox any more, ExecTimedOut (the command is killed) after `timeout`
        seconds. A command that cannot be started ends with 127 or 126, as in a shell.
        """
        ...


@runtime_checkable
class SupportsFork(Protocol):
    """Copies a live sandbox, memory and files."""

    async def fork(self, handle: Handle, ids: Sequence[str]) -> list[Handle]:
        """As many copies as there are ids, each independent of its source from now on.

        Waits for calls under way to end. Raises ForkRefused, with what stands in the way, with no copy made.
        """
        ...


@runtime_checkable
class SupportsWarm(Protocol):
    """Keeps sandboxes ready for starts to come."""

    async def warm(self, launch: Launch, count: int) -> None:
        """Hold `count` spares for launches of this digest from now on; 0 lets them go."""
        ...


@runtime_checkable
class SupportsUsage(Protocol):
    """Tells what a sandbox uses."""

    async def usage(self, handle: Handle) -> Usage:
        """What it uses now; all None for one that is gone."""
        ...
