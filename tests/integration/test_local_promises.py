"""The local engine where its promises are easily broken: shared ids, hostile words, machines that are full."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aenv.engines.local.engine import LocalEngine
from aenv.engines.protocol import Launch
from aenv.errors import EngineUnavailable, ForkRefused, SandboxFailed
from aenv.model.spec import EnvSpec
from aenv.settings import EngineSettings, default_data

SOURCE = '''
import os
import socket
import time
from aenv import register_tool

time.sleep(float(os.environ.get("SLOW", "0")))


@register_tool
def variable(name: str) -> str:
    """One of the environment."""
    return os.environ.get(name, "")


@register_tool
def say(frame: str) -> str:
    """Tell the supervisor something."""
    content = frame.encode()
    with socket.socket(fileno=os.dup(3)) as control:
        control.send(len(content).to_bytes(4, "little") + content)
    return "said"
'''


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """A small environment, ready to be started."""
    (tmp_path / "project" / "src").mkdir(parents=True)
    (tmp_path / "project" / "src" / "tools.py").write_text(SOURCE)
    spec = EnvSpec.from_dict({"name": "small", "version": "1.0.0", "deployConfig": {"network": "no-network"}})
    return Launch("ins_first", spec, tmp_path / "project", digest="small")


@asynccontextmanager
async def engine_of(tmp_path: Path) -> AsyncIterator[LocalEngine]:
    with tempfile.TemporaryDirectory(prefix="aenv-") as run:
        engine = LocalEngine(EngineSettings(data=tmp_path / "data", run=Path(run) / "r"))
        try:
            yield engine
        finally:
            await engine.aclose()


def with_engine(tmp_path: Path, use: Callable[[LocalEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        async with engine_of(tmp_path) as engine:
            await use(engine)

    asyncio.run(main())


def call(address: str, tool: str, **arguments: object) -> Any:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(address.removeprefix("unix:"))
        body = json.dumps(arguments).encode()
        head = f"POST /tools/{tool} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
        client.sendall(head.encode() + f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    return json.loads(answer.partition(b"\r\n\r\n")[2])["data"]


def test_who_gives_up_a_second_start_leaves_the_instance_to_the_first(tmp_path: Path, launch: Launch) -> None:
    async def use(engine: LocalEngine) -> None:
        handle = await engine.start(launch)
        second = asyncio.create_task(engine.start(launch))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert await engine.poll(handle) is None
        assert call(handle.address, "variable", name="AENV_INSTANCE_ID") == launch.id

    with_engine(tmp_path, use)


def test_a_start_that_everybody_gave_up_leaves_nothing(tmp_path: Path, launch: Launch) -> None:
    async def use(engine: LocalEngine) -> None:
        await engine.start(replace(launch, id="ins_other"))
        slow = replace(launch, id="ins_slow", variables={"SLOW": "30"})
        both = [asyncio.create_task(engine.start(slow)) for _ in range(2)]
        await asyncio.sleep(0.3)
        for one in both:
            one.cancel()
        await asyncio.wait(both)
        assert [handle.id for handle in await engine.list()] == ["ins_other"]

    with_engine(tmp_path, use)


def test_one_digest_with_another_configuration_is_another_environment(tmp_path: Path, launch: Launch) -> None:
    changed = launch.spec.with_changes({"deployConfig": {"environmentVariables": {"COLOUR": "red"}}})

    async def use(engine: LocalEngine) -> None:
        first = await engine.start(launch)
        second = await engine.start(replace(launch, id="ins_second", spec=changed))
        assert [call(one.address, "variable", name="COLOUR") for one in (first, second)] == ["", "red"]

    with_engine(tmp_path, use)


def test_a_copy_cannot_take_the_id_of_another_instance(tmp_path: Path, launch: Launch) -> None:
    forkable = replace(launch, spec=launch.spec.with_changes({"deployConfig": {"forkable": True}}))

    async def use(engine: LocalEngine) -> None:
        source = await engine.start(forkable)
        other = await engine.start(replace(forkable, id="ins_second"))
        with pytest.raises(ForkRefused):
            await engine.fork(source, ["ins_second"])
        assert call(other.address, "variable", name="AENV_INSTANCE_ID") == "ins_second"

    with_engine(tmp_path, use)


@pytest.mark.parametrize(
    "frame",
    [
        '{"op": "over", "code": -99999}',
        '{"op": "over", "code": "x"}',
        '{"op": "born"}',
        '{"op": "boxed"}',
        '{"op": "forked", "copy": 7}',
        '{"op": []}',
        "[1, 2]",
        "nonsense",
    ],
)
def test_what_an_instance_tells_the_supervisor_harms_no_neighbour(tmp_path: Path, launch: Launch, frame: str) -> None:
    async def use(engine: LocalEngine) -> None:
        liar = await engine.start(launch)
        neighbour = await engine.start(replace(launch, id="ins_second"))
        # It may well have talked itself to death.
        with contextlib.suppress(OSError, ValueError):
            await asyncio.to_thread(call, liar.address, "say", frame=frame)
        await engine.usage(neighbour)
        assert await engine.poll(neighbour) is None
        assert call(neighbour.address, "variable", name="AENV_INSTANCE_ID") == "ins_second"

    with_engine(tmp_path, use)


def test_a_machine_without_room_refuses_starts_and_keeps_what_it_has(tmp_path: Path, launch: Launch) -> None:
    async def use(engine: LocalEngine) -> None:
        started = []
        refused: list[SandboxFailed] = []
        for number in range(48):
            try:
                started.append(await engine.start(replace(launch, id=f"ins_{number}")))
            except SandboxFailed as problem:
                refused.append(problem)
        assert started, refused[0].message
        assert refused
        assert [await engine.poll(one) for one in started] == [None] * len(started)
        assert call(started[0].address, "variable", name="AENV_INSTANCE_ID") == started[0].id

    with_engine_limited(tmp_path, use)


def with_engine_limited(tmp_path: Path, use: Callable[[LocalEngine], Awaitable[None]]) -> None:
    async def main() -> None:
        async with engine_of(tmp_path) as engine:
            link = await engine._connected()
            resource.prlimit(link.pid, resource.RLIMIT_NOFILE, (160, 160))
            await use(engine)

    asyncio.run(main())


def test_data_that_others_may_write_to_is_refused(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)

    async def use(engine: LocalEngine) -> None:
        with pytest.raises(EngineUnavailable, match="others may write"):
            await engine.start(launch)

    with_engine(tmp_path, use)


def test_without_a_home_data_is_still_the_users_own() -> None:
    assert not str(default_data({})).startswith("/tmp")
