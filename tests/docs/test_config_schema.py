"""docs/reference/config.schema.json says what config.json takes."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from aenv.errors import ConfigError
from aenv.model.spec import EnvSpec, config_schema

ROOT = Path(__file__).parent.parent.parent
LEAST: dict[str, Any] = {"name": "my-env", "version": "1.0.0"}
SERVICE = {
    "replicas": 1,
    "port": 8081,
    "enableStorage": False,
    "storageName": "my-env",
    "storageSize": "10Gi",
    "mountPath": "/home/admin/data",
}
SIZES = {"cpu": "1", "memory": "2Gi", "os": "linux", "ephemeralStorage": "5Gi", "environmentVariables": {}}

# The shapes that the public documentation and the environments in the field use.
DOCUMENTED: dict[str, dict[str, Any]] = {
    "template": {
        **LEAST,
        "tags": ["linux"],
        "status": "Ready",
        "codeUrl": "",
        "artifacts": [],
        "buildConfig": {"dockerfile": "./Dockerfile", "context": "."},
        "testConfig": {"script": ""},
        "deployConfig": {**SIZES, "service": SERVICE},
    },
    "extended": {
        **LEAST,
        "deployConfig": {
            **SIZES,
            "imagePrefix": "registry.example.com/envs",
            "podTemplate": "Default",
            "environmentVariables": {"MODEL_PATH": "/models/llm"},
            "service": SERVICE,
        },
    },
    "built": {**LEAST, "artifacts": [{"id": "", "type": "image", "content": "registry.example.com/image:1.0.0"}]},
    "image": {**LEAST, "buildConfig": {"dockerfile": "./Dockerfile", "image_name": "hello", "image_tag": "latest"}},
    "dual container": {**LEAST, "deployConfig": {"podTemplate": "DualContainer", "imagePrefix": "r/envs"}},
    "ttl": {**LEAST, "deployConfig": {"ttl": "2h"}},
    "older sizes": {**LEAST, "deployConfig": {"cpu": "1C", "memory": "2G", "os": "linux"}},
    "ports of the docker engine": {**LEAST, "deployConfig": {"memory": "512M", "ports": ["8081:8081"]}},
    "requests and limits": {
        **LEAST,
        "deployConfig": {"cpuRequest": "1", "cpuLimit": "2", "memoryLimit": "4Gi", "cpu": 1},
    },
    "our own block": {**LEAST, "deployConfig": {"sandbox": {"toolTimeout": "90s", "mcpRuntime": "official"}}},
    "a schema for the editor": {"$schema": "./config.schema.json", **LEAST},
}

WRONG: dict[str, dict[str, Any]] = {
    "no version": {"name": "my-env"},
    "upper case": {**LEAST, "name": "MyEnv"},
    "short version": {**LEAST, "version": "1.0"},
    "tags": {**LEAST, "tags": "linux"},
    "status": {**LEAST, "status": "Readyy"},
    "artifact": {**LEAST, "artifacts": [{"type": "image"}]},
    "cpu": {**LEAST, "deployConfig": {"cpu": "1 core"}},
    "memory": {**LEAST, "deployConfig": {"memory": "2gb"}},
    "two bytes": {**LEAST, "deployConfig": {"memory": 2}},
    "ttl": {**LEAST, "deployConfig": {"ttl": "1d"}},
    "network": {**LEAST, "deployConfig": {"network": "none"}},
    "variable": {**LEAST, "deployConfig": {"environmentVariables": {"PORT": 8080}}},
    "port": {**LEAST, "deployConfig": {"service": {"port": 70000}}},
    "replicas": {**LEAST, "deployConfig": {"service": {"replicas": 0}}},
    "runtime": {**LEAST, "deployConfig": {"sandbox": {"mcpRuntime": "fast"}}},
}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = config_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_schema_in_the_reference_is_current() -> None:
    render = runpy.run_path(str(ROOT / "scripts" / "config_schema.py"))["render"]
    written = (ROOT / "docs" / "reference" / "config.schema.json").read_text(encoding="utf-8")
    assert written == render(), "run `python scripts/config_schema.py`"


@pytest.mark.parametrize("config", DOCUMENTED.values(), ids=DOCUMENTED.keys())
def test_documented_configurations_fit_both_the_schema_and_the_reader(
    validator: Draft202012Validator, config: dict[str, Any]
) -> None:
    assert [error.message for error in validator.iter_errors(config)] == []
    assert EnvSpec.from_dict(config).to_dict() == config


@pytest.mark.parametrize("config", WRONG.values(), ids=WRONG.keys())
def test_wrong_configurations_fit_neither(validator: Draft202012Validator, config: dict[str, Any]) -> None:
    assert not validator.is_valid(config)
    with pytest.raises(ConfigError, match=r"config\.json: "):
        EnvSpec.from_dict(config)


def test_every_key_is_described() -> None:
    undescribed = [path for path, member in _members(config_schema()) if not member.get("description")]
    assert undescribed == []


def test_every_example_in_the_schema_fits_the_key_it_is_given_for() -> None:
    for path, member in _members(config_schema()):
        for example in member.get("examples", []):
            assert Draft202012Validator(member).is_valid(example), path


def test_every_object_allows_keys_that_are_not_known() -> None:
    schema: dict[str, Any] = config_schema()
    assert all(block["additionalProperties"] is True for block in [schema, *schema["$defs"].values()])


def test_the_schema_names_no_host_that_does_not_exist() -> None:
    assert config_schema()["$id"] == "aenv:config.schema.json"


def _members(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for title, block in [("config.json", schema), *schema["$defs"].items()]:
        for key, member in block["properties"].items():
            # A key with the very description of the block it holds is left without one of its own.
            block_of = schema["$defs"].get(member.get("$ref", "").rpartition("/")[2], {})
            yield f"{title}.{key}", {"description": block_of.get("description"), **member}
