"""The block `validation` of config.json: what an author promises about calls and rewards."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PlainValidator, ValidationError
from pydantic.alias_generators import to_camel

from aenv._util.nearest import did_you_mean
from aenv._util.unreadable import Unreadable
from aenv.model.problems import Problem, list_problems
from aenv.model.spec import EnvSpec

KEY = "validation"

Range = tuple[float, float]

_RANGE = "two numbers such as [0, 1], the lower first"


def _check_range(value: object) -> Range:
    match value:
        case [int() | float() as low, int() | float() as high] if _is_number(low) and _is_number(high) and low <= high:
            return low, high
    raise Unreadable(value, _RANGE)


def _check_expected_reward(value: object) -> float | Range:
    if isinstance(value, int | float) and _is_number(value):
        return value
    if isinstance(value, list):
        return _check_range(value)
    raise Unreadable(value, f"a number, or {_RANGE}")


def _is_number(value: float) -> bool:
    return not isinstance(value, bool) and math.isfinite(value)


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)


class Example(_Block):
    """A call of a tool that must succeed."""

    tool: str
    arguments: dict[str, JsonValue] = {}
    expect: JsonValue = None

    @property
    def is_judged(self) -> bool:
        """Whether a result is expected; null is one."""
        return "expect" in self.model_fields_set


class RewardExample(_Block):
    """A call of a reward that must succeed; of the default reward when none is named."""

    reward: str | None = None
    arguments: dict[str, JsonValue] = {}
    expect: Annotated[float | Range | None, PlainValidator(_check_expected_reward)] = None

    @property
    def bounds(self) -> Range | None:
        """The lowest and highest number that will do."""
        if isinstance(self.expect, tuple):
            return self.expect
        return None if self.expect is None else (self.expect, self.expect)


class RewardRules(_Block):
    """What holds for every reward."""

    range: Annotated[Range | None, PlainValidator(_check_range)] = None


class Declared(_Block):
    """All that the block may say."""

    reward: RewardRules = RewardRules()
    examples: tuple[Example, ...] = Field(default=(), strict=False)
    reward_examples: tuple[RewardExample, ...] = Field(default=(), strict=False)


class _Holder(BaseModel):
    # So that paths in problems begin with the block's own name.
    validation: Declared = Declared()


def read_declared(spec: EnvSpec) -> tuple[Declared, list[Problem]]:
    """What the block says; nothing, and the problems, where it has the wrong shape."""
    written = spec.to_dict()
    try:
        return _Holder.model_validate({KEY: written[KEY]} if KEY in written else {}).validation, []
    except ValidationError as error:
        return Declared(), [_say_unknown(problem) for problem in list_problems(error)]


def _say_unknown(problem: Problem) -> Problem:
    """A key that does not exist, told with the one that was probably meant."""
    key = problem.path.rpartition(".")[2]
    known = {name for block in (Declared, RewardRules, Example, RewardExample) for name in _keys(block)}
    if key in known or "[" in key or key == KEY:
        return problem
    return Problem(problem.path, problem.value, "is not a key of this block", did_you_mean(key, known) or None)


def _keys(block: type[_Block]) -> list[str]:
    return [field.alias or name for name, field in block.model_fields.items()]
