"""Durations as text."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv._util.duration import format_duration, parse_duration

YEARS_292 = (2**63 - 1) / 10**9


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("300ms", 0.3),
        ("90s", 90.0),
        ("30m", 1800.0),
        ("1h30m", 5400.0),
        ("24h", 86400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("2.s", 2.0),
        ("0s", 0.0),
        ("7ns", 7e-9),
        ("7us", 7e-6),
        ("7\u00b5s", 7e-6),
        ("7\u03bcs", 7e-6),
        ("1m1m", 120.0),
    ],
)
def test_a_go_duration_is_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "30", "0", "-5m", "+5m", "1d", "1 h", " 1h", "1h ", "1h\n", "h", ".s", "1h30", "٣s", "1H", "1e3s", "x" * 999],
)
def test_anything_else_is_refused_with_an_example_of_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r'is not a duration such as "90s", "30m" or "1h30m"'):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("30", "did you mean '30s' or '30m'?"),
        ("2d", "did you mean '48h'?"),
        ("1 h 30 m", "did you mean '1h30m'?"),
        ("5min", "did you mean '5m'?"),
        ("10 Seconds", "did you mean '10s'?"),
        ("-5m", "did you mean '5m'?"),
    ],
)
def test_a_common_slip_is_answered_with_what_was_probably_meant(text: str, guess: str) -> None:
    with pytest.raises(ValueError, match=f"; {guess.replace('?', '[?]')}$"):
        parse_duration(text)


def test_a_duration_no_go_program_could_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="below 292 years"):
        parse_duration("2562048h")


def test_a_long_wrong_text_is_not_repeated_in_full() -> None:
    with pytest.raises(ValueError, match="is not a duration") as caught:
        parse_duration("z" * 10_000)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.3, "300ms"),
        (0.0015, "1.5ms"),
        (1e-9, "1ns"),
        (1.5, "1.5s"),
        (90, "1m30s"),
        (5400, "1h30m"),
        (86400, "24h"),
        (3600.5, "1h0.5s"),
        (1e-10, "0s"),
    ],
)
def test_seconds_are_written_in_the_shortest_go_spelling(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 1e300])
def test_seconds_that_no_duration_could_give_back_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 292 years"):
        format_duration(seconds)


@given(st.integers(min_value=0, max_value=2**53))
def test_a_whole_number_of_nanoseconds_survives_being_written_and_read(nanoseconds: int) -> None:
    assert parse_duration(format_duration(nanoseconds / 10**9)) == nanoseconds / 10**9


@given(st.floats(min_value=0, max_value=YEARS_292 / 2))
def test_any_number_of_seconds_survives_to_the_nanosecond(seconds: float) -> None:
    assert abs(parse_duration(format_duration(seconds)) - seconds) <= 1e-9


@given(st.text() | st.from_regex(r"[0-9.hmsnu -]{1,12}", fullmatch=True))
def test_every_text_is_either_a_length_of_time_or_a_value_error(text: str) -> None:
    read = _read(text)
    assert "is not a duration" in str(read) if isinstance(read, ValueError) else 0 <= read <= YEARS_292


def _read(text: str) -> float | ValueError:
    try:
        return parse_duration(text)
    except ValueError as error:
        return error
