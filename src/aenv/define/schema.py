"""From a function's annotations to a JSON Schema, a check of arguments and a check of results."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from aenv.define.content import Audio, File, Image
from aenv.define.context import Context
from aenv.define.tidy import tidy
from aenv.errors import ArgumentsInvalid, DefinitionError, ResultInvalid

JSON = dict[str, Any]
_SECTIONS = ("Args:", "Arguments:", "Parameters", "Params:", ":param", "@param")
_EXPRESSIBLE = "str, int, float, bool, list, dict, Optional, Literal, Enum, dataclasses, TypedDict and Pydantic models"


_ALTERNATIVES: dict[str | None, str] = {
    "typed-dict-version": "on Python before 3.12 take TypedDict from typing_extensions"
}


class Bound(NamedTuple):
    """Checked arguments, ready for the call."""

    args: tuple[object, ...]
    kwargs: dict[str, object]


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    field: str
    positional_only: bool


class _Generate(GenerateJsonSchema):
    # A default that JSON cannot show is left out of the schema; the function still has it.
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own declaration


class Signature:
    """How one function is called over the wire: `input_schema`, `output_schema`, `bind`, `check_result`."""

    def __init__(self, function: Callable[..., object], *, label: str) -> None:
        self.label = label
        hints = _hints(function, label)
        self.context_parameter: str | None = None
        self._takes_extra = False
        self._parameters: list[_Parameter] = []
        fields = self._fields(function, hints)
        model = _arguments_model(label, fields, takes_extra=self._takes_extra)
        self._validate: Callable[[object], BaseModel] = model.__pydantic_validator__.validate_python
        self.input_schema = _json_schema(label, model, fields)
        self.output_schema: JSON | None = None
        self.wraps_result = False
        self._result: TypeAdapter[Any] | None = None
        self._returns = hints.get("return", Any)
        self._describe_result()

    @property
    def parameter_names(self) -> list[str]:
        """What a caller may pass by name."""
        return [parameter.name for parameter in self._parameters]

    def bind(self, arguments: Mapping[str, object], context: Context | None = None) -> Bound:
        """The arguments checked and converted; raises ArgumentsInvalid with every field that is wrong."""
        try:
            checked = self._validate(arguments)
        except ValidationError as wrong:
            raise self._refusal(wrong) from None
        args: list[object] = []
        kwargs: dict[str, object] = {}
        values = checked.__dict__
        for parameter in self._parameters:
            if parameter.positional_only:
                args.append(values[parameter.field])
            else:
                kwargs[parameter.name] = values[parameter.field]
        if self._takes_extra:
            kwargs.update(checked.model_extra or {})
        if self.context_parameter is not None:
            kwargs[self.context_parameter] = context or Context()
        return Bound(tuple(args), kwargs)

    def check_result(self, value: object) -> None:
        """Refuse a JSON value that the return annotation, and so the published schema, does not allow."""
        if self._result is None:
            return
        try:
            self._result.validate_python(value)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False)[0]
            path = "".join(f"[{step!r}]" for step in first["loc"])
            raise ResultInvalid(
                f"{self.label} returned a value that its annotation {_name(self._returns)} does not allow: "
                f"result{path}: {first['msg']}, got {_short(first['input'])}",
                hint="return what the annotation says, or correct the annotation",
            ) from None

    def _fields(self, function: Callable[..., object], hints: Mapping[str, Any]) -> dict[str, Any]:
        described = _descriptions(function)
        fields: dict[str, Any] = {}
        for index, (name, parameter) in enumerate(inspect.signature(function).parameters.items()):
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise DefinitionError(
                    f"{self.label}: parameter '*{name}' cannot be passed by name",
                    hint=f"take a list instead: `{name}: list[str]`",
                    parameter=name,
                )
            if parameter.kind is parameter.VAR_KEYWORD:
                self._takes_extra = True
                continue
            annotation = hints.get(name, Any)
            if annotation is Context or Context in typing.get_args(annotation):
                self.context_parameter = name
                continue
            # Field names of our own: an author may call a parameter `copy` or `_x`, which a model may not.
            field = f"p{index}"
            self._parameters.append(_Parameter(name, field, parameter.kind is parameter.POSITIONAL_ONLY))
            fields[field] = (annotation, _field_info(name, parameter, annotation, described.get(name)))
        return fields

    def _describe_result(self) -> None:
        if self._returns in (Any, None, type(None), inspect.Signature.empty) or _mentions_content(self._returns):
            return
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(self._returns)
            schema = tidy(adapter.json_schema(mode="serialization", schema_generator=_Generate))
        except PydanticUserError:
            return
        self._result = adapter
        self.wraps_result = schema.get("type") != "object"
        self.output_schema = _wrapped(schema) if self.wraps_result else schema

    def _refusal(self, wrong: ValidationError) -> ArgumentsInvalid:
        fields = [
            {"field": _path(error["loc"]), "message": _reason(error["type"], error["msg"]), "value": error["input"]}
            for error in wrong.errors(include_url=False, include_context=False)
        ]
        for entry in fields:
            if entry["message"] == _MISSING:
                del entry["value"]
        lines = "; ".join(f"{entry['field']}: {entry['message']}" for entry in fields)
        known = ", ".join(self.parameter_names) or "none"
        return ArgumentsInvalid(f"{self.label}: {lines}", hint=f"parameters are: {known}", fields=fields)


_MISSING = "is required"


def _reason(kind: str, message: str) -> str:
    if kind == "missing":
        return _MISSING
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return "is not a parameter"
    return message[:1].lower() + message[1:]


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(step) for step in location)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _name(annotation: object) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _hints(function: Callable[..., object], label: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception as problem:  # an author's annotation may raise anything when it is evaluated
        raise DefinitionError(
            f"{label}: an annotation cannot be read: {problem}",
            hint="import the type at module level, not only under TYPE_CHECKING",
        ) from problem


def _descriptions(function: Callable[..., object]) -> dict[str, str]:
    doc = inspect.getdoc(function) or ""
    if not any(mark in doc for mark in _SECTIONS):
        return {}
    # The parser costs 10 ms to import: only those pay who wrote a section for it.
    parser = importlib.import_module("aenv.define.docstring")
    return typing.cast("dict[str, str]", parser.parameter_descriptions(doc))


def _field_info(name: str, parameter: inspect.Parameter, annotation: object, description: str | None) -> FieldInfo:
    extra: JSON = {"alias": name}
    if description and not _has_description(annotation, parameter.default):
        extra["description"] = description
    if isinstance(parameter.default, FieldInfo):
        return FieldInfo.merge_field_infos(parameter.default, **extra)
    default = ... if parameter.default is parameter.empty else parameter.default
    return typing.cast("FieldInfo", Field(default, **extra))


def _has_description(annotation: object, default: object) -> bool:
    metadata = typing.get_args(annotation)[1:] if typing.get_origin(annotation) is Annotated else ()
    return any(isinstance(item, FieldInfo) and item.description for item in (*metadata, default))


def _arguments_model(label: str, fields: dict[str, Any], *, takes_extra: bool) -> type[BaseModel]:
    config = ConfigDict(extra="allow" if takes_extra else "forbid", populate_by_name=False, protected_namespaces=())
    try:
        return create_model("arguments", __config__=config, **fields)
    except (PydanticUserError, TypeError) as problem:
        raise _inexpressible(label, fields, problem) from problem


def _json_schema(label: str, model: type[BaseModel], fields: dict[str, Any]) -> JSON:
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_Generate)
    except PydanticUserError as problem:
        raise _inexpressible(label, fields, problem) from problem
    return {"type": "object", "properties": {}, **tidy(schema)}


def _inexpressible(label: str, fields: dict[str, Any], problem: Exception) -> DefinitionError:
    """Say which parameter it was: the model only says that one of them was."""
    for annotation, info in fields.values():
        if not _expressible(annotation, "validation"):
            return DefinitionError(
                f"{label}: parameter {info.alias!r} has the type {_name(annotation)}, which JSON cannot express",
                hint=_ALTERNATIVES.get(getattr(problem, "code", None), f"use {_EXPRESSIBLE}"),
                parameter=info.alias,
            )
    return DefinitionError(f"{label}: its parameters cannot be described: {problem}")


def _expressible(annotation: Any, mode: JsonSchemaMode) -> bool:
    try:
        TypeAdapter(annotation).json_schema(mode=mode)
    except (PydanticUserError, TypeError):
        return False
    return True


def _wrapped(schema: JSON) -> JSON:
    """A result that is no object travels as `{"result": value}`: older revisions know objects alone."""
    wrapped: JSON = {"type": "object", "properties": {"result": schema}, "required": ["result"]}
    if "$defs" in schema:
        wrapped["$defs"] = schema.pop("$defs")
    wrapped["x-fastmcp-wrap-result"] = True
    return wrapped


def _mentions_content(annotation: object) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, Image | Audio | File):
        return True
    module = getattr(annotation, "__module__", "")
    if isinstance(annotation, type) and module.partition(".")[0] in ("mcp", "mcp_types"):
        return True
    inside = (types.UnionType, typing.Union, Annotated, list, tuple)
    origin = typing.get_origin(annotation)
    return origin in inside and any(_mentions_content(arg) for arg in typing.get_args(annotation))
