"""Every method may be cancelled at any point."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine

from aenv.engines.protocol import Handle
from aenv.testing import calls
from aenv.testing.engine_bench import Bench

MOMENTS = 24


async def give_up(work: Coroutine[object, object, Handle | None], after: float) -> Handle | None:
    """Cancel it after so many seconds; what it returned, if it was faster."""
    task = asyncio.create_task(work)
    await asyncio.wait([task], timeout=after)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


async def give_up_at_turn(work: Coroutine[object, object, Handle | None], turn: int) -> Handle | None:
    """Cancel it after so many turns of the loop."""
    task = asyncio.create_task(work)
    for _ in range(turn):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()


def test_a_start_cancelled_at_any_moment_leaves_nothing(bench: Bench) -> None:
    bench.stop(bench.start())
    began = time.monotonic()
    bench.stop(bench.start())
    whole = time.monotonic() - began
    launches = [bench.zoo.launch() for _ in range(MOMENTS)]
    for number, launch in enumerate(launches):
        handle = bench.run(give_up(bench.engine.start(launch), whole * number / MOMENTS))
        if handle is not None:
            bench.stop(handle)
    bench.assert_nothing_left(*(launch.id for launch in launches))
    assert bench.is_answering(bench.start())


def test_a_start_cancelled_at_any_turn_of_the_loop_leaves_nothing(bench: Bench) -> None:
    launches = [bench.zoo.launch() for _ in range(MOMENTS)]
    for turn, launch in enumerate(launches):
        handle = bench.run(give_up_at_turn(bench.engine.start(launch), turn))
        if handle is not None:
            bench.stop(handle)
    bench.assert_nothing_left(*(launch.id for launch in launches))
    assert bench.is_answering(bench.start())


def test_starts_cancelled_all_at_once_leave_nothing(bench: Bench) -> None:
    launches = [bench.zoo.launch() for _ in range(MOMENTS)]

    async def all_at_once() -> list[Handle | None]:
        work = (give_up(bench.engine.start(launch), 0.004 * number) for number, launch in enumerate(launches))
        return await asyncio.gather(*work)

    for handle in bench.run(all_at_once()):
        if handle is not None:
            bench.stop(handle)
    bench.assert_nothing_left(*(launch.id for launch in launches))


def test_a_first_start_cancelled_during_the_import_leaves_nothing(bench: Bench) -> None:
    for number, after in enumerate((0.01, 0.2, 0.6)):
        # Another variable is another digest: each is imported for the first time.
        launch = bench.zoo.launch("slow_import", deploy={"environmentVariables": {"TRY": str(number)}})
        assert bench.run(give_up(bench.engine.start(launch), after)) is None
        bench.assert_nothing_left(launch.id)
    assert bench.is_answering(bench.start("slow_import"))


def test_a_start_cancelled_while_the_code_hangs_leaves_nothing(bench: Bench) -> None:
    launch = bench.zoo.launch("hangs_at_start")
    assert bench.run(give_up(bench.engine.start(launch), 0.5)) is None
    bench.assert_nothing_left(launch.id)


def test_a_cancelled_stop_goes_on(bench: Bench) -> None:
    for turn in range(12):
        handle = bench.start()
        bench.run(give_up_at_turn(bench.engine.stop(handle), turn))
        if turn:
            bench.wait_for_end(handle)
            bench.assert_nothing_left(handle.id)


def test_a_stop_cancelled_in_its_grace_goes_on(bench: Bench) -> None:
    handle = bench.start("ignores_sigterm")
    bench.call(handle, "dig_in", mark=handle.id)
    bench.run(give_up(bench.engine.stop(handle, grace=0.5), 0.1))
    bench.wait_for_end(handle)
    bench.assert_nothing_left(handle.id)


def test_a_cancelled_poll_or_list_harms_nobody(bench: Bench) -> None:
    handle = bench.start()

    async def give_up_questions() -> None:
        for turn in range(8):
            for question in (bench.engine.poll(handle), bench.engine.list()):
                task = asyncio.ensure_future(question)
                for _ in range(turn):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    bench.run(give_up_questions())
    assert bench.poll(handle) is None
    assert handle.id in bench.list_ids()
    assert bench.is_answering(handle)


def test_a_cancelled_start_is_nobody_elses(bench: Bench) -> None:
    async def give_up_beside_others() -> list[bool]:
        kept = [asyncio.create_task(bench.engine.start(bench.zoo.launch())) for _ in range(4)]
        for number in range(8):
            handle = await give_up(bench.engine.start(bench.zoo.launch()), 0.002 * number)
            if handle is not None:
                bench.hold(handle)
        handles = [bench.hold(await start) for start in kept]
        return [await calls.call(handle.address, "add", {"a": 2, "b": 3}) == 5 for handle in handles]

    assert all(bench.run(give_up_beside_others()))
