"""config.json, read and written back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from aenv.errors import ConfigError
from aenv.model.ref import EnvRef
from aenv.model.sections import Artifact, Bounds
from aenv.model.spec import EnvSpec

LEAST: dict[str, Any] = {"name": "my-env", "version": "1.0.0"}

# Everything that `json.loads` can give, down to a few levels.
keys = st.text() | st.sampled_from(
    ["name", "deployConfig", "service", "__class__", "model_config", "_written", "deploy"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


def spec(**members: object) -> EnvSpec:
    return EnvSpec.from_dict(LEAST | members)


def deploy(**members: object) -> EnvSpec:
    return spec(deployConfig=members)


def test_a_name_and_a_version_are_enough() -> None:
    read = EnvSpec.parse('{"name": "my-env", "version": "1.0.0"}')
    assert read.ref == EnvRef("my-env", "1.0.0")


def test_what_is_not_written_has_the_documented_defaults() -> None:
    read = spec()
    assert (read.status, read.description, read.tags, read.artifacts, read.code_url) == ("Ready", "", (), (), "")
    assert (read.build.dockerfile, read.build.context, read.build.build_policy) == ("./Dockerfile", ".", "IfNotPresent")
    assert (read.deploy.cpu, read.deploy.memory, read.deploy.ephemeral_storage) == ("1", "2Gi", "5Gi")
    assert (read.deploy.os, read.deploy.network, read.deploy.pod_template) == ("linux", "public", "singleContainer")
    service = read.deploy.service
    assert (service.replicas, service.port, service.enable_storage) == (1, 8081, False)
    assert (service.storage_size, service.mount_path) == ("10Gi", "/home/admin/data")
    assert read.deploy.sandbox.mcp_runtime == "core"


def test_every_key_of_the_file_has_its_attribute() -> None:
    read = EnvSpec.from_dict(
        {
            "$schema": "./config.schema.json",
            **LEAST,
            "description": "d",
            "tags": ["linux"],
            "status": "Released",
            "codeUrl": "oss://code",
            "artifacts": [{"id": "1", "type": "image", "content": "r/i:1"}],
            "buildConfig": {"dockerfile": "D", "context": "c", "image_name": "i", "image_tag": "t"},
            "testConfig": {"script": "pytest"},
            "deployConfig": {
                "imagePrefix": "p",
                "resource": "autoscale",
                "arcaTemplateId": "t",
                "network": "no-network",
            },
        }
    )
    assert read.artifacts == (Artifact(id="1", type="image", content="r/i:1"),)
    assert (read.schema_uri, read.tags, read.code_url) == ("./config.schema.json", ("linux",), "oss://code")
    assert (read.build.image_name, read.build.image_tag, read.test.script) == ("i", "t", "pytest")
    assert (read.deploy.image_prefix, read.deploy.resource, read.deploy.arca_template_id) == ("p", "autoscale", "t")
    assert read.deploy.network == "no-network"
    assert read.unknown_keys() == []


def test_sizes_are_given_as_cores_bytes_and_seconds() -> None:
    read = deploy(cpu="500m", memory="2G", ephemeralStorage="1Gi", ttl="2h", sandbox={"toolTimeout": "90s"}).deploy
    assert (read.cpu_cores(), read.memory_bytes(), read.storage_bytes()) == (0.5, 2 * 10**9, 2**30)
    assert (read.ttl_seconds(), read.sandbox.tool_timeout_seconds()) == (7200.0, 90.0)
    assert read.service.storage_size_bytes() == 10 * 2**30


def test_no_ttl_and_no_tool_timeout_are_none() -> None:
    read = spec().deploy
    assert (read.ttl_seconds(), read.sandbox.tool_timeout_seconds()) == (None, None)


@pytest.mark.parametrize(("cpu", "cores"), [("1C", 1.0), ("0.5C", 0.5), (2, 2.0), (0.5, 0.5)])
def test_older_spellings_and_plain_numbers_of_cpu_are_understood(cpu: object, cores: float) -> None:
    assert deploy(cpu=cpu).deploy.cpu_cores() == cores


def test_requests_and_limits_fall_back_to_the_simple_size() -> None:
    read = deploy(cpu="2", cpuRequest="1", memory="2Gi", memoryLimit="4Gi", ephemeralStorage="1Gi").deploy
    assert read.cpu_bounds() == Bounds(request=1.0, limit=2.0)
    assert read.memory_bounds() == Bounds(request=2 * 2**30, limit=4 * 2**30)
    assert read.storage_bounds() == Bounds(request=2**30, limit=2**30)


def test_storage_is_named_after_the_environment_unless_it_has_a_name() -> None:
    assert spec().storage_name == "my-env"
    assert deploy(service={"storageName": "shared"}).storage_name == "shared"


@pytest.mark.parametrize("written", ["ready", "READY", "Ready"])
def test_a_status_is_read_in_any_case_and_written_back_as_it_was(written: str) -> None:
    read = spec(status=written)
    assert read.status == "Ready"
    assert read.to_dict()["status"] == written


def test_a_spec_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError):
        spec().version = "2.0.0"


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert EnvSpec.parse(b'\xef\xbb\xbf{"name": "my-env", "version": "1.0.0"}').name == "my-env"


def test_the_file_is_written_back_as_it_was_read() -> None:
    text = """{
  "version": "1.0.0",
  "x-note": {
    "zeta": 1,
    "alpha": null
  },
  "name": "my-env",
  "description": "Übung 環境",
  "deployConfig": {
    "service": {
      "port": 9000,
      "x": []
    },
    "cpu": "1C"
  }
}
"""
    assert EnvSpec.parse(text).to_json() == text


def test_what_is_handed_out_is_no_way_into_the_spec() -> None:
    data = LEAST | {"x": {"deep": [1]}}
    read = EnvSpec.from_dict(data)
    read.to_dict()["x"] = "changed"
    data["x"]["deep"].append(2)
    assert read.to_dict() == LEAST | {"x": {"deep": [1]}}


def test_changes_leave_everything_else_in_place() -> None:
    before = EnvSpec.from_dict({"x": 1, **LEAST, "deployConfig": {"y": 2, "cpu": "1"}, "tags": ["a"]})
    artifact = {"type": "image", "content": "r/i:2"}
    after = before.with_changes({"version": "1.1.0", "artifacts": [artifact], "deployConfig": {"cpu": "2"}})
    assert (after.version, after.deploy.cpu, after.artifacts[0].content) == ("1.1.0", "2", "r/i:2")
    assert list(after.to_dict()) == ["x", "name", "version", "deployConfig", "tags", "artifacts"]
    assert after.to_dict()["deployConfig"] == {"y": 2, "cpu": "2"}
    assert before.version == "1.0.0"


def test_a_change_to_none_takes_the_member_away() -> None:
    assert spec(tags=["a"], x=1).with_changes({"x": None, "tags": None}).to_dict() == LEAST


def test_a_wrong_change_is_refused_like_a_wrong_file() -> None:
    with pytest.raises(ConfigError, match="new version: version is '2'"):
        spec().with_changes({"version": "2"}, where="new version")


def test_unknown_keys_are_named_with_the_key_that_was_probably_meant() -> None:
    read = EnvSpec.from_dict(
        {
            **LEAST,
            "cpu": "2",
            "owner": "me",
            "artifacts": [{"type": "image", "content": "i", "typ": 1}],
            "deployConfig": {"enviromentVariables": {}, "service": {"Port": 1, "odd key": 2}},
        }
    )
    assert {(note.path, note.hint) for note in read.unknown_keys()} == {
        ("cpu", "did you mean 'deployConfig.cpu'?"),
        ("owner", None),
        ("artifacts[0].typ", "did you mean 'type'?"),
        ("deployConfig.enviromentVariables", "did you mean 'environmentVariables'?"),
        ("deployConfig.service.Port", "did you mean 'port'?"),
        ("deployConfig.service['odd key']", None),
    }


@given(st.dictionaries(keys, values, max_size=4))
def test_unknown_keys_are_kept_whatever_they_hold(unknown: dict[str, object]) -> None:
    known = {"name", "deployConfig", "version", "tags", "status"}
    data = {f"x-{key}" if key in known else key: value for key, value in unknown.items()} | LEAST
    read = EnvSpec.from_dict(data)
    assert read.to_dict() == data
    assert list(read.to_dict()) == list(data)
    assert EnvSpec.parse(read.to_json()) == read
    assert json.loads(read.to_json()) == data


@given(values)
def test_any_json_is_either_a_spec_or_a_config_error(data: object) -> None:
    read = _read(json.dumps(data))
    assert read.details["problems"] if isinstance(read, ConfigError) else read.to_dict() == data


SECTIONS = ["tags", "status", "artifacts", "buildConfig", "testConfig", "deployConfig", "codeUrl", "description"]
FIELDS = ["cpu", "memory", "ttl", "service", "sandbox", "environmentVariables", "network", "preload", "cpuLimit", "os"]


@given(st.dictionaries(st.sampled_from(SECTIONS), values), st.dictionaries(st.sampled_from(FIELDS), values))
def test_any_value_under_a_known_key_is_either_taken_or_named(
    outer: dict[str, object], inner: dict[str, object]
) -> None:
    data = {**LEAST, **outer, **({"deployConfig": inner} if inner else {})}
    read = _read(json.dumps(data))
    if isinstance(read, ConfigError):
        assert all(str(problem["path"]).startswith(tuple(SECTIONS)) for problem in _problems(read))
    else:
        assert read.to_dict() == data


@given(st.text() | st.binary())
def test_any_text_is_either_a_spec_or_a_config_error(text: str | bytes) -> None:
    read = _read(text)
    assert read.message.startswith("config.json") if isinstance(read, ConfigError) else read.name


def _read(text: str | bytes) -> EnvSpec | ConfigError:
    try:
        return EnvSpec.parse(text)
    except ConfigError as error:
        return error


def _problems(error: ConfigError) -> list[dict[str, object]]:
    problems = error.details["problems"]
    assert isinstance(problems, list)
    return problems
