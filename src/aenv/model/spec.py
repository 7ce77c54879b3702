"""`EnvSpec`, the frozen config.json: wrong values are named, unknown keys are kept."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Self

from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic.json_schema import GenerateJsonSchema

from aenv._util.nearest import ask, did_you_mean
from aenv.model.fields import Name, StatusWord, VersionText
from aenv.model.problems import Place, Problem, config_error, list_problems, spell_path, wrong_value
from aenv.model.ref import EnvRef
from aenv.model.sections import Artifact, BuildConfig, DeployConfig, Section, TestConfig
from aenv.model.strictjson import find_repeated, find_unwritable, read_json

CONFIG_FILE = "config.json"


class EnvSpec(Section):
    """An environment as its config.json describes it."""

    model_config = ConfigDict(alias_generator=to_camel)

    schema_uri: str | None = Field(default=None, alias="$schema")
    """Schema that editors check this file with."""
    name: Name
    """Name of the environment, unique in its hub."""
    version: VersionText
    """Semantic version; a published version never changes."""
    description: str = ""
    """What the environment is, in a sentence or two."""
    tags: tuple[str, ...] = Field(default=(), strict=False, examples=[["linux", "python"]])
    """Words to find the environment by."""
    status: StatusWord = "Ready"
    """Where the environment stands in its life."""
    code_url: str = Field(default="", examples=["https://example.com/my-env.git"])
    """Where the source code is kept."""
    artifacts: tuple[Artifact, ...] = Field(default=(), strict=False)
    """What building made; `aenv build` writes it."""
    build: BuildConfig = Field(default_factory=BuildConfig, alias="buildConfig")
    """How the environment becomes a container image."""
    test: TestConfig = Field(default_factory=TestConfig, alias="testConfig")
    """How the environment is tested."""
    deploy: DeployConfig = Field(default_factory=DeployConfig, alias="deployConfig")
    """What a sandbox of the environment is given and allowed."""

    _written: dict[str, object] = PrivateAttr(default_factory=dict)

    @classmethod
    def parse(cls, text: str | bytes, *, where: str = CONFIG_FILE) -> Self:
        """Read the text of a config.json; ConfigError lists all that is wrong with it."""
        return cls.from_dict(read_json(text, where=where), where=where)

    @classmethod
    def from_dict(cls, data: object, *, where: str = CONFIG_FILE) -> Self:
        """The same for values that some other reader took from JSON."""
        if flaws := find_unwritable(data):
            raise config_error(where, flaws)
        if not isinstance(data, dict):
            raise config_error(where, [wrong_value("", data, "an object", 'write { "name": ..., "version": ... }')])
        repeated = find_repeated(data)
        try:
            spec = cls.model_validate(data)
        except ValidationError as error:
            raise config_error(where, [*repeated, *list_problems(error)]) from error
        if repeated:
            raise config_error(where, repeated)
        return spec

    @property
    def ref(self) -> EnvRef:
        """The environment at exactly this version."""
        return EnvRef(self.name, self.version)

    @property
    def storage_name(self) -> str:
        """Name of the service's storage: the environment's own unless another was written."""
        return self.deploy.service.storage_name or self.name

    def unknown_keys(self) -> list[Problem]:
        """Keys that mean nothing to this version of aenv, with the known one that was probably meant."""
        return list(_unknown_keys(self, ()))

    def with_changes(self, changes: Mapping[str, object], *, where: str = CONFIG_FILE) -> Self:
        """A spec with the JSON members changed and all else as it was written; None takes a member away.

        Objects are merged and everything else is replaced: JSON Merge Patch, RFC 7396.
        """
        return type(self).from_dict(_merge(self._written, changes), where=where)

    def to_dict(self) -> dict[str, object]:
        """What was read: the author's keys in the author's order, no default added."""
        return copy.deepcopy(self._written)

    def to_json(self) -> str:
        """The text of a config.json that reads as this spec."""
        return json.dumps(self._written, indent=2, ensure_ascii=False) + "\n"

    @model_validator(mode="wrap")
    @classmethod
    def _remember(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        spec = handler(data)
        if isinstance(data, dict):
            spec._written = copy.deepcopy(data)  # noqa: SLF001 -- a new object of this very class
        return spec


def config_schema() -> dict[str, object]:
    """JSON Schema of config.json, for editors; it names every key and allows any other."""
    schema = EnvSpec.model_json_schema(schema_generator=_Schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "aenv:config.schema.json",
        "title": "config.json of an aenv environment",
        **{key: value for key, value in schema.items() if key != "title"},
    }


class _Schema(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        # Titles made from names ("Code Url") say nothing that the key does not.
        return False


def _unknown_keys(section: Section, place: Place) -> Iterator[Problem]:
    fields = type(section).model_fields
    known = [field.alias or name for name, field in fields.items()]
    for key, value in (section.model_extra or {}).items():
        hint = did_you_mean(key, known) or ask([path for name, path in _homes(EnvSpec, ()) if name == key][:1])
        yield Problem(spell_path((*place, key)), value, "is not a key that aenv knows", hint or None)
    for name, field in fields.items():
        yield from _unknown_below(getattr(section, name), (*place, field.alias or name))


def _unknown_below(value: object, place: Place) -> Iterator[Problem]:
    if isinstance(value, Section):
        yield from _unknown_keys(value, place)
    elif isinstance(value, tuple):
        for index, member in enumerate(value):
            yield from _unknown_below(member, (*place, index))


def _homes(section: type[Section], place: Place) -> Iterator[tuple[str, str]]:
    """Every known key with its path, outermost first."""
    for name, field in section.model_fields.items():
        key = field.alias or name
        yield key, spell_path((*place, key))
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _homes(field.annotation, (*place, key))


def _merge(target: object, changes: Mapping[str, object]) -> dict[str, object]:
    merged = dict(target) if isinstance(target, dict) else {}
    for key, change in changes.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), change) if isinstance(change, Mapping) else change
    return merged
