"""What becomes of values that are not JSON."""

from __future__ import annotations

import json
from collections import OrderedDict, UserDict
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.errors import ResultInvalid
from aenv.sandbox.encode import to_json, to_result


class Pair(NamedTuple):
    left: int
    right: str


class Scalar:
    """As numpy's and torch's scalars behave."""

    def __init__(self, value: object) -> None:
        self._value = value

    def item(self) -> object:
        return self._value


class Array:
    """As numpy's and torch's arrays behave."""

    def tolist(self) -> list[Any]:
        return [[1, 2], [3.5, float("inf")]]


class Text(str):
    """A kind of text."""


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_is_left_as_it_is(value: Any) -> None:
    result = to_result(value)
    assert result.value == value
    assert json.loads(result.json) == value


def test_kinds_of_mappings_sequences_and_scalars_become_the_plain_ones() -> None:
    value = [Pair(1, "a"), OrderedDict(b=2), UserDict(c=3), Text("t"), Scalar(4), frozenset({"z", 1})]
    plain = to_json(value)
    assert plain[:5] == [{"left": 1, "right": "a"}, {"b": 2}, {"c": 3}, "t", 4]
    assert sorted(map(str, plain[5])) == ["1", "z"]
    assert type(plain[3]) is str


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, {"b": float("-inf")}]}, "result['a'][1]['b'] is -inf"),
        (Array(), "result[1][1] is inf"),
        (Scalar(float("nan")), "result is nan"),
        ([b"x"], "result[0] is of type bytes"),
        ({"f": len}, "result['f'] is of type builtin_function_or_method"),
        (Scalar, "result is of type type"),
        ({True: 1}, "has the key True of type bool"),
        ({None: 1}, "has the key None"),
        ({1: "a", "1": "b"}, "two keys that are the same"),
        ([Decimal("NaN")], "result[0] is nan"),
        ("half \ud800", "not Unicode"),
    ],
)
def test_the_place_of_what_cannot_be_carried_is_told(value: Any, place: str) -> None:
    with pytest.raises(ResultInvalid) as caught:
        to_result(value)
    assert place in caught.value.message
    assert caught.value.hint


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ResultInvalid, match="nested more than"):
        to_result(loop)
