"""Whatever part of the local engine is killed, and whenever: nothing stays behind, and only what hung on it ends."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from chaosworld import Kill, Kind, Owner, Process, World, below, dissect, gone, look_below, open_world
from conftest import wait_for

from aenv.engines.local.engine import LocalEngine
from aenv.engines.protocol import Handle, Launch
from aenv.errors import EngineError, SandboxFailed
from aenv.model.spec import EnvSpec
from aenv.settings import EngineSettings
from aenv.testing.calls import call
from aenv.testing.engine_traces import find_traces

KILLS = int(os.environ.get("AENV_CHAOS_KILLS", "60"))
"""In all modes together; CI sets 500."""
SEED = int(os.environ.get("AENV_CHAOS_SEED") or int.from_bytes(os.urandom(3), "big"))
MODES = ("namespaces", "process")
WORKERS = 6
PATIENCE = 30.0
RECOVERIES = 0.6
"""The share of kills before which the engine may recover from the one before."""
ODDS: dict[str, dict[Kind, int]] = {
    "namespaces": {
        "sandbox": 8,
        "zygote": 4,
        "init": 3,
        "outer half": 3,
        "supervisor": 3,
        "owner": 2,
        "owner and supervisor": 1,
    },
    "process": {"sandbox": 8, "zygote": 4, "supervisor": 3, "owner": 2, "owner and supervisor": 1},
}

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the local engine's processes are those of Linux")


@pytest.fixture(params=MODES)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with open_world(request.param) as opened:
        yield opened


def make_engine(world: World) -> LocalEngine:
    return LocalEngine(EngineSettings(isolation=world.isolation, data=world.folder / "data", run=world.run))  # type: ignore[arg-type] # a word of Isolation


def launch(world: World, number: int, environment: int = 0) -> Launch:
    spec = EnvSpec.from_dict({"name": "counter", "version": "1.0.0", "deployConfig": {"network": "no-network"}})
    return Launch(id=f"c-{number}", spec=spec, project=world.project, digest=f"env{environment}")


async def with_engine(world: World, work: Callable[[LocalEngine], Awaitable[None]]) -> None:
    engine = make_engine(world)
    try:
        await work(engine)
    finally:
        await engine.aclose()


async def until(look: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_for, look, PATIENCE)


def expect_nothing_left(world: World) -> None:
    """No process, mount, control group, socket or folder of any engine that was here."""
    world.see_leases()
    assert find_traces(sorted(world.leases), [world.run]) == []
    assert list(world.run.iterdir()) == []


class Chaos:
    """Kills one part after the other, while owners work."""

    def __init__(self, world: World, kills: int) -> None:
        self._world = world
        self._random = random.Random(SEED)
        odds = ODDS[world.isolation]
        self._kinds = [*odds, *self._random.choices(list(odds), list(odds.values()), k=max(0, kills - len(odds)))]
        self._random.shuffle(self._kinds)
        self._owner = self._new_owner()
        self.kills: list[Kill] = []

    def run(self) -> None:
        """All kills, and the end of the last owner."""
        for kind in self._kinds:
            if self._random.random() < RECOVERIES:
                self._await_success()
            time.sleep(self._random.uniform(0.0, 0.2))
            self._kill(kind)
        self._await_success()
        self._owner.end()
        for owner in self._world.owners:
            owner.wait()

    def _await_success(self) -> None:
        """Until an instance has lived its whole life since the last kill."""
        last = self.kills[-1].at if self.kills else 0.0
        wait_for(lambda: any(note["asked"] > last and note["error"] is None for note in self._world.notes()), PATIENCE)

    def _new_owner(self) -> Owner:
        return self._world.new_owner(seed=SEED, workers=WORKERS)

    def _kill(self, kind: Kind) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            looked = time.monotonic()
            parts = self._owner.parts()
            victims = [self._owner.process] if kind.startswith("owner") else parts.of(kind)
            if victims:
                break
            assert looked < deadline, f"no {kind} came within {PATIENCE} s: {self._owner.everyone()}"
        victim = self._random.choice(victims)
        self.kills.append(self._world.kill(self._owner, kind, victim, parts, looked))
        if kind.startswith("owner"):
            self._owner = self._new_owner()


def find_wrongs(notes: list[dict[str, Any]], kills: list[Kill]) -> list[str]:
    """Every instance that fared as none may, in a sentence each."""
    wrongs = []
    for note in notes:
        if note["counts"] != list(range(1, len(note["counts"]) + 1)):
            wrongs.append(f"state was lost: {note}")
        if note["error"] is None:
            continue
        if note["kind"] != ("engine" if note["stage"] == "start" else "connection"):
            wrongs.append(f"no error of ours: {note}")
        if note["error"] == "SandboxTimedOut":
            wrongs.append(f"it hung: {note}")
        if note["stage"] != "start" and note["reason"] not in ("killed", "lost"):
            wrongs.append(f"a wrong reason: {note}")
        if not any(kill.explains(note) for kill in kills):
            wrongs.append(f"nobody killed it: {note}")
    return wrongs


@pytest.mark.timeout(120 + 3 * KILLS)
@pytest.mark.parametrize("seed", [SEED])
def test_kills_at_random_leave_nothing_and_end_only_what_hung_on_the_killed(world: World, seed: int) -> None:
    chaos = Chaos(world, KILLS // len(MODES))
    chaos.run()
    notes = world.notes()
    assert notes.pop() == {"closed": True}, world.read_errors()
    wrongs = find_wrongs(notes, chaos.kills)
    assert not wrongs, "\n".join([*wrongs, *map(str, chaos.kills)])
    assert "Traceback" not in world.read_errors(), world.read_errors()
    expect_nothing_left(world)


def test_a_supervisor_killed_while_idle_is_replaced_and_swept_by_the_next_start(world: World) -> None:
    async def work(engine: LocalEngine) -> None:
        first = await engine.start(launch(world, 1))
        world.see_leases()
        everyone = below(os.getpid())
        (supervisor,) = dissect(os.getpid(), is_boxed=world.is_boxed).supervisors
        supervisor.signal()
        await until(lambda: gone(everyone))
        second = await engine.start(launch(world, 2))
        assert await call(second.address, "count", {}) == 1
        lost = await engine.poll(first)
        assert lost is not None
        assert lost.reason == "lost"
        assert find_traces([str(first.state["lease"])], [world.run]) == []

    asyncio.run(with_engine(world, work))
    expect_nothing_left(world)


def test_an_engine_closed_after_its_supervisor_was_killed_leaves_nothing(world: World) -> None:
    async def work(engine: LocalEngine) -> None:
        await engine.start(launch(world, 1))
        world.see_leases()
        everyone = below(os.getpid())
        dissect(os.getpid(), is_boxed=world.is_boxed).supervisors[0].signal()
        await until(lambda: gone(everyone))

    asyncio.run(with_engine(world, work))
    expect_nothing_left(world)


def test_what_a_supervisor_left_half_made_is_cleared_by_the_next_one(world: World) -> None:
    async def work(engine: LocalEngine) -> None:
        (world.run / "eng_12345678" / "root").mkdir(parents=True)
        await engine.start(launch(world, 1))
        assert not (world.run / "eng_12345678").exists()

    asyncio.run(with_engine(world, work))
    expect_nothing_left(world)


def test_engines_that_start_at_the_same_moment_do_not_sweep_each_other_away(world: World) -> None:
    async def work(engine: LocalEngine, number: int) -> None:
        handle = await engine.start(launch(world, number))
        assert await call(handle.address, "count", {}) == 1

    async def work_all() -> None:
        await asyncio.gather(*(with_engine(world, partial(work, number=number)) for number in range(4)))

    asyncio.run(work_all())
    expect_nothing_left(world)


@pytest.mark.parametrize("world", ["process"], indirect=True)
def test_what_plain_sandboxes_leave_behind_is_waited_for(world: World) -> None:
    async def work(engine: LocalEngine) -> None:
        handles = [await engine.start(launch(world, number)) for number in range(2)]
        (supervisor,) = dissect(os.getpid(), is_boxed=False).supervisors
        await call(handles[0].address, "daemonise", {})
        await engine.stop(handles[0])
        zygotes = dissect(os.getpid(), is_boxed=False).zygotes
        for zygote in zygotes:
            zygote.signal()
        await until(lambda: gone(zygotes))
        await engine.stop(handles[1])
        assert [one for one in look_below(supervisor.pid) if one.state == "Z"] == []

    asyncio.run(with_engine(world, work))


def test_nothing_is_left_when_the_owner_is_killed(world: World) -> None:
    owner = world.new_owner(held=3, tool="daemonise")
    owner.process.signal()
    owner.wait()
    expect_nothing_left(world)


def test_the_next_engine_clears_up_when_owner_and_supervisor_are_killed_at_once(world: World) -> None:
    owner = world.new_owner(held=3, tool="daemonise")
    for process in (*owner.parts().supervisors, owner.process):
        process.signal()
    next_owner = world.new_owner(held=1)
    owner.wait()
    next_owner.end()
    next_owner.wait()
    expect_nothing_left(world)


def test_starts_outlive_the_zygote_that_was_to_serve_them(world: World) -> None:
    async def start(engine: LocalEngine, number: int) -> Handle | EngineError:
        try:
            return await engine.start(launch(world, number))
        except SandboxFailed as problem:
            return problem

    async def work(engine: LocalEngine) -> None:
        await engine.start(launch(world, 0))
        burst = asyncio.gather(*(start(engine, number) for number in range(1, 51)))
        while len((parts := dissect(os.getpid(), is_boxed=world.is_boxed)).sandboxes) < 5:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
        for zygote in parts.zygotes:
            zygote.signal()
        ended = await burst
        handles = [one for one in ended if isinstance(one, Handle)]
        assert len(handles) > 40, [one for one in ended if not isinstance(one, Handle)]
        assert [await call(handle.address, "count", {}) for handle in handles] == [1] * len(handles)

    asyncio.run(with_engine(world, work))
    expect_nothing_left(world)


@pytest.mark.parametrize("world", ["namespaces"], indirect=True)
@pytest.mark.parametrize("kind", ["init", "outer half"])
def test_instances_end_with_the_namespace_of_their_zygote_and_no_others_do(world: World, kind: Kind) -> None:
    async def work(engine: LocalEngine) -> None:
        concerned = [await engine.start(launch(world, number)) for number in range(3)]
        parts = dissect(os.getpid(), is_boxed=True)
        other = await engine.start(launch(world, 3, environment=1))
        for process in parts.of(kind):
            process.signal()
        for handle in concerned:
            assert await reason(engine, handle) == "killed"
        assert [await call(other.address, "count", {}) for _ in range(3)] == [1, 2, 3]
        assert await engine.poll(other) is None

    asyncio.run(with_engine(world, work))


def test_instances_live_on_without_their_zygote(world: World) -> None:
    async def work(engine: LocalEngine) -> None:
        handles = [await engine.start(launch(world, number)) for number in range(3)]
        assert [await call(handle.address, "count", {}) for handle in handles] == [1, 1, 1]
        zygotes = dissect(os.getpid(), is_boxed=world.is_boxed).zygotes
        for zygote in zygotes:
            zygote.signal()
        await until(lambda: gone(zygotes))
        assert [await call(handle.address, "count", {}) for handle in handles] == [2, 2, 2]
        find(world, handles[0]).signal()
        assert await reason(engine, handles[0]) == "killed"
        await engine.stop(handles[1])
        assert await call(handles[2].address, "count", {}) == 3

    asyncio.run(with_engine(world, work))


def test_a_sandbox_that_is_held_still_can_be_stopped(world: World) -> None:
    async def work(engine: LocalEngine) -> None:
        handles = [await engine.start(launch(world, number)) for number in range(2)]
        for handle, grace in zip(handles, (0.0, 0.2), strict=True):
            find(world, handle).signal(signal.SIGSTOP)
            await asyncio.wait_for(engine.stop(handle, grace=grace), PATIENCE)
        assert await engine.list() == []

    asyncio.run(with_engine(world, work))


def find(world: World, handle: Handle) -> Process:
    """The first process of an instance."""
    return next(one for one in dissect(os.getpid(), is_boxed=world.is_boxed).sandboxes if one.name == handle.id)


async def reason(engine: LocalEngine, handle: Handle) -> str:
    """What the engine says of the instance's end, once it has seen it."""
    while (ended := await engine.poll(handle)) is None:  # noqa: ASYNC110 - an engine tells when it is asked
        await asyncio.sleep(0.01)
    return ended.reason
