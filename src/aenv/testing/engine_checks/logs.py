"""The log of a sandbox: in order, bounded, followed to its end."""

from __future__ import annotations

import asyncio
import re

from aenv.engines.protocol import Handle
from aenv.testing import calls
from aenv.testing.engine_bench import Bench, read_log
from aenv.testing.engine_checks.lifecycle import stranger

FLOOD_MB = 1024
MOST_KEPT = 64 << 20
"""Bytes of log that any engine may keep: far more than one should, far less than the flood."""


def wait_for_line(bench: Bench, handle: Handle, line: bytes) -> bytes:
    """The log once the line is in it."""
    bench.wait_for(lambda: line in bench.log(handle))
    return bench.log(handle)


def test_lines_stand_in_the_order_they_were_printed(bench: Bench) -> None:
    handle = bench.start()
    for number in range(50):
        bench.call(handle, "say", text=f"line {number:02}")
    log = wait_for_line(bench, handle, b"line 49")
    assert re.findall(rb"line (\d\d)", log) == [f"{number:02}".encode() for number in range(50)]


def test_what_a_child_process_prints_is_in_the_log(bench: Bench) -> None:
    handle = bench.start()
    bench.call(handle, "have_child_say", text="from the child")
    wait_for_line(bench, handle, b"from the child")


def test_the_tail_is_the_end_of_the_log(bench: Bench) -> None:
    handle = bench.start()
    bench.call(handle, "say", text="x" * 500)
    bench.call(handle, "say", text="the end")
    log = wait_for_line(bench, handle, b"the end")
    assert bench.log(handle, tail=100) == log[-100:]
    assert bench.log(handle, tail=10 * len(log)) == log
    assert bench.log(handle, tail=0) == b""


def test_each_instance_has_a_log_of_its_own(bench: Bench) -> None:
    first, second = bench.start(), bench.start()
    bench.call(first, "say", text="said by the first")
    bench.call(second, "say", text="said by the second")
    assert b"by the second" not in wait_for_line(bench, first, b"said by the first")
    assert b"by the first" not in wait_for_line(bench, second, b"said by the second")


def test_two_readers_follow_until_the_end(bench: Bench) -> None:
    handle = bench.start()
    bench.call(handle, "say", text="before")
    wait_for_line(bench, handle, b"before")

    async def follow_twice() -> list[bytes]:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read_log(bench.engine, handle, follow=True)) for _ in range(2)]
            await calls.call(handle.address, "say", {"text": "while we follow"})
            await _until_logged(bench, handle, b"while we follow")
            await bench.engine.stop(handle)
        return [reader.result() for reader in readers]

    for log in bench.run(follow_twice()):
        assert log.index(b"before") < log.index(b"while we follow")
        assert log.count(b"while we follow") == 1


def test_following_after_a_tail_misses_and_repeats_nothing(bench: Bench) -> None:
    handle = bench.start()
    bench.call(handle, "say", text="long before")
    wait_for_line(bench, handle, b"long before")

    async def follow_from_now() -> bytes:
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(read_log(bench.engine, handle, tail=0, follow=True))
            await asyncio.sleep(0.1)
            for number in range(20):
                await calls.call(handle.address, "say", {"text": f"line {number:02}"})
            await _until_logged(bench, handle, b"line 19")
            await bench.engine.stop(handle)
        return reader.result()

    log = bench.run(follow_from_now())
    assert b"long before" not in log
    assert re.findall(rb"line (\d\d)", log) == [f"{number:02}".encode() for number in range(20)]


def test_a_reader_who_leaves_harms_nobody(bench: Bench) -> None:
    handle = bench.start()

    async def leave() -> None:
        reader = asyncio.create_task(read_log(bench.engine, handle, follow=True))
        await asyncio.sleep(0.05)
        reader.cancel()
        await asyncio.wait([reader])
        assert reader.cancelled()

    bench.run(leave())
    assert bench.is_answering(handle)
    bench.call(handle, "say", text="still here")
    wait_for_line(bench, handle, b"still here")


def test_bytes_that_are_no_text_are_logged_and_do_no_harm(bench: Bench) -> None:
    handle = bench.start("prints_binary")
    bench.call(handle, "splutter")
    wait_for_line(bench, handle, b"after the bytes")
    assert bench.is_answering(handle)


def test_a_sandbox_without_standard_streams_still_answers(bench: Bench) -> None:
    handle = bench.start("closes_stdio")
    bench.call(handle, "close_stdio")
    assert bench.is_answering(handle)
    assert bench.poll(handle) is None


def test_a_gigabyte_of_output_is_bounded_and_neighbours_answer(bench: Bench) -> None:
    handle, neighbour = bench.start("prints_a_gigabyte"), bench.start()

    async def answer_meanwhile() -> int:
        flood = asyncio.create_task(calls.call(handle.address, "flood", {"mb": FLOOD_MB}))
        answered = 0
        while not flood.done():
            assert await calls.call(neighbour.address, "add", {"a": 2, "b": 3}) == 5
            answered += 1
            await asyncio.wait([flood], timeout=0.05)
        await flood
        return answered

    assert bench.run(answer_meanwhile()) > 0
    log = wait_for_line(bench, handle, b"the flood is over")
    assert len(log) < MOST_KEPT
    assert bench.is_answering(handle)


def test_the_log_of_a_sandbox_that_never_was_is_empty(bench: Bench) -> None:
    assert bench.log(stranger(bench)) == b""
    assert bench.run(read_log(bench.engine, stranger(bench), follow=True)) == b""


def test_the_log_of_a_stopped_sandbox_can_be_asked_for(bench: Bench) -> None:
    handle = bench.start()
    bench.stop(handle)
    bench.log(handle)
    bench.run(read_log(bench.engine, handle, follow=True))


async def _until_logged(bench: Bench, handle: Handle, line: bytes) -> None:
    while line not in await read_log(bench.engine, handle):  # noqa: ASYNC110 - the log tells nobody else
        await asyncio.sleep(0.02)
