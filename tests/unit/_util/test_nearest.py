"""What a mistyped word was probably meant to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aenv._util.nearest import ask, did_you_mean, nearest

KEYS = ["environmentVariables", "ephemeralStorage", "cpu", "cpuLimit", "cpuRequest"]


def test_the_most_alike_choice_comes_first() -> None:
    assert nearest("enviromentVariables", KEYS)[0] == "environmentVariables"


def test_upper_and_lower_case_count_as_the_same() -> None:
    assert nearest("CPULIMIT", KEYS)[0] == "cpuLimit"


def test_choices_that_differ_only_in_case_are_all_offered() -> None:
    assert nearest("ready", ["Ready", "READY"]) == ["Ready", "READY"]


def test_no_more_choices_are_offered_than_asked_for() -> None:
    assert nearest("aab", ["aaa", "aac", "aad", "aae"], limit=2) == nearest("aab", ["aaa", "aac", "aad", "aae"])[:2]
    assert len(nearest("aab", ["aaa", "aac", "aad", "aae"], limit=2)) == 2


def test_a_word_like_none_of_the_choices_gets_no_question() -> None:
    assert did_you_mean("zebra", KEYS) == ""


def test_a_near_word_gets_a_question_naming_the_choice() -> None:
    assert did_you_mean("enviromentVariables", KEYS) == "did you mean 'environmentVariables'?"


def test_several_candidates_are_joined_as_a_sentence() -> None:
    assert ask(["a"]) == "did you mean 'a'?"
    assert ask(["a", "b"]) == "did you mean 'a' or 'b'?"
    assert ask(["a", "b", "c"]) == "did you mean 'a', 'b' or 'c'?"


@given(st.text(min_size=1), st.lists(st.text()))
def test_a_word_among_the_choices_is_always_offered(word: str, others: list[str]) -> None:
    assert word.casefold() in [choice.casefold() for choice in nearest(word, [*others, word])]
