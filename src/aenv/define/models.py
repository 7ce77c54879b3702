"""Signatures that only Pydantic can describe and check; loaded when there is one."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from aenv.define.plain import EMPTY, Parameter
from aenv.define.tidy import tidy
from aenv.errors import ArgumentsInvalid, DefinitionError, ResultInvalid

JSON = dict[str, Any]

_EXPRESSIBLE = "str, int, float, bool, list, dict, Optional, Literal, Enum, dataclasses, TypedDict and Pydantic models"
_ALTERNATIVES: dict[str | None, str] = {
    "typed-dict-version": "on Python before 3.12 take TypedDict from typing_extensions"
}
_MISSING = "is required"


class _Generate(GenerateJsonSchema):
    # A default that JSON cannot show is left out of the schema; the function still has it.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own declaration


class ModelArguments:
    """The arguments of a function, as a Pydantic model."""

    def __init__(self, label: str, parameters: list[Parameter], *, takes_extra: bool) -> None:
        self._label = label
        # Field names of our own: an author may call a parameter `copy` or `_x`, which a model may not.
        self._names = {f"p{index}": parameter.name for index, parameter in enumerate(parameters)}
        self._fields: dict[str, Any] = {
            f"p{index}": (parameter.annotation, _field_info(parameter)) for index, parameter in enumerate(parameters)
        }
        self._model = self._build(takes_extra=takes_extra)
        self._validate: Callable[[object], BaseModel] = self._model.__pydantic_validator__.validate_python

    def schema(self) -> JSON:
        """The JSON Schema of the object that callers send."""
        try:
            schema = self._model.model_json_schema(by_alias=True, schema_generator=_Generate)
        except PydanticUserError as problem:
            raise self._inexpressible(problem) from problem
        return {"type": "object", "properties": {}, **tidy(schema)}

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Each parameter's value, and what came beside them; ArgumentsInvalid names every field that is wrong."""
        try:
            checked = self._validate(arguments)
        except ValidationError as wrong:
            raise self._refusal(wrong) from None
        values = checked.__dict__
        return {name: values[field] for field, name in self._names.items()} | (checked.model_extra or {})

    def _build(self, *, takes_extra: bool) -> type[BaseModel]:
        config = ConfigDict(extra="allow" if takes_extra else "forbid", protected_namespaces=())
        try:
            return create_model("arguments", __config__=config, **self._fields)
        except (PydanticUserError, TypeError) as problem:
            raise self._inexpressible(problem) from problem

    def _inexpressible(self, problem: Exception) -> DefinitionError:
        """Say which parameter it was: the model only says that one of them was."""
        for annotation, info in self._fields.values():
            if not _is_expressible(annotation):
                return DefinitionError(
                    f"{self._label}: parameter {info.alias!r} has the type {type_name(annotation)}, "
                    "which JSON cannot express",
                    hint=_ALTERNATIVES.get(getattr(problem, "code", None), f"use {_EXPRESSIBLE}"),
                    parameter=info.alias,
                )
        return DefinitionError(f"{self._label}: its parameters cannot be described: {problem}")

    def _refusal(self, wrong: ValidationError) -> ArgumentsInvalid:
        fields = [
            {
                "field": ".".join(str(step) for step in error["loc"]),
                "message": _reason(error["type"], error["msg"]),
                "value": _sample(error["input"]),
            }
            for error in wrong.errors(include_url=False, include_context=False)
        ]
        for entry in fields:
            if entry["message"] == _MISSING:
                del entry["value"]
        lines = "; ".join(f"{entry['field']}: {entry['message']}" for entry in fields)
        known = ", ".join(self._names.values()) or "none"
        return ArgumentsInvalid(f"{self._label}: {lines}", hint=f"parameters are: {known}", fields=fields)


class ModelResult:
    """What a function returns, as a Pydantic type."""

    def __init__(self, label: str, annotation: Any) -> None:
        self._label = label
        self._annotation = annotation
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)

    def schema(self) -> JSON:
        """The JSON Schema of the value."""
        return tidy(self._adapter.json_schema(mode="serialization", schema_generator=_Generate))

    def check(self, value: object) -> None:
        """Refuse a JSON value that the annotation, and so the published schema, does not allow."""
        try:
            self._adapter.validate_python(value)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False)[0]
            path = "".join(f"[{step!r}]" for step in first["loc"])
            raise ResultInvalid(
                f"{self._label} returned a value that its annotation {type_name(self._annotation)} does not allow: "
                f"result{path}: {first['msg']}, got {_short(first['input'])}",
                hint="return what the annotation says, or correct the annotation",
            ) from None


def describe_result(label: str, annotation: Any) -> ModelResult | None:
    """The result's type, or None when it has no schema: what a function returns is converted by rule anyway."""
    try:
        described = ModelResult(label, annotation)
        described.schema()
    except PydanticUserError:
        return None
    return described


def type_name(annotation: object) -> str:
    """An annotation as its author wrote it, more or less."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _reason(kind: str, message: str) -> str:
    if kind == "missing":
        return _MISSING
    if kind == "extra_forbidden":
        return "is not a parameter"
    return message[:1].lower() + message[1:]


def _sample(value: object) -> object:
    """What was sent, as far as it can be sent back: whole if it is small and JSON, else its beginning."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return value if isinstance(value, str) and len(value) <= 200 else _short(value)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the value may be an author's, and its repr too
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _field_info(parameter: Parameter) -> FieldInfo:
    extra: JSON = {"alias": parameter.name}
    if parameter.description and not _has_description(parameter):
        extra["description"] = parameter.description
    if isinstance(parameter.default, FieldInfo):
        return FieldInfo.merge_field_infos(parameter.default, **extra)
    default = ... if parameter.default is EMPTY else parameter.default
    return typing.cast("FieldInfo", Field(default, **extra))


def _has_description(parameter: Parameter) -> bool:
    annotation = parameter.annotation
    metadata = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
    return any(isinstance(item, FieldInfo) and item.description for item in (*metadata, parameter.default))


def _is_expressible(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).json_schema()
    except (PydanticUserError, TypeError):
        return False
    return True
