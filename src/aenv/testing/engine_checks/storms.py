"""Many at once."""

from __future__ import annotations

import asyncio

from aenv.engines.protocol import Handle
from aenv.errors import SandboxFailed
from aenv.testing import calls
from aenv.testing.engine_bench import Bench

MANY = 50
WORKERS = 8
ROUNDS = 4


def test_fifty_starts_at_once_all_answer(bench: Bench) -> None:
    launches = [bench.zoo.launch(variables={"NUMBER": str(number)}) for number in range(MANY)]

    async def at_once() -> list[Handle]:
        return await asyncio.gather(*(bench.engine.start(launch) for launch in launches))

    async def numbers() -> list[object]:
        command = {"command": "echo $NUMBER $AENV_INSTANCE_ID"}
        return await asyncio.gather(*(calls.call(handle.address, "shell", command) for handle in handles))

    async def stop_all() -> None:
        await asyncio.gather(*(bench.engine.stop(handle) for handle in handles))

    handles = [bench.hold(handle) for handle in bench.run(at_once())]
    assert [handle.id for handle in handles] == [launch.id for launch in launches]
    expected = [{"code": 0, "output": f"{number} {launch.id}\n"} for number, launch in enumerate(launches)]
    assert bench.run(numbers()) == expected
    assert {handle.id for handle in handles} <= bench.list_ids()
    bench.run(stop_all())
    bench.assert_nothing_left(*(launch.id for launch in launches))


def test_a_storm_of_starts_and_stops_leaves_nothing(bench: Bench) -> None:
    ids: list[str] = []

    async def come_and_go() -> None:
        for _ in range(ROUNDS):
            launch = bench.zoo.launch()
            ids.append(launch.id)
            handle = await bench.engine.start(launch)
            assert await calls.call(handle.address, "count", {}) == 1
            assert await bench.engine.poll(handle) is None
            await bench.engine.stop(handle)
            assert await bench.engine.poll(handle) is not None

    async def storm() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(come_and_go())

    bench.run(storm())
    bench.assert_nothing_left(*ids)


def test_failures_beside_successes_stay_apart(bench: Bench) -> None:
    names = ["polite", "raises_at_import", "polite", "dies_at_start"] * 3
    launches = [bench.zoo.launch(name) for name in names]

    async def at_once() -> list[Handle | BaseException]:
        starts = (bench.engine.start(launch) for launch in launches)
        return await asyncio.gather(*starts, return_exceptions=True)

    outcomes = bench.run(at_once())
    handles = [bench.hold(outcome) for outcome in outcomes if isinstance(outcome, Handle)]
    assert [handle.id for handle in handles] == [
        one.id for one, name in zip(launches, names, strict=True) if name == "polite"
    ]
    failures = [outcome for outcome in outcomes if not isinstance(outcome, Handle)]
    assert all(isinstance(failure, SandboxFailed) for failure in failures), failures
    assert all(bench.is_answering(handle) for handle in handles)


def test_many_calls_at_once_are_each_answered_by_their_own(bench: Bench) -> None:
    handles = [bench.start() for _ in range(4)]

    async def at_once() -> list[object]:
        asked = [(handle, number) for number in range(25) for handle in handles]
        return await asyncio.gather(
            *(calls.call(handle.address, "echo", {"text": f"{handle.id} {number}"}) for handle, number in asked)
        )

    assert bench.run(at_once()) == [f"{handle.id} {number}" for number in range(25) for handle in handles]
