"""An environment that tries to use everything up, or to confuse the engine, in every mode of the local engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_for, write_project
from escapetable import Trial, open_trial, open_worlds, pytest_generate_tests
from escapeworld import FOLDERS, TIGHT, World

from aenv.engines.protocol import Handle
from aenv.errors import EngineError, SandboxFailed

__all__ = ["pytest_generate_tests"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[str, World]]:
    yield from open_worlds()


@pytest.fixture
def trial(request: pytest.FixtureRequest, worlds: dict[str, World]) -> Trial:
    return open_trial(request, worlds)


def test_a_fork_bomb_stops_at_the_limit(trial: Trial) -> None:
    trial.judge(trial.world.explode("fork_bomb", most=200)[0])


def test_a_memory_bomb_stops_at_the_limit(trial: Trial) -> None:
    trial.judge(trial.world.explode("memory_bomb", most=512 << 20)[0])


def test_memory_without_an_owner_counts_as_well(trial: Trial) -> None:
    trial.judge(trial.world.explode("hidden_memory_bomb", most=512 << 20)[0])


def test_a_disk_bomb_stops_at_the_limit_and_is_told(trial: Trial) -> None:
    found, told = trial.world.explode("disk_bomb", folders=FOLDERS, most=128 << 20)
    trial.judge(found + ([] if "disk_full" in told else [f"only {told} was told"]))


def test_an_inode_bomb_stops_at_a_limit(trial: Trial) -> None:
    small = {**TIGHT, "memory": "128Mi"}
    trial.judge(trial.world.explode("inode_bomb", small, folder="/tmp/many", most=150_000)[0])


def test_a_descriptor_bomb_stops_at_the_limit(trial: Trial) -> None:
    trial.judge(trial.world.explode("descriptor_bomb", most=1000)[0])


def test_too_many_processes_or_too_much_memory_are_told(trial: Trial) -> None:
    told = trial.world.explode("fork_bomb", most=100)[1] | trial.world.explode("memory_bomb", most=512 << 20)[1]
    trial.judge([f"{reason} was not told" for reason in ("pids", "oom") if reason not in told])


def test_endless_output_harms_nobody(trial: Trial) -> None:
    world = trial.world
    world.by_server("log_bomb", most=64 << 20)
    kept = world.run(_size_of_log(world))
    trial.judge([] if kept <= world.settings.log_bytes else [f"{kept} bytes were kept"])


async def _size_of_log(world: World) -> int:
    return sum([len(part) async for part in world.engine.logs(world.attacker)])


def test_nonsense_for_the_supervisor_harms_nobody(trial: Trial) -> None:
    world = trial.world
    handle = world.start()
    # More than the descriptors that a process may have by default, and than the tests of an ordinary user leave it.
    world.by_server("flood_supervisor", handle, count=5000)
    world.stop(handle)
    trial.judge([] if world.by_server("own_pid", world.start()) else ["no further sandbox starts"])


LIES = ['{"op":"failed","error":["x"],"details":["x"]}', '{"op":"failed","details":{"message":1,"hint":2,"reason":3}}']


def test_a_sandbox_that_lies_at_its_start_is_a_typed_error(trial: Trial) -> None:
    world = trial.world
    for number, lie in enumerate(LIES):
        source = f"import os\nlie = {lie.encode()!r}\nos.write(3, len(lie).to_bytes(4, 'little') + lie)\n"
        project = write_project(world.folder / f"liar{number}", source)
        with pytest.raises(SandboxFailed):
            world.start(project=project)
    trial.judge([] if world.by_server("own_pid", world.neighbour) else ["the neighbour is gone"])


HOSTILE = """
import contextlib, os, socket
for number in range(3, 64):
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
        for text in (b"nonsense", b"{}", b"[]", b'{"op": "map"}', b'{"op": "born", "id": "b1", "pid": 1}'):
            one.send(text)
"""


def test_a_hostile_preload_harms_no_other_environment(trial: Trial) -> None:
    world = World(trial.world.mode)
    try:
        project = write_project(world.folder / "hostile", HOSTILE)
        with contextlib.suppress(EngineError):
            world.start({"preload": True}, project)
        trial.judge([] if world.poll(world.neighbour) is None else ["all sandboxes of the engine are gone"])
        assert world.by_server("own_pid", world.neighbour)
    finally:
        world.close()


def test_a_sandbox_ends_whatever_became_of_its_commands(trial: Trial) -> None:
    world = World(trial.world.mode)
    try:
        handle = world.start()
        world.run(_lose_command(world, handle))
        world.stop(handle)
        trial.judge([] if world.poll(handle) else ["it lives on"])
    finally:
        world.close()


async def _lose_command(world: World, handle: Handle) -> None:
    """Kill what waits for a command outside the sandbox, as a lack of memory may."""
    command = asyncio.create_task(world.engine.exec(handle, ["sleep", "600"]))
    found = await asyncio.to_thread(
        wait_for, lambda: [pid for pid in _children(world.supervisor) if _is_supervisor(pid)]
    )
    os.kill(found[0], signal.SIGKILL)
    await command


def _children(parent: int) -> list[int]:
    stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [int(stat.split()[0]) for stat in stats if int(stat.rpartition(")")[2].split()[1]) == parent]


def _is_supervisor(pid: int) -> bool:
    return b"aenv.engines.local.supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
