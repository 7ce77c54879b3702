"""Commands beside the environment's server (SupportsExec)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aenv.engines.protocol import ExecResult, Handle, SupportsExec
from aenv.errors import ExecTimedOut, SandboxGone
from aenv.testing import calls
from aenv.testing.engine_bench import Bench
from aenv.testing.engine_checks.lifecycle import stranger


@pytest.fixture
def executor(bench: Bench) -> SupportsExec:
    """The engine as one that runs commands, or a skip."""
    if not isinstance(bench.engine, SupportsExec):
        pytest.skip(f"{bench.engine.name} runs no commands; give it a method `exec` (SupportsExec)")
    return bench.engine


def sh(bench: Bench, executor: SupportsExec, handle: Handle, script: str) -> ExecResult:
    """Run a shell script in a sandbox."""
    return bench.run(executor.exec(handle, ["sh", "-c", script]))


def test_a_command_tells_its_two_outputs_and_its_code(bench: Bench, executor: SupportsExec) -> None:
    done = sh(bench, executor, bench.start(), "echo out; echo err >&2; exit 3")
    assert done == ExecResult(3, b"out\n", b"err\n")


def test_a_command_reads_what_it_is_given(bench: Bench, executor: SupportsExec) -> None:
    given = bytes(range(256)) * 8192
    done = bench.run(executor.exec(bench.start(), ["cat"], stdin=given, keep=len(given)))
    assert done == ExecResult(0, given, b"")


def test_a_command_without_input_reads_an_end(bench: Bench, executor: SupportsExec) -> None:
    assert bench.run(executor.exec(bench.start(), ["cat"])) == ExecResult(0, b"", b"")


def test_a_command_that_leaves_its_input_unread_ends_well(bench: Bench, executor: SupportsExec) -> None:
    done = bench.run(executor.exec(bench.start(), ["true"], stdin=b"x" * 2**21))
    assert done == ExecResult(0, b"", b"")


def test_arguments_of_a_command_are_not_read_by_a_shell(bench: Bench, executor: SupportsExec) -> None:
    words = ["$HOME", "a b", "", "žluťoučký", "'", "*"]
    done = bench.run(executor.exec(bench.start(), ["printf", "%s\n", *words]))
    assert done.stdout.decode().split("\n")[:-1] == words


def test_a_command_sees_the_sandboxs_variables_under_its_own(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start(bench.zoo.launch(variables={"COLOUR": "red", "SHAPE": "round"}))
    command = ["sh", "-c", 'echo "$COLOUR $SHAPE $SIZE $AENV_INSTANCE_ID"']
    done = bench.run(executor.exec(handle, command, variables={"COLOUR": "blue", "SIZE": "large"}))
    assert done.stdout.decode() == f"blue round large {handle.id}\n"


def test_a_command_works_where_it_is_told_to(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()
    assert bench.run(executor.exec(handle, ["pwd"], cwd="/usr")).stdout == b"/usr\n"


def test_a_command_sees_the_files_of_its_sandbox(bench: Bench, executor: SupportsExec) -> None:
    handle, other = bench.start(), bench.start()
    path = str(bench.call(handle, "write_file", path="note.txt", text="from the tool"))
    assert sh(bench, executor, handle, f"cat {path}").stdout == b"from the tool"
    assert sh(bench, executor, handle, "cat note.txt").stdout == b"from the tool"
    sh(bench, executor, handle, f"echo from the command > {path}")
    assert bench.call(handle, "read_file", path="note.txt") == "from the command\n"
    assert sh(bench, executor, other, "cat note.txt").code != 0


def test_a_command_sees_no_file_of_the_host(bench: Bench, executor: SupportsExec, tmp_path: Path) -> None:
    marker = tmp_path / "of-the-host"
    marker.write_text("private")
    assert sh(bench, executor, bench.start(), f"cat {marker}").code != 0


def test_a_command_that_is_not_there_ends_with_127(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()
    assert bench.run(executor.exec(handle, ["no-such-command"])).code == 127
    assert bench.run(executor.exec(handle, ["/no/such/command"])).code == 127


def test_a_file_that_is_no_command_ends_with_126(bench: Bench, executor: SupportsExec) -> None:
    assert bench.run(executor.exec(bench.start(), ["/etc"])).code == 126


def test_a_command_ended_by_a_signal_says_so_in_its_code(bench: Bench, executor: SupportsExec) -> None:
    assert sh(bench, executor, bench.start(), "kill -9 $$").code in {-9, 137}


def test_more_output_than_is_kept_is_cut_and_the_code_still_told(bench: Bench, executor: SupportsExec) -> None:
    script = "yes | head -c 20000000; echo fine >&2; exit 5"
    done = bench.run(executor.exec(bench.start(), ["sh", "-c", script], keep=1000))
    assert done == ExecResult(5, b"y\n" * 500, b"fine\n", is_truncated=True)


def test_output_that_just_fits_is_not_cut(bench: Bench, executor: SupportsExec) -> None:
    done = bench.run(executor.exec(bench.start(), ["sh", "-c", "yes | head -c 1000"], keep=1000))
    assert done == ExecResult(0, b"y\n" * 500, b"", is_truncated=False)


def test_a_command_that_takes_too_long_is_killed_with_its_children(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()
    mark = bench.zoo.new_id()
    script = f"sh -c 'trap \"\" TERM; sleep 1000; : {mark}' & sleep 1000; : {mark}"
    with pytest.raises(ExecTimedOut):
        bench.run(executor.exec(handle, ["sh", "-c", script], timeout=0.5))
    bench.assert_nothing_left(mark)
    assert bench.is_answering(handle)


def test_a_cancelled_command_is_killed(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()
    mark = bench.zoo.new_id()

    async def give_up() -> None:
        task = asyncio.create_task(executor.exec(handle, ["sh", "-c", f"sleep 1000; : {mark}"]))
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    bench.run(give_up())
    bench.assert_nothing_left(mark)
    assert bench.is_answering(handle)


def test_what_a_command_leaves_running_ends_with_its_sandbox(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()
    mark = bench.zoo.new_id()
    script = f"(setsid sh -c 'sleep 1000; : {mark}' >/dev/null 2>&1 </dev/null &)"
    assert sh(bench, executor, handle, script).code == 0
    bench.stop(handle)
    bench.assert_nothing_left(mark)


def test_commands_run_side_by_side(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()

    async def at_once() -> list[ExecResult]:
        return await asyncio.gather(*(executor.exec(handle, ["echo", str(number)]) for number in range(10)))

    assert [done.stdout for done in bench.run(at_once())] == [f"{number}\n".encode() for number in range(10)]


def test_the_environment_answers_while_a_command_runs(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()

    async def both() -> bool:
        command = asyncio.create_task(executor.exec(handle, ["sleep", "1"]))
        await asyncio.sleep(0.1)
        answer = await calls.call(handle.address, "add", {"a": 2, "b": 3})
        is_meanwhile = not command.done()
        await command
        return answer == 5 and is_meanwhile

    assert bench.run(both())


def test_a_sandbox_that_is_gone_runs_no_command(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()
    bench.stop(handle)
    for gone in (handle, stranger(bench)):
        with pytest.raises(SandboxGone):
            bench.run(executor.exec(gone, ["true"]))


def test_a_sandbox_that_stops_under_a_command_ends_it(bench: Bench, executor: SupportsExec) -> None:
    handle = bench.start()
    mark = bench.zoo.new_id()

    async def stop_in_the_middle() -> ExecResult | BaseException:
        command = asyncio.create_task(executor.exec(handle, ["sh", "-c", f"sleep 1000; : {mark}"]))
        await asyncio.sleep(0.3)
        await bench.engine.stop(handle)
        (outcome,) = await asyncio.gather(command, return_exceptions=True)
        return outcome

    outcome = bench.run(stop_in_the_middle())
    # The caller is told either that the sandbox went away, or that the command was killed.
    assert isinstance(outcome, SandboxGone) or (isinstance(outcome, ExecResult) and outcome.code in {-9, 137}), outcome
    bench.assert_nothing_left(mark)
