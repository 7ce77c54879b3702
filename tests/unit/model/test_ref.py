"""Names and versions of environments."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.errors import RefError
from aenv.model.ref import NAME_PATTERN, EnvRef, Version, newest, validate_name

names = st.from_regex(NAME_PATTERN.replace("$", r"\Z"), fullmatch=True)
numbers = st.integers(min_value=0, max_value=12)
identifiers = st.sampled_from(["0", "1", "2", "10", "a", "rc", "alpha", "beta", "-", "0a"])
prereleases = st.lists(identifiers, max_size=3).map(".".join)
versions = st.builds(Version, numbers, numbers, numbers, prereleases, st.sampled_from(["", "b1", "b2"]))


@pytest.mark.parametrize("text", ["0.0.0", "1.2.3", "1.0.0-rc.1", "1.0.0-0a.b-c", "1.0.0+20240101", "1.0.0-a+b.01"])
def test_a_semantic_version_prints_as_it_was_read(text: str) -> None:
    assert str(Version.parse(text)) == text


def test_versions_are_ordered_as_semver_2_0_0_says() -> None:
    # The example of https://semver.org/#spec-item-11, and some releases above it.
    prereleases = ["alpha", "alpha.1", "alpha.beta", "beta", "beta.2", "beta.11", "rc.1"]
    written = [*(f"1.0.0-{prerelease}" for prerelease in prereleases), "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0"]
    ordered = [Version.parse(text) for text in written]
    assert all(lower < higher for lower, higher in itertools.pairwise(ordered))


def test_build_metadata_makes_no_other_version() -> None:
    first, second = Version.parse("1.0.0+a"), Version.parse("1.0.0+b")
    assert first == second
    assert hash(first) == hash(second)
    assert not first < second
    assert not first > second


def test_a_version_is_not_ordered_against_text() -> None:
    with pytest.raises(TypeError, match="not supported between"):
        sorted([Version.parse("1.0.0"), "1.0.0"])  # type: ignore[type-var]  # the mistake is the point


@given(versions, versions, versions)
def test_the_order_of_versions_is_total(a: Version, b: Version, c: Version) -> None:
    assert (a < b) + (a == b) + (a > b) == 1
    assert (a <= b) == (not b < a)
    if a <= b <= c:
        assert a <= c
    if a == b:
        assert hash(a) == hash(b)


@given(versions)
def test_every_version_survives_being_written_and_read(version: Version) -> None:
    again = Version.parse(str(version))
    assert again == version
    assert again.build == version.build


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1.0", "did you mean '1.0.0'?"),
        ("v1", "did you mean '1.0.0'?"),
        ("v1.2.3-rc.1", "did you mean '1.2.3-rc.1'?"),
        ("2024.01.05", "did you mean '2024.1.5'?"),
        ("1.0.0-01", "did you mean '1.0.0'?"),
        ("1.0.0\n", "did you mean '1.0.0'?"),
        ("newest", 'write three numbers, such as "1.0.0"'),
        ("1.0.0-" + "a" * 200, "did you mean '1.0.0-"),
    ],
)
def test_what_is_no_semantic_version_is_refused_with_the_nearest_that_is(text: str, hint: str) -> None:
    with pytest.raises(RefError, match="is not a version such as") as caught:
        Version.parse(text)
    assert (caught.value.hint or "").startswith(hint)


def test_a_release_is_newer_than_any_prerelease() -> None:
    published = [Version.parse(text) for text in ("1.0.0", "2.0.0-rc.1", "1.4.0", "1.3.9")]
    assert str(newest(published)) == "1.4.0"


def test_prereleases_count_when_nothing_was_released() -> None:
    assert str(newest([Version.parse("2.0.0-rc.2"), Version.parse("2.0.0-rc.10")])) == "2.0.0-rc.10"


def test_there_is_no_newest_of_nothing() -> None:
    with pytest.raises(ValueError, match="no version to choose from"):
        newest([])


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("my-env@1.0.0", "my-env", "1.0.0"),
        ("my-env", "my-env", None),
        ("my-env@latest", "my-env", None),
        ("a", "a", None),
    ],
)
def test_a_reference_is_a_name_and_perhaps_a_version(text: str, name: str, version: str | None) -> None:
    assert EnvRef.parse(text) == EnvRef(name, version)


def test_only_a_reference_with_a_version_is_exact() -> None:
    assert EnvRef.parse("my-env@1.0.0").is_exact
    assert not EnvRef.parse("my-env@latest").is_exact


@given(names, st.none() | versions.map(str))
def test_every_reference_survives_being_written_and_read(name: str, version: str | None) -> None:
    assert EnvRef.parse(str(EnvRef(name, version))) == EnvRef(name, version)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "my-env@",
            "'my-env@' has no version after the @",
            "write 'my-env' for the newest version, or add one such as \"1.0.0\"",
        ),
        ("@1.0.0", "'@1.0.0' has no name before the @", 'write name@version, such as "my-env@1.0.0"'),
        ("a@b@c", "'a@b@c' has more than one @", 'write name@version, such as "my-env@1.0.0"'),
        ("a@1.0", '\'1.0\' is not a version such as "1.0.0" or "1.2.0-rc.1"', "did you mean '1.0.0'?"),
    ],
)
def test_a_malformed_reference_says_which_part_is_wrong(text: str, message: str, hint: str) -> None:
    with pytest.raises(RefError) as caught:
        EnvRef.parse(text)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MyEnv", "did you mean 'myenv'?"),
        ("my_env", "did you mean 'my-env'?"),
        (" my env ", "did you mean 'my-env'?"),
        ("-my-env-", "did you mean 'my-env'?"),
        ("übung", "did you mean 'ubung'?"),
        ("a" * 64, f"did you mean '{'a' * 63}'?"),
        ("my-env\n", "did you mean 'my-env'?"),
        ("", 'choose a name such as "my-env"'),
        ("環境", 'choose a name such as "my-env"'),
    ],
)
def test_what_is_no_dns_label_is_refused_with_the_nearest_that_is(name: str, hint: str) -> None:
    with pytest.raises(RefError, match="is not an environment name such as") as caught:
        validate_name(name)
    assert caught.value.hint == hint


def test_the_longest_label_dns_allows_is_a_name() -> None:
    assert validate_name("a" * 63) == "a" * 63


def test_a_reference_cannot_be_built_around_the_rules() -> None:
    with pytest.raises(RefError, match="is not an environment name"):
        EnvRef("My_Env")
    with pytest.raises(RefError, match="is not a version") as caught:
        EnvRef("my-env", "latest")
    assert caught.value.hint == "leave the version out to mean the newest"


@given(st.text() | st.from_regex(r"[a-zA-Z_-]{1,5}@?[v0-9.+a@-]{0,8}", fullmatch=True))
def test_every_text_is_either_a_reference_or_a_ref_error_with_a_hint(text: str) -> None:
    read = _read(text)
    assert read.hint if isinstance(read, RefError) else text in {str(read), f"{read.name}@latest"}


def _read(text: str) -> EnvRef | RefError:
    try:
        return EnvRef.parse(text)
    except RefError as error:
        return error
