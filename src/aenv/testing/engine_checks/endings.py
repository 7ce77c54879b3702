"""How sandboxes fail to start, and how they end before their time."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from aenv.engines.protocol import Handle, Launch
from aenv.errors import AEnvError, SandboxFailed, SandboxTimedOut
from aenv.testing import calls
from aenv.testing.engine_bench import Bench


def fail(bench: Bench, launch: Launch) -> SandboxFailed:
    """The error of a start that must fail and leave nothing."""
    with pytest.raises(SandboxFailed) as caught:
        bench.start(launch)
    bench.assert_nothing_left(launch.id)
    return caught.value


def told(error: AEnvError) -> str:
    """All that an error says."""
    return f"{error.message}\n{error.details}"


def die(bench: Bench, handle: Handle, how: str) -> None:
    """Call the tool that ends its own process."""
    with contextlib.suppress(OSError):
        bench.call(handle, "die", how=how)
        pytest.fail(f"a call that dies by {how} was answered")


def test_code_that_raises_fails_the_start_with_the_authors_own_lines(bench: Bench) -> None:
    said = told(fail(bench, bench.zoo.launch("raises_at_import")))
    assert "no such luck" in said
    assert "animal.py" in said


def test_code_that_ends_its_process_fails_the_start_with_its_last_words(bench: Bench) -> None:
    said = told(fail(bench, bench.zoo.launch("dies_at_start")))
    assert "last words" in said
    assert "7" in said


def test_a_start_that_hangs_is_given_up_in_time(bench: Bench) -> None:
    error = fail(bench, bench.zoo.launch("hangs_at_start", start_seconds=1.5))
    assert isinstance(error, SandboxTimedOut)


def test_a_failed_start_can_be_tried_again(bench: Bench) -> None:
    for _ in range(3):
        fail(bench, bench.zoo.launch("raises_at_import"))
    assert bench.is_answering(bench.start())


def test_a_start_that_hangs_holds_nobody_up(bench: Bench) -> None:
    stuck = bench.zoo.launch("hangs_at_start", start_seconds=3.0)

    async def start_meanwhile() -> bool:
        hanging = asyncio.create_task(bench.engine.start(stuck))
        await asyncio.sleep(0.3)
        handle = bench.hold(await bench.engine.start(bench.zoo.launch()))
        is_first = not hanging.done() and await calls.call(handle.address, "add", {"a": 2, "b": 3}) == 5
        with pytest.raises(SandboxTimedOut):
            await hanging
        return is_first

    assert bench.run(start_meanwhile())
    bench.assert_nothing_left(stuck.id)


def test_an_environment_that_is_never_healthy_is_never_called_healthy(bench: Bench) -> None:
    launch = bench.zoo.launch("never_healthy", start_seconds=2.0)
    try:
        handle = bench.start(launch)
    except SandboxTimedOut:
        bench.assert_nothing_left(launch.id)
    else:
        assert bench.ask(handle, "GET", "/health").status == 503


@pytest.mark.parametrize(
    ("how", "reasons", "codes"),
    [
        ("exit 0", {"exited"}, {0}),
        ("exit 3", {"crashed"}, {3}),
        ("segfault", {"crashed"}, {-11, 139}),
        ("sigkill", {"crashed", "killed"}, {-9, 137}),
    ],
)
def test_poll_says_how_a_sandbox_died(bench: Bench, how: str, reasons: set[str], codes: set[int]) -> None:
    handle = bench.start("dies_mid_call")
    die(bench, handle, how)
    ended = bench.wait_for_end(handle)
    assert ended.reason in reasons
    assert ended.code in codes
    assert ended.message


def test_poll_shows_the_last_lines_of_the_dead(bench: Bench) -> None:
    handle = bench.start("dies_mid_call")
    die(bench, handle, "exit 3")
    assert "dying by exit 3" in bench.wait_for_end(handle).log_tail


def test_the_dead_are_not_listed(bench: Bench) -> None:
    handle = bench.start("dies_mid_call")
    die(bench, handle, "exit 3")
    bench.wait_for_end(handle)
    assert handle.id not in bench.list_ids()


def test_one_death_is_nobody_elses(bench: Bench) -> None:
    first, second = bench.start("dies_mid_call"), bench.start("dies_mid_call")
    bench.call(second, "count")
    die(bench, first, "segfault")
    bench.wait_for_end(first)
    assert bench.poll(second) is None
    assert bench.call(second, "count") == 2
    assert bench.is_answering(bench.start("dies_mid_call"))


def test_stop_ends_processes_that_are_nobodys_children(bench: Bench) -> None:
    handle = bench.start("forks_daemons")
    bench.call(handle, "daemonise", mark=handle.id)
    assert bench.is_answering(handle)
    bench.stop(handle)
    bench.assert_nothing_left(handle.id)


def test_stop_with_grace_ends_processes_that_are_nobodys_children(bench: Bench) -> None:
    handle = bench.start("forks_daemons")
    bench.call(handle, "daemonise", mark=handle.id)
    bench.stop(handle, grace=10.0)
    bench.assert_nothing_left(handle.id)


def test_a_call_under_way_does_not_keep_a_sandbox_alive(bench: Bench) -> None:
    handle = bench.start()

    async def stop_in_the_middle() -> BaseException | None:
        napping = asyncio.create_task(calls.call(handle.address, "nap", {"seconds": 60}))
        await asyncio.sleep(0.2)
        await bench.engine.stop(handle)
        await asyncio.wait([napping])
        return napping.exception()

    assert isinstance(bench.run(stop_in_the_middle()), OSError)
    bench.assert_nothing_left(handle.id)
