"""Checks of what calls gave: rewards, results that must repeat, the author's own examples."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from aenv._util.unreadable import shown
from aenv.build.validate.declared import Example, RewardExample
from aenv.build.validate.findings import Flaw
from aenv.build.validate.visit import Call, Visit
from aenv.build.validate.wire import Answer
from aenv.errors import ResultInvalid

# Where a dictionary has several numbers, the one that trainers read.
_SCORES = ("reward", "score", "value", "total", "total_reward")
_USUAL = (-1.0, 1.0)
_CLOSE = 1e-9


class _Scored(NamedTuple):
    call: Call
    number: float


def find_failing_rewards(visit: Visit) -> Iterator[Flaw]:
    """reward.failed."""
    for call in visit.calls:
        answer = call.answers[0]
        is_failure = not answer.is_success and answer.code != ResultInvalid.code
        if call.kind == "reward" and call.example is None and is_failure:
            yield Flaw(call.where, f"failed without arguments: {answer.error}")


def find_invalid_rewards(visit: Visit) -> Iterator[Flaw]:
    """reward.invalid."""
    for call in visit.calls:
        answer = call.answers[0]
        if call.kind != "reward":
            continue
        if answer.code == ResultInvalid.code:
            # The server's own hint is for any result, and would allow None.
            yield Flaw(call.where, f"gave no number: {answer.error}")
        elif answer.is_success and number_in(answer.result) is None:
            yield Flaw(call.where, f"gave {shown(answer.result)}, which holds no number")


def find_out_of_range(visit: Visit) -> Iterator[Flaw]:
    """reward.out_of_range."""
    if (bounds := visit.declared.reward.range) is None:
        return
    for call, number in _scores(visit):
        if not _fits(number, bounds):
            yield Flaw(call.where, f"gave {number:g}, and validation.reward.range is [{bounds[0]:g}, {bounds[1]:g}]")


def find_large_rewards(visit: Visit) -> Iterator[Flaw]:
    """reward.large."""
    if visit.declared.reward.range is None:
        for call, number in _scores(visit):
            if not _fits(number, _USUAL):
                yield Flaw(call.where, f"gave {number:g}; trainers usually expect -1 to 1")


def find_unearned_rewards(visit: Visit) -> Iterator[Flaw]:
    """reward.unearned: what is called without an example is called on an untouched environment."""
    best = (visit.declared.reward.range or _USUAL)[1]
    for call, number in _scores(visit):
        if call.example is None and math.isclose(number, best):
            yield Flaw(call.where, f"gave its highest value, {number:g}, before anything was done")


def find_differences(visit: Visit) -> Iterator[Flaw]:
    """determinism.differs."""
    for call in visit.calls:
        if len(call.answers) == 2 and (difference := _difference(*call.answers)):
            yield Flaw(call.where, f"gave two results for the same call: {difference}")


def _difference(first: Answer, second: Answer) -> str | None:
    if not second.is_success:
        return f"the second failed: {second.error}"
    return first_difference(first.result, second.result, "result")


def find_failing_examples(visit: Visit) -> Iterator[Flaw]:
    """example.failed."""
    for call in visit.calls:
        answer = call.answers[0]
        is_told_elsewhere = call.kind == "reward" and answer.code == ResultInvalid.code
        if call.example is not None and not answer.is_success and not is_told_elsewhere:
            yield Flaw(call.where, f"failed: {answer.error}", answer.hint)


def find_unexpected(visit: Visit) -> Iterator[Flaw]:
    """example.unexpected."""
    for call in visit.calls:
        answer = call.answers[0]
        if answer.is_success and (difference := _unexpected(call.example, answer.result)):
            yield Flaw(call.where, f"did not give what was expected: {difference}")


def _unexpected(example: Example | RewardExample | None, result: object) -> str | None:
    if isinstance(example, Example):
        return first_difference(result, example.expect, "result", "instead of") if example.is_judged else None
    number = number_in(result)
    if example is None or example.bounds is None or number is None or _fits(number, example.bounds):
        return None
    low, high = example.bounds
    return f"{number:g} instead of {low:g}" if low == high else f"{number:g} instead of {low:g} to {high:g}"


def number_in(value: object) -> float | None:
    """The number that a reward's result stands for: itself, or the one in a dictionary that looks most like a score."""
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        named = [value[key] for key in _SCORES if key in value]
        plain = [member for member in value.values() if not isinstance(member, bool)]
        numbers = (number_in(member) for member in [*named, *plain, *value.values()] if isinstance(member, int | float))
        return next((number for number in numbers if number is not None), None)
    return None


def first_difference(one: object, other: object, path: str, between: str = "and") -> str | None:
    """`result['time']: 1 and 2` for the first place where two JSON values differ; None where they do not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                return f"{path}[{key!r}] is there only once"
            if difference := first_difference(one[key], other[key], f"{path}[{key!r}]", between):
                return difference
        return None
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for i, pair in pairs if (found := first_difference(*pair, f"{path}[{i}]", between))), None)
    return None if one == other else f"{path}: {shown(one)} {between} {shown(other)}"


def _scores(visit: Visit) -> Iterator[_Scored]:
    for call in visit.calls:
        number = number_in(call.answers[0].result) if call.kind == "reward" and call.answers[0].is_success else None
        if number is not None:
            yield _Scored(call, number)


def _fits(number: float, bounds: tuple[float, float]) -> bool:
    return bounds[0] - _CLOSE <= number <= bounds[1] + _CLOSE
