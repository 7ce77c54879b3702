"""Kubernetes quantities."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv._util.quantity import kubernetes_cpu, parse_bytes, parse_cpu, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        ("1.5", "1.5"),
        (".5", "0.5"),
        ("2.", "2"),
        ("2Gi", "2147483648"),
        ("100Ki", "102400"),
        ("1Ei", "1152921504606846976"),
        ("2G", "2000000000"),
        ("3k", "3000"),
        ("1E", "1000000000000000000"),
        ("1E3", "1000"),
        ("1e3", "1000"),
        ("1e-3", "0.001"),
        ("128974848", "128974848"),
        ("5u", "0.000005"),
        ("5n", "0.000000005"),
    ],
)
def test_a_kubernetes_quantity_is_read_exactly(text: str, amount: str) -> None:
    assert parse_quantity(text) == Decimal(amount)


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "nan", "inf", "1C", "2K", "2gb", "Gi", " 2", "2 Gi", "2\n", "1e", "٣"]
)
def test_what_kubernetes_would_not_take_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match='is not a quantity such as "2", "500m", '):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "1e19", "8Ei", "9" * 50])
def test_more_than_kubernetes_can_count_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"at most 2\^63-1"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "cores"), [("500m", 0.5), ("1", 1.0), ("1C", 1.0), ("0.5C", 0.5), (2, 2.0), (0.25, 0.25), ("1m", 0.001)]
)
def test_cpu_is_read_as_cores_in_both_spellings(text: str | float, cores: float) -> None:
    assert parse_cpu(text) == cores


@pytest.mark.parametrize(
    "text", ["", "-1", "1 core", "1c", "500mC", "2Gi", "2G", "nan", True, math.nan, math.inf, "1CC"]
)
def test_what_is_no_share_of_cpu_is_refused_with_examples(text: str | float) -> None:
    with pytest.raises(ValueError, match='is not a CPU quantity such as "1", "500m" or "2"'):
        parse_cpu(text)


@pytest.mark.parametrize("text", ["0", 0, "0m", "0C", "0.0009", "0.5m"])
def test_no_cpu_at_all_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match='is not a CPU quantity of at least "1m"'):
        parse_cpu(text)


@pytest.mark.parametrize(
    ("text", "canonical"), [("1C", "1"), ("0.5C", "500m"), ("1.5", "1500m"), (2, "2"), ("1000m", "1"), ("0.0015", "2m")]
)
def test_cpu_is_written_as_kubernetes_writes_it(text: str | float, canonical: str) -> None:
    assert kubernetes_cpu(text) == canonical


@pytest.mark.parametrize(
    ("text", "amount"),
    [("2Gi", 2 * 2**30), ("2G", 2 * 10**9), ("512M", 512 * 10**6), ("0.1Gi", 107374183), (4096, 4096), ("0", 0)],
)
def test_bytes_are_read_with_decimal_and_binary_suffixes_and_rounded_up(text: str | int, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("2gb", "did you mean '2G' or '2Gi'?"),
        ("2GiB", "did you mean '2G' or '2Gi'?"),
        ("500m", "did you mean '500M' or '500Mi'?"),
        ("64K", "did you mean '64k' or '64Ki'?"),
        ("2 Gi", "did you mean '2Gi'?"),
    ],
)
def test_a_mistaken_unit_of_memory_is_answered_with_the_units_that_exist(text: str, guess: str) -> None:
    with pytest.raises(ValueError, match=f"; {guess.replace('?', '[?]')}$"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "guess"), [("1 core", "'1'"), ("2vCPU", "'2'"), ("500M", "'500m'"), ("1c", "'1'")])
def test_a_mistaken_unit_of_cpu_is_answered_with_the_plain_number(text: str, guess: str) -> None:
    with pytest.raises(ValueError, match=f"; did you mean {guess}[?]$"):
        parse_cpu(text)


@pytest.mark.parametrize("text", ["", "lots", "-2Gi", "1C", "2Gii", True])
def test_what_is_no_amount_of_bytes_is_refused_with_examples(text: str | int) -> None:
    with pytest.raises(ValueError, match='is not an amount of bytes such as "2Gi", "512Mi" or "2G"'):
        parse_bytes(text)


@given(st.integers(min_value=1, max_value=10**9))
def test_the_canonical_spelling_of_cpu_is_the_same_share(thousandths: int) -> None:
    assert parse_cpu(kubernetes_cpu(f"{thousandths}m")) == parse_cpu(f"{thousandths}m") == thousandths / 1000


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_plain_bytes_are_read_as_they_are(amount: int) -> None:
    assert parse_bytes(str(amount)) == amount


@pytest.mark.parametrize("parse", [parse_quantity, parse_cpu, parse_bytes])
@given(text=st.text() | st.from_regex(r"[0-9.eEmkKMGiC+-]{1,14}", fullmatch=True))
def test_every_text_is_either_an_amount_or_a_value_error(parse: Callable[[str], Decimal | float], text: str) -> None:
    read = _read(parse, text)
    assert " is not a" in str(read) if isinstance(read, ValueError) else 0 <= read < 2**63


def _read(parse: Callable[[str], Decimal | float], text: str) -> Decimal | float | ValueError:
    try:
        return parse(text)
    except ValueError as error:
        return error
