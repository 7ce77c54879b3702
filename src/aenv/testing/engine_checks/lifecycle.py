"""Start, poll, stop, list, close."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os

import pytest

from aenv._util.ids import new_id
from aenv.engines.protocol import Handle
from aenv.testing.engine_bench import Bench, read_log

ENDED = {"stopped", "lost"}
GARBAGE: tuple[object, ...] = (None, "garbage", -1, 0, 1, 2**70, 1.5, True, [], {}, "../../etc")


def stranger(bench: Bench, **state: object) -> Handle:
    """A handle of the right engine to a sandbox that never was."""
    id = new_id("ins")
    return Handle(id, bench.engine.name, f"unix:/nonexistent/{id}", state)


def test_a_started_sandbox_answers_at_once(bench: Bench) -> None:
    launch = bench.zoo.launch()
    handle = bench.start(launch)
    assert (handle.id, handle.engine) == (launch.id, bench.engine.name)
    assert bench.ask(handle, "GET", "/health").status == 200
    assert bench.call(handle, "add", a=2, b=3) == 5


def test_a_live_sandbox_polls_none(bench: Bench) -> None:
    handle = bench.start()
    assert bench.poll(handle) is None
    assert bench.is_answering(handle)
    assert bench.poll(handle) is None


def test_a_handle_is_as_good_after_a_trip_through_json(bench: Bench) -> None:
    text = json.dumps(dataclasses.asdict(bench.start()))
    handle = Handle(**json.loads(text))
    assert bench.poll(handle) is None
    assert bench.is_answering(handle)
    bench.stop(handle)
    assert bench.poll(handle) is not None


def test_stop_ends_it_and_leaves_nothing(bench: Bench) -> None:
    handle = bench.start()
    bench.stop(handle)
    bench.assert_nothing_left(handle.id)
    assert not bench.is_answering(handle)


def test_poll_after_stop_says_stopped_or_lost(bench: Bench) -> None:
    handle = bench.start()
    bench.stop(handle)
    ended = bench.poll(handle)
    assert ended is not None
    assert ended.reason in ENDED
    assert ended.message


def test_stop_twice_is_as_good_as_once(bench: Bench) -> None:
    handle = bench.start()
    bench.stop(handle)
    bench.stop(handle)
    bench.stop(handle, grace=1.0)
    bench.assert_nothing_left(handle.id)


def test_two_stops_at_once_both_return_when_it_is_gone(bench: Bench) -> None:
    handle = bench.start()

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(bench.engine.stop(handle))

    bench.run(both())
    bench.assert_nothing_left(handle.id)


def test_stop_of_a_sandbox_that_never_was_does_nothing(bench: Bench) -> None:
    neighbour = bench.start()
    bench.stop(stranger(bench))
    bench.stop(stranger(bench), grace=1.0)
    assert bench.is_answering(neighbour)


def test_poll_of_a_handle_that_never_was_says_lost(bench: Bench) -> None:
    ended = bench.poll(stranger(bench))
    assert ended is not None
    assert ended.reason == "lost"
    assert ended.message


def test_poll_of_a_handle_full_of_garbage_answers_lost(bench: Bench) -> None:
    state = dict(bench.start().state)
    for value in GARBAGE:
        for garbage in ({"pid": value}, dict.fromkeys(state, value)):
            ended = bench.poll(stranger(bench, **garbage))
            assert ended is not None, garbage
            assert ended.reason == "lost", garbage


def test_stop_of_a_handle_full_of_garbage_harms_nobody(bench: Bench) -> None:
    neighbour = bench.start()
    keys = [*neighbour.state, "pid"]
    for value in (*GARBAGE[:6], os.getpid()):
        bench.stop(stranger(bench, **dict.fromkeys(keys, value)))
    assert bench.is_answering(neighbour)


def test_list_shows_what_lives_and_nothing_else(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    assert {first.id, second.id} <= bench.list_ids()
    bench.stop(first)
    assert bench.list_ids() & {first.id, second.id} == {second.id}


def test_a_listed_handle_is_the_one_that_start_gave(bench: Bench) -> None:
    handle = bench.start()
    (listed,) = [one for one in bench.run(bench.engine.list()) if one.id == handle.id]
    assert listed == handle


def test_the_same_id_again_is_the_same_sandbox(bench: Bench) -> None:
    launch = bench.zoo.launch()
    first = bench.start(launch)
    assert bench.call(first, "count") == 1
    second = bench.start(launch)
    assert second == first
    assert bench.call(second, "count") == 2


def test_the_same_id_at_the_same_time_is_the_same_sandbox(bench: Bench) -> None:
    launch = bench.zoo.launch()

    async def at_once() -> list[Handle]:
        return await asyncio.gather(*(bench.engine.start(launch) for _ in range(5)))

    handles = bench.run(at_once())
    bench.hold(handles[0])
    assert all(handle == handles[0] for handle in handles)
    assert [bench.call(handle, "count") for handle in handles] == [1, 2, 3, 4, 5]
    assert [one.id for one in bench.run(bench.engine.list())].count(launch.id) == 1


def test_with_grace_an_environment_may_say_goodbye(bench: Bench) -> None:
    handle = bench.start()

    async def hear_the_end() -> bytes:
        async with asyncio.TaskGroup() as group:
            heard = group.create_task(read_log(bench.engine, handle, follow=True))
            await asyncio.sleep(0)
            await bench.engine.stop(handle, grace=20.0)
        return heard.result()

    assert b"goodbye" in bench.run(hear_the_end())
    bench.assert_nothing_left(handle.id)


def test_one_that_ignores_sigterm_ends_when_its_grace_does(bench: Bench) -> None:
    handle = bench.start("ignores_sigterm")
    bench.call(handle, "dig_in", mark=handle.id)
    bench.stop(handle, grace=0.3)
    bench.assert_nothing_left(handle.id)
    assert bench.poll(handle) is not None


def test_aclose_ends_every_sandbox(bench: Bench) -> None:
    with bench.another() as other:
        handles = [other.start() for _ in range(3)]
        other.run(other.engine.aclose())
        bench.assert_nothing_left(*(handle.id for handle in handles))
        assert not any(bench.is_answering(handle) for handle in handles)


def test_aclose_twice_is_as_good_as_once(bench: Bench) -> None:
    with bench.another() as other:
        other.start()
        other.run(other.engine.aclose())


def test_aclose_of_an_engine_that_was_never_used_does_nothing(bench: Bench) -> None:
    with bench.another() as other:
        assert other.list_ids() == set()


def test_a_new_engine_starts_where_another_was_closed(bench: Bench) -> None:
    with bench.another() as first:
        old = first.start()
    with bench.another() as second:
        ended = second.poll(old)
        assert ended is not None
        assert ended.reason in ENDED
        second.stop(old)
        assert second.is_answering(second.start())


@pytest.mark.parametrize("name", ["starts_threads", "slow_import"])
def test_an_unusual_import_makes_no_difference(bench: Bench, name: str) -> None:
    handle = bench.start(name)
    assert bench.is_answering(handle)
    if name == "starts_threads":
        bench.wait_for(lambda: bench.call(handle, "ticks"))
        first = bench.call(handle, "ticks")
        bench.wait_for(lambda: bench.call(handle, "ticks") != first)
