"""Our local engine with one small environment, and what the kernel says about the sandboxes it makes."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from figures import children, cpu_seconds_of, tree
from peers_create import PATIENCE, echo
from sandbox_call import TOOLS

from aenv.engines.local.engine import LocalEngine
from aenv.engines.protocol import Handle, Launch
from aenv.model.spec import EnvSpec
from aenv.settings import EngineSettings

AT_ONCE = 8
_SPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
_PAUSE = 0.03
_PAUSES = 2
_SUPERVISOR = b"aenv.engines.local.supervisor"


class Family(NamedTuple):
    """The engine's processes, by what they are for."""

    supervisor: list[int]
    zygotes: list[int]
    sandboxes: list[int]


class Born(NamedTuple):
    """An instance that has answered a call, and the seconds from asking for it to that."""

    handle: Handle
    took: float


def make_project(folder: Path) -> Path:
    """One echo tool."""
    source = folder / "src"
    source.mkdir(parents=True)
    (source / "tools.py").write_text(TOOLS)
    return folder


class Ours:
    """An engine that isolates fully or not at all, and instances without a network."""

    def __init__(self, folder: Path, project: Path) -> None:
        self.run = folder / "run"
        self.engine = LocalEngine(EngineSettings(isolation="namespaces", data=folder / "data", run=self.run))
        self._project = project
        self._spec = EnvSpec.from_dict({"name": "bench", "version": "1.0.0", "deployConfig": {"network": "no-network"}})
        self._numbers = itertools.count(1)

    def launch(self, digest: str) -> Launch:
        """The next instance of the environment; each digest is one with zygotes and spares of its own."""
        return Launch(f"ins_{next(self._numbers)}", self._spec, self._project, digest)

    async def begin(self, digest: str) -> float:
        """Make everything that only the first instances need; how long the very first took to its answer."""
        first = await self.start(self.launch(digest))
        for _ in range(2):
            await self.stop_all()
            await self.rest()
            await self.start(self.launch(digest))
        await self.stop_all()
        await self.rest()
        return first.took

    async def start(self, launch: Launch) -> Born:
        """Start one, call it from the event loop, and check the answer."""
        began = time.perf_counter()
        handle = await self.engine.start(launch)
        await call_waiting(path_of(handle), launch.id)
        return Born(handle, time.perf_counter() - began)

    async def grow(self, digest: str, count: int) -> list[Born]:
        """Start so many, a few at a time; each has answered a call."""
        launches = (self.launch(digest) for _ in range(count))
        born: list[Born] = []

        async def work() -> None:
            for launch in launches:
                born.append(await self.start(launch))  # noqa: PERF401 - shared with the other workers

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work())
        return born

    async def stop_all(self) -> list[float]:
        """Stop all that live, a few at a time; the seconds that each took."""
        return await self.stop(await self.engine.list())

    async def stop(self, handles: Sequence[Handle]) -> list[float]:
        """Stop these, a few at a time; the seconds that each took."""
        took: list[float] = []

        async def work(left: Iterator[Handle]) -> None:
            for handle in left:
                began = time.perf_counter()
                await self.engine.stop(handle)
                took.append(time.perf_counter() - began)

        left = iter(handles)
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(work(left))
        return took

    def family(self) -> Family:
        """All processes of the engine.

        They are told apart by how deep they are in pid namespaces: a sandbox is two below the supervisor.
        """
        found = Family([], [], [])
        for child in children()[os.getpid()]:
            if _SUPERVISOR in _read(child, "cmdline"):
                top = _depth(child)
                found.supervisor.append(child)
                for pid in tree(child)[1:]:
                    (found.sandboxes if _depth(pid) >= top + 2 else found.zygotes).append(pid)
        return found

    async def rest(self) -> None:
        """Wait until the engine has nothing to do any more; only its use of the processor tells."""
        deadline = time.perf_counter() + PATIENCE
        used, calm = -1.0, 0
        while calm < _PAUSES:
            assert time.perf_counter() < deadline, "the engine does not come to rest"
            await asyncio.sleep(_PAUSE)
            now = self.cpu_seconds()
            used, calm = now, calm + 1 if now == used else 0

    def cpu_seconds(self) -> float:
        """CPU time of all processes that the engine has now."""
        return cpu_seconds_of(itertools.chain(*self.family()))

    def isolation(self, handle: Handle) -> dict[str, object]:
        """What a live sandbox has of its own, as the kernel sees it."""
        pid = self.family().sandboxes[0]
        lines = _read(pid, "cgroup").decode().splitlines()
        limited = [line.split(":")[1] or "v2" for line in lines if str(handle.state["lease"]) in line]
        return {"namespaces": [kind for kind in _SPACES if is_apart(pid, kind)], "control_groups": sorted(limited)}


def path_of(handle: Handle) -> str:
    """Where its socket is."""
    return handle.address.removeprefix("unix:")


async def call_waiting(path: str, text: str) -> None:
    """As `call`, but the event loop goes on meanwhile."""
    request, wanted = echo(text)
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
        async with asyncio.timeout(PATIENCE):
            await loop.sock_connect(client, path)
            await loop.sock_sendall(client, request)
            answer = await loop.sock_recv(client, 65536)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            while wanted not in answer:
                part = await loop.sock_recv(client, 65536)
                assert part, "the sandbox hung up"
                answer += part


def is_apart(pid: int, kind: str) -> bool:
    """Whether a process has a namespace of this kind that is not ours."""
    return namespace(pid, kind) not in ("", namespace(os.getpid(), kind))


def namespace(pid: int, kind: str) -> str:
    """Which one it is in; empty if the process is gone."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    return ""


def _depth(pid: int) -> int:
    return len(_read(pid, "status").partition(b"\nNSpid:")[2].partition(b"\n")[0].split())


def _read(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""
