"""What `aenv validate` makes of the tools it saw and the answers it got."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import pytest

from aenv.build.validate import calls, running, tools
from aenv.build.validate.calls import first_difference, number_in
from aenv.build.validate.declared import Declared, Example, RewardExample, RewardRules
from aenv.build.validate.findings import Flaw
from aenv.build.validate.visit import Call, Visit
from aenv.build.validate.wire import Answer

Find = Callable[[Visit], Iterable[Flaw]]


def tool(
    name: str = "look", description: str | None = "Look at the world around.", **properties: Any
) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"name": name, "inputSchema": schema} | ({} if description is None else {"description": description})


def answer(result: object, seconds: float = 0.01) -> Answer:
    return Answer(200, {"success": True, "data": result}, seconds)


def failure(code: str = "tool.failed", error: str = "it broke", **more: object) -> Answer:
    return Answer(500, {"success": False, "error": error, "code": code, **more}, 0.01)


def call(
    *answers: Answer, kind: Literal["tool", "reward"] = "reward", example: Example | RewardExample | None = None
) -> Call:
    return Call(kind, f"{kind} 'x'", answers, example)


def visit(*made: Call, reward_range: tuple[float, float] | None = None, **seen: Any) -> Visit:
    declared = Declared(reward=RewardRules.model_construct(range=reward_range))
    return Visit(declared, calls=list(made), **seen)


def messages(find: Find, seen: Visit) -> list[str]:
    return [flaw.message for flaw in find(seen)]


def test_a_description_must_say_more_than_the_name() -> None:
    seen = visit(
        tools=[
            tool("add", "Add."),
            tool("roll_the_dice", "Roll the dice!"),
            tool("reset", "Begin a new episode."),
            tool("none", None),
            tool("blank", "  "),
        ]
    )
    assert [flaw.where for flaw in tools.find_vague(seen)] == ["tool 'add'", "tool 'roll_the_dice'"]
    assert [flaw.where for flaw in tools.find_undescribed(seen)] == ["tool 'none'", "tool 'blank'"]


def test_a_parameter_needs_a_type_and_a_description() -> None:
    seen = visit(
        tools=[
            tool(
                a={"description": "what"},
                b={"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
                c={"$ref": "#/$defs/Node", "description": "a tree"},
                d={"enum": ["x"]},
            )
        ]
    )
    assert [flaw.where for flaw in tools.find_untyped(seen)] == ["tool 'look', parameter 'a'"]
    assert [flaw.where[-3:] for flaw in tools.find_undescribed_parameters(seen)] == ["'b'", "'d'"]


@pytest.mark.parametrize(
    ("name", "is_portable"), [("a" * 64, True), ("a" * 65, False), ("a.b", False), ("a-b_1", True)]
)
def test_names_are_held_against_what_providers_take(name: str, is_portable: bool) -> None:
    assert (not messages(tools.find_unportable_names, visit(tools=[tool(name)]))) is is_portable


def test_128_tools_are_not_too_many() -> None:
    assert messages(tools.find_too_many, visit(tools=[tool()] * 128)) == []
    assert messages(tools.find_too_many, visit(tools=[tool()] * 129)) == ["are 129, and many models take 128 at most"]


def nested(depth: int) -> dict[str, Any]:
    return {"type": "array", "items": nested(depth - 1)} if depth else {"type": "integer"}


def test_nesting_counts_objects_and_arrays_wherever_they_hide() -> None:
    assert messages(tools.find_deep, visit(tools=[tool(a=nested(4))])) == []
    assert messages(tools.find_deep, visit(tools=[tool(a=nested(5))])) == ["takes parameters that are nested 6 deep"]
    hidden = {"anyOf": [{"type": "object", "additionalProperties": nested(4)}, {"type": "null"}]}
    assert len(messages(tools.find_deep, visit(tools=[tool(a=hidden)]))) == 1


def test_a_parameter_that_contains_itself_is_told() -> None:
    assert messages(tools.find_recursive, visit(tools=[tool(a=nested(3))])) == []
    tree = {"type": "array", "items": {"$ref": "#/$defs/Node"}}
    assert len(messages(tools.find_recursive, visit(tools=[tool(a=tree)]))) == 1


@pytest.mark.parametrize(
    ("result", "number"),
    [
        (0.5, 0.5),
        (True, 1.0),
        ({"steps": 12, "score": 0.5}, 0.5),
        ({"status": "success", "points": 3}, 3.0),
        ({"passed": True}, 1.0),
        ({"passed": True, "n": 7}, 7.0),
        ({"score": None, "n": 7}, 7.0),
        ("0.5", None),
        (None, None),
        ({}, None),
        ({"score": "high"}, None),
        ([1.0], None),
    ],
)
def test_the_number_of_a_reward_is_itself_or_what_looks_most_like_a_score(result: object, number: float | None) -> None:
    assert number_in(result) == number


def test_a_number_without_end_is_none() -> None:
    assert number_in(math.nan) is None
    assert number_in({"score": math.inf}) is None


def test_a_reward_that_gives_no_number_is_invalid_and_one_that_raises_has_failed() -> None:
    seen = visit(
        call(answer("great")), call(failure("tool.result_invalid", "result is nan")), call(failure()), call(answer(0.1))
    )
    assert messages(calls.find_invalid_rewards, seen) == [
        "gave 'great', which holds no number",
        "gave no number: result is nan",
    ]
    assert messages(calls.find_failing_rewards, seen) == ["failed without arguments: it broke"]


def test_the_result_of_a_tool_need_not_hold_a_number() -> None:
    assert messages(calls.find_invalid_rewards, visit(call(answer("text"), kind="tool"))) == []


def test_a_declared_range_is_kept_and_an_undeclared_one_is_only_told() -> None:
    seen = visit(call(answer(7)), call(answer({"score": 1})), call(answer(-0.1)), reward_range=(0, 1))
    assert messages(calls.find_out_of_range, seen) == [
        "gave 7, and validation.reward.range is [0, 1]",
        "gave -0.1, and validation.reward.range is [0, 1]",
    ]
    assert messages(calls.find_large_rewards, seen) == []
    assert messages(calls.find_large_rewards, visit(call(answer(7)), call(answer(-1)))) == [
        "gave 7; trainers usually expect -1 to 1"
    ]


def test_the_highest_reward_for_doing_nothing_is_unearned() -> None:
    assert len(messages(calls.find_unearned_rewards, visit(call(answer(1.0))))) == 1
    assert len(messages(calls.find_unearned_rewards, visit(call(answer(5)), reward_range=(0, 5)))) == 1
    earned = call(answer(1.0), example=RewardExample())
    assert messages(calls.find_unearned_rewards, visit(call(answer(0.0)), earned)) == []


def test_two_answers_to_one_call_must_be_the_same() -> None:
    same = call(answer({"a": [1, 2]}), answer({"a": [1, 2]}), kind="tool")
    other = call(answer({"a": [1, 2]}), answer({"a": [1, 3]}), kind="tool")
    broken = call(answer(1), failure(), kind="tool")
    failing = call(failure(), kind="tool")
    assert messages(calls.find_differences, visit(same, other, broken, failing)) == [
        "gave two results for the same call: result['a'][1]: 2 and 3",
        "gave two results for the same call: the second failed: it broke",
    ]


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (1, 1.0, None),
        ({"a": 1}, {"b": 1}, "result['a'] is there only once"),
        ({}, {"b": 1}, "result['b'] is there only once"),
        ([1], [1, 2], "result: [1] and [1, 2]"),
        ([{"x": None}], [{"x": None}], None),
        ("a", None, "result: 'a' and null"),
    ],
)
def test_the_first_difference_is_named_by_its_path(one: object, other: object, difference: str | None) -> None:
    assert first_difference(one, other, "result") == difference


def test_an_example_must_succeed_and_give_what_it_promises() -> None:
    def example(*answers: Answer, **promise: Any) -> Call:
        return call(*answers, kind="tool", example=Example(tool="x", **promise))

    seen = visit(
        example(failure(hint="did you mean 'y'?")),
        example(answer(None), expect=None),
        example(answer(3), expect=4),
        example(answer(3)),
        call(answer(0.2), example=RewardExample(expect=[0.5, 1])),  # type: ignore[arg-type]  # as JSON has it
        call(answer(0.5), example=RewardExample(expect=0.5)),
        call(answer(0.25), example=RewardExample(expect=0.5)),
    )
    assert [(flaw.message, flaw.remedy) for flaw in calls.find_failing_examples(seen)] == [
        ("failed: it broke", "did you mean 'y'?")
    ]
    assert messages(calls.find_unexpected, seen) == [
        "did not give what was expected: result: 3 instead of 4",
        "did not give what was expected: 0.2 instead of 0.5 to 1",
        "did not give what was expected: 0.25 instead of 0.5",
    ]
    assert messages(calls.find_failing_rewards, seen) == []


def test_a_failure_is_told_with_the_frames_of_its_author() -> None:
    broken = call(failure(details={"traceback": ["Traceback:", "  line 1"]}), example=RewardExample())
    assert messages(calls.find_failing_examples, visit(broken)) == ["failed: it broke\nTraceback:\n  line 1"]


def test_health_is_judged_before_and_after_the_calls() -> None:
    assert messages(running.find_unhealthy, visit(health=failure(), last_health=failure())) == ["says no: it broke"]
    assert messages(running.find_unhealthy, visit(health=answer({}), last_health=failure())) == [
        "says no after the calls: it broke"
    ]
    assert messages(running.find_slow_health, visit(health=answer({}, seconds=1.5))) == ["took 1.5 s"]


def test_a_slow_start_and_too_much_memory_are_told_with_their_numbers() -> None:
    seen = visit(start_seconds=11.0, peak_bytes=200 * 2**20, memory_limit=64 * 2**20, health=answer({}))
    assert messages(running.find_slow_start, seen) == ["was ready after 11.0 s"]
    assert messages(running.find_memory, seen) == ["took 200 MiB of memory, and deployConfig allows 64 MiB"]
    assert running.measure(seen) == (11.0, 200 * 2**20, 64 * 2**20, 0.01)
