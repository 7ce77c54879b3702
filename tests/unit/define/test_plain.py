"""The quick check and Pydantic agree: on the schema, on every value that the quick one accepts."""

# ruff: noqa: UP006, UP007, UP035, UP045 - the older spellings, which authors still write, are under test

from __future__ import annotations

from functools import cache
from typing import Any, Dict, List, Literal, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aenv.define.models import ModelArguments, ModelResult
from aenv.define.plain import EMPTY, UNSURE, Parameter, kind_of, plain_arguments
from aenv.errors import ArgumentsInvalid

ANNOTATIONS: list[Any] = [
    str, int, float, bool, None, Any, list, dict, list[str], list[float], list[list[int]], dict[str, Any],
    dict[str, float], dict[str, list[bool]], Optional[str], int | None, int | float, float | str, list[int] | str,
    bool | int, List[int], Dict[str, int], Union[int, str, None], Literal["a", "b"], Literal["a"], Literal[1, 2],
    Optional[Literal["x", "y"]], list[Literal["a", "b"]], dict[str, float | None],
]  # fmt: skip

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.sampled_from(["a", "b", "x", "1", "true", 1, 2, 0, 1.0, 2**53, 2**60, -0.0]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def parameter(annotation: Any, default: Any = EMPTY) -> Parameter:
    return Parameter("a", annotation, default, None, positional_only=False)


@cache
def model(annotation: Any) -> ModelArguments:
    return ModelArguments("tool 't'", [parameter(annotation)], takes_extra=False)


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type, all the way down: 1, 1.0 and True are three things."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_both_publish_the_same_schema(annotation: Any) -> None:
    for default in (EMPTY, None, "a", [1]):
        described = plain_arguments([parameter(annotation, default)])
        assert described is not None
        full = ModelArguments("tool 't'", [parameter(annotation, default)], takes_extra=False)
        assert described.schema() == full.schema()
    kind = kind_of(annotation)
    assert kind is not None
    assert kind.schema == ModelResult("tool 't'", annotation).schema()


@settings(max_examples=100, deadline=None)
@given(value=values)
@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_what_the_quick_check_accepts_pydantic_accepts_as_the_same_value(annotation: Any, value: Any) -> None:
    described = plain_arguments([parameter(annotation)])
    assert described is not None
    quick = described.check({"a": value})
    if quick is None:
        return
    assert same(quick, model(annotation).check({"a": value}))


@settings(max_examples=100, deadline=None)
@given(value=values)
@pytest.mark.parametrize("annotation", [str, int, float, bool, list[float], dict[str, int], Optional[int]], ids=str)
def test_a_result_that_the_quick_check_accepts_pydantic_accepts(annotation: Any, value: Any) -> None:
    kind = kind_of(annotation)
    assert kind is not None
    if kind.accept(value) is not UNSURE:
        ModelResult("tool 't'", annotation).check(value)
        assert kind.schema["type" if "type" in kind.schema else "anyOf"]


def test_missing_unknown_and_wrong_arguments_are_left_to_pydantic() -> None:
    described = plain_arguments([parameter(int)])
    assert described is not None
    for arguments in ({}, {"a": "x"}, {"a": 1, "b": 2}):
        assert described.check(arguments) is None
        with pytest.raises(ArgumentsInvalid):
            ModelArguments("tool 't'", [parameter(int)], takes_extra=False).check(arguments)


def test_what_is_not_plain_is_not_taken_for_it() -> None:
    class Own: ...

    for annotation in (Own, set[int], tuple[int, str], bytes, dict[int, str], Literal["a", 1], Optional[Own]):
        assert kind_of(annotation) is None
    assert plain_arguments([parameter(float, float("nan"))]) is None
    assert plain_arguments([parameter(Any, object())]) is None
