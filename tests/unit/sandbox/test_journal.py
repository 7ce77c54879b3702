"""Results by call id, within bounds."""

from __future__ import annotations

import pytest

from aenv.errors import ArgumentsInvalid, CallConflict, CallForgotten, ToolError, ToolFailed
from aenv.sandbox.encode import Result, to_result
from aenv.sandbox.journal import Journal, fingerprint
from aenv.sandbox.loop import Future, start


class Calls:
    """A journal, and how often each call really ran."""

    def __init__(self, **bounds: int) -> None:
        self.journal = Journal(**bounds)
        self.ran: list[str] = []

    def ask(self, call_id: str, value: object = 1, *, gate: Future[None] | None = None) -> list[object]:
        """Start a call; the list receives its result or its error when there is one."""
        told: list[object] = []

        async def run() -> Result:
            self.ran.append(call_id)
            if gate is not None:
                await gate
            if isinstance(value, Exception):
                raise value
            return to_result(value)

        async def once() -> Result:
            return await self.journal.once(call_id, fingerprint("tool", "t", repr(value)), run)

        start(once(), lambda result, problem: told.append(result.value if result is not None else problem))
        return told


def test_a_repeat_gets_the_recorded_result() -> None:
    calls = Calls()
    assert [calls.ask("a", 5), calls.ask("a", 5)] == [[5], [5]]
    assert calls.ran == ["a"]


def test_a_repeat_joins_what_runs_and_both_hear_the_end() -> None:
    calls = Calls()
    gate: Future[None] = Future()
    first, second = calls.ask("a", gate=gate), calls.ask("a", gate=gate)
    assert (first, second, calls.ran) == ([], [], ["a"])
    gate.set(None)
    assert (first, second, calls.ran) == ([1], [1], ["a"])


def test_a_failure_is_told_again_and_not_run_again() -> None:
    calls = Calls()
    failure = ToolFailed("no")
    assert [calls.ask("a", failure), calls.ask("a", failure)] == [[failure], [failure]]
    assert calls.ran == ["a"]


def test_a_call_that_was_refused_leaves_its_id_free() -> None:
    calls = Calls()
    [refusal] = calls.ask("a", ArgumentsInvalid("wrong"))
    assert isinstance(refusal, ArgumentsInvalid)
    assert calls.ask("a", 2) == [2]


def test_whoever_joined_a_call_that_was_refused_is_told_as_well() -> None:
    calls = Calls()
    gate: Future[None] = Future()
    refusal = ArgumentsInvalid("wrong")
    first, second = calls.ask("a", refusal, gate=gate), calls.ask("a", refusal, gate=gate)
    gate.set(None)
    assert first == second == [refusal]


@pytest.mark.parametrize("is_running", [False, True])
def test_an_id_belongs_to_one_call(is_running: bool) -> None:
    calls = Calls()
    gate: Future[None] = Future()
    calls.ask("a", 1, gate=gate if is_running else None)
    [conflict] = calls.ask("a", 2)
    assert isinstance(conflict, CallConflict)


def test_old_results_are_forgotten_but_never_run_again() -> None:
    calls = Calls(entries=2)
    for call_id in "abc":
        calls.ask(call_id)
    assert calls.ask("c") == [1]
    [forgotten] = calls.ask("a")
    assert isinstance(forgotten, CallForgotten)
    [conflict] = calls.ask("a", 2)
    assert isinstance(conflict, CallConflict)
    assert calls.ran == ["a", "b", "c"]


def test_large_results_push_older_ones_out_and_the_newest_stays() -> None:
    calls = Calls(size=1000)
    calls.ask("a", "x" * 600)
    calls.ask("b", "y" * 5000)
    assert isinstance(calls.ask("a", "x" * 600)[0], CallForgotten)
    assert calls.ask("b", "y" * 5000) == ["y" * 5000]


def test_the_memory_of_ids_is_bounded_too() -> None:
    calls = Calls(entries=1)
    for number in range(20):
        calls.ask(str(number))
    assert calls.ask("0") == [1]
    assert isinstance(calls.ask("15")[0], CallForgotten)


def test_a_call_is_told_by_kind_name_and_arguments() -> None:
    base = fingerprint("tool", "t", {"a": 1})
    assert base == fingerprint("tool", "t", {"a": 1})
    others = [("reward", "t", {"a": 1}), ("tool", "u", {"a": 1}), ("tool", "t", {"a": 2}), ("tool", "t", {"a": "1"})]
    assert base not in [fingerprint(*other) for other in others]
    assert issubclass(ToolFailed, ToolError)
