"""Copies of a live sandbox (SupportsFork)."""

from __future__ import annotations

import asyncio

import pytest

from aenv.engines.protocol import Handle, SupportsFork
from aenv.errors import EngineError, ForkRefused
from aenv.testing import calls
from aenv.testing.engine_bench import Bench


@pytest.fixture
def forker(bench: Bench) -> SupportsFork:
    """The engine as one that copies, or a skip."""
    if not isinstance(bench.engine, SupportsFork):
        pytest.skip(f"{bench.engine.name} copies no sandboxes; give it a method `fork` (SupportsFork)")
    return bench.engine


@pytest.fixture
def source(bench: Bench, forker: SupportsFork) -> Handle:
    """A sandbox that may be copied."""
    return bench.start(bench.zoo.launch(deploy={"forkable": True}))


def fork(bench: Bench, forker: SupportsFork, source: Handle, count: int = 1) -> list[Handle]:
    """That many copies."""
    ids = [bench.zoo.new_id() for _ in range(count)]
    copies = [bench.hold(copy) for copy in bench.run(forker.fork(source, ids))]
    assert [copy.id for copy in copies] == ids
    return copies


def test_a_copy_has_the_memory_of_its_source_and_goes_its_own_way(
    bench: Bench, forker: SupportsFork, source: Handle
) -> None:
    assert [bench.call(source, "count") for _ in range(3)] == [1, 2, 3]
    (copy,) = fork(bench, forker, source)
    assert [bench.call(copy, "count") for _ in range(2)] == [4, 5]
    assert bench.call(source, "count") == 4


def test_a_copy_has_the_files_of_its_source_and_goes_its_own_way(
    bench: Bench, forker: SupportsFork, source: Handle
) -> None:
    bench.call(source, "write_file", path="note.txt", text="before")
    (copy,) = fork(bench, forker, source)
    assert bench.call(copy, "read_file", path="note.txt") == "before"
    bench.call(copy, "write_file", path="note.txt", text="of the copy")
    bench.call(source, "write_file", path="new.txt", text="of the source")
    assert bench.call(source, "read_file", path="note.txt") == "before"
    assert bench.call(copy, "read_file", path="new.txt") is None


def test_copies_are_sandboxes_like_any_other(bench: Bench, forker: SupportsFork, source: Handle) -> None:
    copies = fork(bench, forker, source, 4)
    assert len({handle.address for handle in (source, *copies)}) == 5
    assert {copy.id for copy in copies} <= bench.list_ids()
    assert all(bench.poll(copy) is None and bench.is_answering(copy) for copy in copies)
    bench.stop(copies[0])
    bench.assert_nothing_left(copies[0].id)
    assert bench.poll(copies[0]) is not None
    assert all(bench.is_answering(handle) for handle in (source, *copies[1:]))


def test_copies_outlive_their_source(bench: Bench, forker: SupportsFork, source: Handle) -> None:
    bench.call(source, "count")
    (copy,) = fork(bench, forker, source)
    bench.stop(source)
    bench.assert_nothing_left(source.id)
    assert bench.call(copy, "count") == 2
    assert bench.poll(copy) is None


def test_a_copy_can_be_copied(bench: Bench, forker: SupportsFork, source: Handle) -> None:
    handle = source
    for number in range(1, 4):
        assert bench.call(handle, "count") == number
        (handle,) = fork(bench, forker, handle)
    assert bench.call(handle, "count") == 4
    assert bench.call(source, "count") == 2


def test_a_fork_waits_for_calls_under_way(bench: Bench, forker: SupportsFork, source: Handle) -> None:
    id = bench.zoo.new_id()

    async def fork_in_the_middle() -> Handle:
        napping = asyncio.create_task(calls.call(source.address, "nap", {"seconds": 0.5}))
        await asyncio.sleep(0.1)
        (copy,) = await forker.fork(source, [id])
        assert await napping == 0.5
        return copy

    assert bench.is_answering(bench.hold(bench.run(fork_in_the_middle())))


def test_one_that_was_not_declared_forkable_is_refused_and_lives_on(bench: Bench, forker: SupportsFork) -> None:
    handle = bench.start()
    id = bench.zoo.new_id()
    with pytest.raises(ForkRefused) as caught:
        bench.run(forker.fork(handle, [id]))
    assert caught.value.message
    bench.assert_nothing_left(id)
    assert bench.is_answering(handle)


def test_one_that_is_gone_cannot_be_copied(bench: Bench, forker: SupportsFork, source: Handle) -> None:
    bench.stop(source)
    id = bench.zoo.new_id()
    with pytest.raises(EngineError):
        bench.run(forker.fork(source, [id]))
    bench.assert_nothing_left(id)


def test_a_cancelled_fork_leaves_no_copy(bench: Bench, forker: SupportsFork, source: Handle) -> None:
    async def give_up(after: float) -> list[Handle]:
        task = asyncio.create_task(forker.fork(source, ids))
        await asyncio.wait([task], timeout=after)
        task.cancel()
        await asyncio.wait([task])
        return [] if task.cancelled() else task.result()

    for number in range(8):
        ids = [bench.zoo.new_id() for _ in range(2)]
        for copy in bench.run(give_up(0.002 * number)):
            bench.stop(copy)
        bench.assert_nothing_left(*ids)
    assert bench.is_answering(source)
