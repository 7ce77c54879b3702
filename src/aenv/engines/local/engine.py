"""The local engine as its owner sees it: everything is asked of the supervisor, which is started when first needed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aenv._util import jsontext
from aenv.engines.local import leases, orders
from aenv.engines.local.frames import Frame, Message
from aenv.engines.local.health import until_healthy
from aenv.engines.local.leases import private_folder
from aenv.engines.local.link import Link, connect
from aenv.engines.local.prepared import Prepared, prepare
from aenv.engines.local.pythons import PythonEnvironment, Pythons
from aenv.engines.protocol import ExecResult, Exit, Handle, Launch, Usage
from aenv.errors import (
    EngineError,
    EngineLost,
    EngineUnavailable,
    ExecTimedOut,
    ForkRefused,
    SandboxFailed,
    SandboxGone,
    SandboxTimedOut,
)
from aenv.settings import EngineSettings

Handles = list[Handle]
logger = logging.getLogger(__name__)

_STOP_SECONDS = 30.0


class LocalEngine:
    """Sandboxes of Linux namespaces on this machine; plain processes, with a warning, where it gives none."""

    name = "local"

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._link: Link | None = None
        self._connecting = asyncio.Lock()
        self._pythons = Pythons(settings.data / "pythons", python=settings.python)
        self._known: dict[str, asyncio.Task[str]] = {}
        """Environments that the present supervisor knows, by digest and by what their config.json says of sandboxes."""
        self._records: dict[str, tuple[Prepared, PythonEnvironment]] = {}

    async def start(self, launch: Launch) -> Handle:
        """See Engine."""
        try:
            async with asyncio.timeout(launch.start_seconds):
                return await self._start(launch)
        except TimeoutError:
            tail = await self._give_up(launch.id)
            raise SandboxTimedOut(
                f"{launch.id} was not ready after {launch.start_seconds:g} s",
                hint="see what the environment does when it is imported",
                log_tail=tail,
            ) from None
        except asyncio.CancelledError:
            await self._give_up(launch.id)
            raise

    async def _start(self, launch: Launch) -> Handle:
        link = await self._connected()
        key = await self._introduce(link, launch)
        order = {"op": "start", "id": launch.id, "key": key}
        frame = await link.ask(order, jsontext.dumps(orders.activation(launch)), cancel="give_up", seconds=None)
        message = _checked(frame, launch.id, SandboxFailed)
        state = {"lease": link.hello.result()["lease"], "box": message["name"], "user": orders.user_of(launch.spec)}
        handle = Handle(launch.id, self.name, f"unix:{message['path']}", {**state, "start": message["start"]})
        if message["start"] == "spawned":
            await self._until_healthy(handle, message["path"])
        return handle

    async def _until_healthy(self, handle: Handle, path: str) -> None:
        """A program that is not ours says nothing when it is ready: it is asked, until it answers or has ended."""
        answers = asyncio.create_task(until_healthy(path))
        try:
            while not answers.done():
                if (ended := await self.poll(handle)) is not None:
                    raise SandboxFailed(f"{handle.id}: {ended.message}", reason=ended.reason, log_tail=ended.log_tail)
                await asyncio.wait([answers], timeout=0.1)
        finally:
            answers.cancel()

    async def _give_up(self, id_: str) -> str:
        """Nothing of a start that nobody waits for any more is left; the tail of what it had to say."""
        handle = Handle(id_, self.name, "")
        tail = b""
        with contextlib.suppress(EngineError, TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                async for part in self.logs(handle, tail=16 << 10):
                    tail += part
                if self._link is not None:
                    await self._link.ask({"op": "settle", "id": id_})
        return tail.decode("utf-8", "replace")

    async def poll(self, handle: Handle) -> Exit | None:
        """See Engine."""
        lost = Exit("lost", "the engine that started it is gone, and it went with that")
        link = self._link
        if link is None or link.is_lost or handle.state.get("lease") != link.hello.result()["lease"]:
            return lost
        try:
            frame = await link.ask({"op": "poll", "id": handle.id})
        except EngineLost:
            return lost
        found = frame.message["exit"]
        return None if found is None else Exit(**found)

    async def stop(self, handle: Handle, *, grace: float = 0.0) -> None:
        """See Engine."""
        link = self._link
        if link is None or link.is_lost:
            return
        with contextlib.suppress(EngineLost):
            # Sent before anything can cancel us, so it happens whoever waits for it.
            await link.ask({"op": "stop", "id": handle.id, "grace": grace}, seconds=grace + _STOP_SECONDS)

    async def list(self) -> Handles:
        """See Engine."""
        link = self._link
        if link is None or link.is_lost:
            return []
        lease = link.hello.result()["lease"]
        frame = await link.ask({"op": "list"})
        found = frame.message["sandboxes"]
        return [
            Handle(id_, self.name, f"unix:{path}", {"lease": lease, "box": box, "user": user, "start": start})
            for id_, path, box, user, start in found
        ]

    async def logs(self, handle: Handle, *, tail: int | None = None, follow: bool = False) -> AsyncIterator[bytes]:
        """See Engine."""
        link = self._link
        if link is None or link.is_lost:
            return
        async with contextlib.aclosing(
            link.stream({"op": "logs", "id": handle.id, "tail": tail, "follow": follow})
        ) as parts:
            async for part in parts:
                yield part

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
        """See SupportsExec."""
        link = self._link
        if link is None or link.is_lost:
            raise SandboxGone(f"there is no sandbox {handle.id}", reason="lost")
        request: Message = {"op": "exec", "id": handle.id, "command": list(command), "cwd": cwd, "timeout": timeout}
        request |= {"keep": keep, "variables": dict(variables or {})}
        frame = await link.ask(request, stdin, cancel="cancel", seconds=timeout + _STOP_SECONDS)
        message = _checked(frame, handle.id, SandboxGone)
        first = message["first"]
        if message["is_late"]:
            raise ExecTimedOut(
                f"{command[0]!r} was not done after {timeout:g} s",
                hint="give it more time",
                stdout=frame.blob[:first].decode("utf-8", "replace"),
                stderr=frame.blob[first:].decode("utf-8", "replace"),
            )
        return ExecResult(message["code"], frame.blob[:first], frame.blob[first:], message["is_truncated"])

    async def fork(self, handle: Handle, ids: Sequence[str], *, wait_seconds: float = 30.0) -> Handles:
        """See SupportsFork."""
        link = self._link
        if link is None or link.is_lost:
            raise SandboxGone(f"there is no sandbox {handle.id}", reason="lost")
        made: Handles = []
        try:
            for id_ in ids:
                copy = await self._fork(link, handle, id_, wait_seconds)
                made.append(copy)
        except BaseException:
            # The one that failed is taken back where it was made; its id may be another instance's.
            await asyncio.shield(self._take_back(made, ids[len(made)]))
            raise
        return made

    async def _fork(self, link: Link, handle: Handle, id_: str, wait_seconds: float) -> Handle:
        request: Message = {"op": "fork", "id": handle.id, "copy": id_, "wait_seconds": wait_seconds}
        request |= {"variables": {"AENV_INSTANCE_ID": id_}}
        frame = await link.ask(request, cancel="give_up", seconds=wait_seconds + 60.0)
        message = _checked(frame, handle.id, ForkRefused)
        return Handle(id_, self.name, f"unix:{message['path']}", {**handle.state, "box": message["name"]})

    async def _take_back(self, made: Sequence[Handle], failed: str) -> None:
        await asyncio.gather(*(self.stop(handle) for handle in made))
        if self._link is not None:
            with contextlib.suppress(EngineError):
                await self._link.ask({"op": "settle", "id": failed})

    async def warm(self, launch: Launch, count: int) -> None:
        """See SupportsWarm."""
        link = await self._connected()
        key = await self._introduce(link, launch)
        await link.ask({"op": "warm", "key": key, "count": count})

    async def usage(self, handle: Handle) -> Usage:
        """See SupportsUsage."""
        link = self._link
        if link is None or link.is_lost:
            return Usage()
        frame = await link.ask({"op": "usage", "id": handle.id})
        return Usage(**frame.message["usage"])

    async def aclose(self) -> None:
        """See Engine."""
        link, self._link = self._link, None
        if link is not None:
            await link.aclose()
            # A supervisor that was killed took nothing away.
            await asyncio.to_thread(leases.sweep, self._settings.run)

    # the supervisor

    async def _connected(self) -> Link:
        if self._link is not None and not self._link.is_lost:
            return self._link
        async with self._connecting:
            if self._link is None or self._link.is_lost:
                if self._link is not None:
                    await self._link.aclose()
                self._known.clear()
                private_folder(self._settings.data, "AENV_DATA")
                self._link = await connect(self._settings, self._learned)
                self._warn(self._link.hello.result())
            return self._link

    def _warn(self, hello: Message) -> None:
        if hello["mode"] == "process" and self._settings.isolation != "process":
            logger.warning(
                "SANDBOXES ARE NOT ISOLATED on this machine: environments run as plain processes with your own rights",
                extra={"obstacles": hello["obstacles"]},
            )

    async def _introduce(self, link: Link, launch: Launch) -> str:
        """Have the supervisor know the environment; the first who asks does the work, the others wait for it."""
        identity = f"{launch.digest} {launch.spec.deploy.model_dump_json()}"
        task = self._known.get(identity)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._describe(link, launch))
            self._known[identity] = task
        return task.result() if task.done() else await asyncio.shield(task)

    async def _describe(self, link: Link, launch: Launch) -> str:
        hello = link.hello.result()
        owner = orders.OUTER_USER if hello["mode"] == "root" else None
        prepared = await prepare(self._settings.data / "environments", launch.digest, launch.project, owner=owner)
        python = await self._pythons.ensure(_requirements(prepared.project), progress=logger.info)
        closes = self._settings.public_network == "private"
        order = orders.order(launch.spec, prepared, python, mode=hello["mode"], closes_loopback=closes)
        settings = hashlib.sha256(launch.spec.deploy.model_dump_json().encode()).hexdigest()[:16]
        key = f"{prepared.folder.name}/{python.key}/{settings}"
        self._records[key] = prepared, python
        _checked(await link.ask({"op": "environment", "key": key, "order": order}), launch.spec.name, EngineUnavailable)
        if self._settings.spares:
            await link.ask({"op": "warm", "key": key, "count": self._settings.spares})
        return key

    def _learned(self, message: Message) -> None:
        prepared, python = self._records[message["key"]]
        try:
            prepared.remember_modules(python.key, message["modules"])
        except OSError as problem:
            # The next engine learns it again.
            logger.warning("cannot note what an environment imports", extra={"problem": str(problem)})


def _requirements(project: Path) -> Path | None:
    file = project / "requirements.txt"
    # A link out of the project would have us read a file of ours to whoever wrote it.
    return file if file.is_file() and file.resolve().is_relative_to(project.resolve()) else None


_KINDS: dict[str, type[EngineError]] = {one.code: one for one in (SandboxGone, EngineUnavailable, ForkRefused)}


def _checked(frame: Frame, id_: str, kind: type[EngineError]) -> dict[str, Any]:
    """The answer's members; the error that it is instead."""
    error = frame.message.get("error")
    if error is None:
        return frame.message
    if error.get("code") == "engine.lost":
        raise EngineLost(error["error"])
    kind = _KINDS.get(str(error.get("code")), kind)
    told = error.get("error") or error.get("message")
    problem = kind(f"{id_}: {told}", hint=None if error.get("hint") is None else str(error["hint"]))
    # What a sandbox says of itself may be anything.
    claimed = error.get("details")
    problem.details = {str(name): value for name, value in claimed.items()} if isinstance(claimed, dict) else {}
    problem.details |= {name: error[name] for name in ("reason", "log_tail", "cause") if name in error}
    raise problem
