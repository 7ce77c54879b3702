"""What is wrong with a config.json, as its author reads it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from aenv.errors import ConfigError
from aenv.model.spec import EnvSpec

LEAST: dict[str, Any] = {"name": "my-env", "version": "1.0.0"}


def refusal(data: object, *, where: str = "config.json") -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        EnvSpec.from_dict(data, where=where)
    return caught.value


def text_refusal(text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        EnvSpec.parse(text)
    return caught.value


def test_one_problem_is_one_sentence_with_a_hint() -> None:
    error = refusal(LEAST | {"deployConfig": {"cpu": "1 core"}})
    assert error.message == (
        'config.json: deployConfig.cpu is \'1 core\', which is not a CPU quantity such as "1", "500m" or "2"'
    )
    assert error.hint == "did you mean '1'?"


def test_several_problems_are_counted_and_have_a_line_each() -> None:
    error = refusal(
        {"name": "a", "deployConfig": {"sandbox": {"mcpRuntime": "cor"}, "service": {"port": 0}}}, where="body"
    )
    assert error.message.splitlines() == [
        "body: 3 problems",
        "  version is missing",
        "  deployConfig.service.port is 0, which is not a port from 1 to 65535",
        "  deployConfig.sandbox.mcpRuntime is 'cor', which is not one of core, official (did you mean 'core'?)",
    ]


def test_programs_find_every_problem_in_the_details() -> None:
    error = refusal(LEAST | {"status": "verifiedd"})
    assert error.details["problems"] == [
        {
            "path": "status",
            "value": "verifiedd",
            "message": "is 'verifiedd', which is not one of Init, Pending, Creating, Created, Testing, Verified, "
            "Ready, Released, Failed",
            "hint": "did you mean 'Verified'?",
        }
    ]
    assert json.loads(json.dumps(error.to_wire()))["code"] == "config.invalid"


@pytest.mark.parametrize(
    ("members", "sentence", "hint"),
    [
        ({"version": 1.0}, "version is 1.0, which is not a version such as", "did you mean '1.0.0'?"),
        ({"version": None}, "version is null, which is not a version such as", 'write three numbers, such as "1.0.0"'),
        ({"name": 5}, "name is 5, which is not an environment name", 'choose a name such as "my-env"'),
        ({"description": 5}, "description is 5, which is not text", 'write it in quotes: "5"'),
        ({"tags": "linux"}, "tags is 'linux', which is not a list", 'write it as a list: ["linux"]'),
        ({"tags": ["a", True]}, "tags[1] is true, which is not text", 'write it in quotes: "true"'),
        ({"artifacts": [5]}, "artifacts[0] is 5, which is not an object", None),
        ({"artifacts": [{"type": "image"}]}, "artifacts[0].content is missing", None),
        ({"buildConfig": []}, "buildConfig is [], which is not an object", None),
        ({"deployConfig": None}, "deployConfig is null, which is not an object", None),
    ],
)
def test_a_wrong_member_is_named_with_its_value(members: dict[str, object], sentence: str, hint: str | None) -> None:
    error = refusal(LEAST | members)
    assert error.message.startswith(f"config.json: {sentence}")
    assert error.hint == hint


@pytest.mark.parametrize(
    ("members", "sentence", "hint"),
    [
        ({"memory": "2gb"}, "memory is '2gb', which is not an amount of bytes", "did you mean '2G' or '2Gi'?"),
        ({"memory": "2"}, "memory is '2', which is not at least \"1Mi\"", "did you mean '2Mi' or '2Gi'?"),
        ({"memory": 1.5}, "memory is 1.5, which is not an amount of bytes", None),
        ({"cpu": True}, "cpu is true, which is not a CPU quantity", None),
        ({"cpu": []}, "cpu is [], which is not a CPU quantity", None),
        ({"os": "windows"}, "os is 'windows', which is not one of linux", None),
        ({"ttl": 30}, "ttl is 30, which is not a duration", None),
        ({"ttl": "30"}, "ttl is '30', which is not a duration", "did you mean '30s' or '30m'?"),
        ({"ttl": "0s"}, "ttl is '0s', which is not longer than zero", None),
        ({"network": "Public"}, "network is 'Public', which is not one of public,", "did you mean 'public'?"),
        ({"network": 1}, "network is 1, which is not one of public, no-network, allowlist", None),
        ({"preload": "true"}, "preload is 'true', which is not true or false", "write it without quotes: true"),
        ({"sandbox": {"mcpRuntime": "officially"}}, "sandbox.mcpRuntime is 'officially'", "did you mean 'official'?"),
        ({"sandbox": {"toolTimeout": "1d"}}, "sandbox.toolTimeout is '1d'", "did you mean '24h'?"),
        (
            {"service": {"port": "8081"}},
            "service.port is '8081', which is not a whole",
            "write it without quotes: 8081",
        ),
        ({"service": {"port": 70000}}, "service.port is 70000, which is not a port from 1 to 65535", None),
        ({"service": {"replicas": 0}}, "service.replicas is 0, which is not at least 1", None),
        ({"service": {"enableStorage": 1}}, "service.enableStorage is 1, which is not true or false", None),
    ],
)
def test_a_wrong_deployment_is_named_with_its_value(
    members: dict[str, object], sentence: str, hint: str | None
) -> None:
    error = refusal(LEAST | {"deployConfig": members})
    assert error.message.startswith(f"config.json: deployConfig.{sentence}")
    assert error.hint == hint


@pytest.mark.parametrize(("value", "quoted"), [(8080, '"8080"'), (True, '"true"'), (0.5, '"0.5"')])
def test_a_variable_that_is_no_text_is_to_be_quoted(value: object, quoted: str) -> None:
    error = refusal(LEAST | {"deployConfig": {"environmentVariables": {"SETTING": value}}})
    assert error.message.endswith("environmentVariables.SETTING is " + quoted.strip('"') + ", which is not text")
    assert error.hint == f"write it in quotes: {quoted}"


@pytest.mark.parametrize("variables", [{"A=B": "x"}, {"": "x"}, {"A\0": "x"}, {"A": "x\0"}])
def test_a_variable_no_process_could_be_given_is_refused(variables: dict[str, str]) -> None:
    error = refusal(LEAST | {"deployConfig": {"environmentVariables": variables}})
    assert "cannot be handed to a process" in error.message


def test_storage_needs_a_size_and_a_single_writer() -> None:
    error = refusal(LEAST | {"deployConfig": {"service": {"enableStorage": True, "replicas": 2}}})
    assert [line.split(",")[0] for line in error.message.splitlines()] == [
        "config.json: 2 problems",
        "  deployConfig.service.replicas is 2",
        "  deployConfig.service.storageSize is missing: it is required when enableStorage is true",
    ]


def test_storage_with_a_size_and_a_single_writer_is_fine() -> None:
    service = {"enableStorage": True, "storageSize": "20Gi"}
    assert EnvSpec.from_dict(LEAST | {"deployConfig": {"service": service}}).deploy.service.enable_storage


def test_several_replicas_are_fine_without_storage() -> None:
    assert EnvSpec.from_dict(LEAST | {"deployConfig": {"service": {"replicas": 3}}}).deploy.service.replicas == 3


def test_a_request_above_its_limit_is_refused() -> None:
    error = refusal(LEAST | {"deployConfig": {"cpuRequest": "2"}})
    assert error.message == (
        "config.json: deployConfig.cpuRequest comes to 2.0, more than cpuLimit, which comes to 1.0"
    )
    assert error.hint == "where one of the two is not written, cpu stands for it"


def test_a_long_wrong_value_is_not_repeated_in_full() -> None:
    assert len(refusal(LEAST | {"tags": {"a": "x" * 10_000}}).message) < 200


def test_no_word_of_the_validation_library_reaches_the_author() -> None:
    wrong = {"name": [], "tags": [{}], "deployConfig": {"cpu": {}, "service": {"port": 1.5}, "environmentVariables": 3}}
    message = refusal(wrong).message
    assert not [
        word for word in ("Input", "valid", "dictionary", "pydantic", "instance", "Value error") if word in message
    ]


@pytest.mark.parametrize(("text", "shown"), [("[1, 2]", "[1, 2]"), ('"x"', "'x'"), ("null", "null"), ("3", "3")])
def test_the_top_level_must_be_an_object(text: str, shown: str) -> None:
    assert text_refusal(text).message == f"config.json: the top level is {shown}, which is not an object"


def test_a_syntax_error_shows_line_column_and_the_line() -> None:
    error = text_refusal('{\n  "name": "my-env"\n  "version": "1.0.0"\n}\n')
    assert error.message.splitlines() == [
        "config.json: line 3, column 3: a comma or a closing bracket is expected here",
        '    "version": "1.0.0"',
        "    ^",
    ]
    assert (error.details["line"], error.details["column"]) == (3, 3)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"name": "a",}', "remove the comma before the closing bracket"),
        ("{'name': 1}", "JSON takes double quotes"),
        ('{\n// why\n"name": "a"}', "JSON has no comments"),
        ('{\n# why\n"name": "a"}', "JSON has no comments"),
    ],
)
def test_a_common_slip_of_syntax_has_a_hint(text: str, hint: str) -> None:
    assert text_refusal(text).hint == hint


def test_a_text_that_stops_is_wrong_where_it_stops() -> None:
    assert text_refusal('{"name":\n\n\n').message.startswith("config.json: line 1, column 9: the text ends too early")


def test_a_very_long_line_is_cut_around_the_error() -> None:
    error = text_refusal('{"a": "' + "x" * 5000 + '" "b": 1}')
    _, excerpt, caret = error.message.splitlines()
    assert len(excerpt) < 80
    assert excerpt[caret.index("^") :] == '"b": 1}'


@pytest.mark.parametrize("text", ["", "  \n", b""])
def test_an_empty_file_is_called_empty(text: str | bytes) -> None:
    assert text_refusal(text).message == "config.json is empty"


def test_text_in_another_encoding_is_refused() -> None:
    assert text_refusal('{"name": "ü"}'.encode("latin-1")).hint == "save it as UTF-8"


def test_a_key_written_twice_is_refused_even_if_both_values_are_right() -> None:
    error = text_refusal('{"name": "a", "version": "1.0.0", "version": "1.0.0"}')
    assert error.message == "config.json: version is written twice"


def test_a_key_written_twice_is_refused_at_every_depth_along_with_all_else() -> None:
    error = text_refusal('{"name": "a", "name": "b", "version": "1", "deployConfig": {"cpu": "1", "cpu": "2"}}')
    assert error.message.splitlines()[1:3] == [
        "  name is written twice (keep one of the two)",
        "  deployConfig.cpu is written twice (keep one of the two)",
    ]
    assert "version is '1'" in error.message


@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("NaN", "is NaN, which JSON does not have"),
        ("-Infinity", "is a number too large to keep"),
        ("1e999", "is a number too large to keep"),
        ("1" * 5000, "is a number too large to keep"),
    ],
)
def test_a_number_that_could_not_be_written_back_is_refused(number: str, message: str) -> None:
    assert text_refusal(f'{{"x": [{number}]}}').message == f"config.json: x[0] {message}"


def test_half_a_character_is_refused_in_texts_and_keys() -> None:
    message = text_refusal(r'{"a": "\ud800", "\udfff": 1}').message
    assert r"a is '\ud800', which has half a character" in message
    assert r"the top level has the key '\udfff', which is no text" in message


@pytest.mark.parametrize("text", ['{"x":' + "[" * 70 + "]" * 70 + "}", "[" * 100_000])
def test_endless_nesting_is_refused(text: str) -> None:
    assert "is nested more than 64 deep" in text_refusal(text).message


@pytest.mark.parametrize("value", [{1, 2}, math.nan, b"x", {1: 2}, object(), 10**400])
def test_a_python_value_that_json_does_not_have_is_refused(value: object) -> None:
    assert refusal(LEAST | {"x": value}).message.startswith("config.json: x ")
