"""Schemas, argument checks and result checks from annotations."""

from __future__ import annotations

import dataclasses
import enum
import socket
from collections.abc import Callable
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from aenv.define.content import Image
from aenv.define.context import Context
from aenv.define.schema import Signature
from aenv.errors import ArgumentsInvalid, DefinitionError, ResultInvalid


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Query(BaseModel):
    text: str
    limit: int = Field(10, description="How many at most.")


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Options(TypedDict, total=False):
    depth: int


def signature(function: Callable[..., object]) -> Signature:
    return Signature(function, label="tool 't'")


def properties(function: Callable[..., object]) -> dict[str, Any]:
    found: dict[str, Any] = signature(function).input_schema["properties"]
    return found


def test_basic_types_become_json_types() -> None:
    def t(a: str, b: int, c: float, d: bool, e: list[str], f: dict[str, int]) -> None: ...

    assert properties(t) == {
        "a": {"type": "string"},
        "b": {"type": "integer"},
        "c": {"type": "number"},
        "d": {"type": "boolean"},
        "e": {"type": "array", "items": {"type": "string"}},
        "f": {"type": "object", "additionalProperties": {"type": "integer"}},
    }
    assert signature(t).input_schema["required"] == ["a", "b", "c", "d", "e", "f"]


def test_defaults_make_parameters_optional_and_are_shown() -> None:
    def t(a: str, b: int = 42) -> None: ...

    schema = signature(t).input_schema
    assert schema["required"] == ["a"]
    assert schema["properties"]["b"] == {"type": "integer", "default": 42}


def test_optional_literal_and_enum_say_what_is_allowed() -> None:
    def t(a: Optional[str] = None, b: Literal["x", "y"] = "x", c: Colour = Colour.RED) -> None: ...  # noqa: UP045

    assert properties(t) == {
        "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "b": {"type": "string", "enum": ["x", "y"], "default": "x"},
        "c": {"type": "string", "enum": ["red", "blue"], "default": "red"},
    }


def test_pydantic_models_are_written_in_place_without_titles() -> None:
    def t(query: Query) -> None: ...

    assert properties(t)["query"] == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "limit": {"type": "integer", "default": 10, "description": "How many at most."},
        },
        "required": ["text"],
    }


def test_a_model_that_contains_itself_keeps_its_definition() -> None:
    def t(tree: Tree) -> None: ...

    schema = signature(t).input_schema
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_a_parameter_may_be_called_title_or_like_a_models_attribute() -> None:
    def t(title: str, copy: int, schema: str, _x: int = 0) -> str:
        return f"{title}{copy}{schema}{_x}"

    assert set(properties(t)) == {"title", "copy", "schema", "_x"}
    bound = signature(t).bind({"title": "a", "copy": 1, "schema": "b", "_x": 2})
    assert t(*bound.args, **bound.kwargs) == "a1b2"  # type: ignore[arg-type]


def test_annotated_fields_describe_and_bound_parameters() -> None:
    def t(n: Annotated[int, Field(description="A count.", ge=1, le=9)] = 3) -> None: ...

    assert properties(t)["n"] == {
        "type": "integer", "description": "A count.", "minimum": 1, "maximum": 9, "default": 3,
    }  # fmt: skip
    with pytest.raises(ArgumentsInvalid, match="greater than or equal to 1"):
        signature(t).bind({"n": 0})


GOOGLE = """Do it.

Args:
    path: Where it is,
        on two lines.
    mode (str, optional): How.

Returns:
    Something.
"""
NUMPY = """Do it.

Parameters
----------
path : str
    Where it is,
    on two lines.
mode : str
    How.
"""
SPHINX = """Do it.

:param path: Where it is,
    on two lines.
:param str mode: How.
:returns: Something.
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_parameter_descriptions_come_from_the_docstring(doc: str) -> None:
    def t(path: str, mode: str = "r") -> None: ...

    t.__doc__ = doc
    assert properties(t)["path"]["description"] == "Where it is, on two lines."
    assert properties(t)["mode"]["description"] == "How."


def test_what_json_cannot_express_is_refused_with_the_parameters_name() -> None:
    def t(a: int, connection: socket.socket) -> None: ...

    with pytest.raises(DefinitionError, match=r"parameter 'connection' has the type socket") as caught:
        signature(t)
    assert caught.value.details["parameter"] == "connection"


def test_a_callable_parameter_is_refused_too() -> None:
    def t(callback: Callable[[int], int]) -> None: ...

    with pytest.raises(DefinitionError, match="parameter 'callback'"):
        signature(t)


def test_star_args_are_refused_and_star_kwargs_take_anything() -> None:
    def stars(*names: str) -> None: ...

    def extra(a: int, **rest: Any) -> dict[str, Any]:
        return {"a": a, **rest}

    with pytest.raises(DefinitionError, match=r"'\*names'"):
        signature(stars)
    bound = signature(extra).bind({"a": 1, "b": 2})
    assert extra(*bound.args, **bound.kwargs) == {"a": 1, "b": 2}  # type: ignore[arg-type]


def test_positional_only_parameters_can_be_passed_by_name_on_the_wire() -> None:
    def t(a: int, /, b: int) -> int:
        return a - b

    bound = signature(t).bind({"a": 5, "b": 3})
    assert t(*bound.args, **bound.kwargs) == 2  # type: ignore[arg-type]


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    def t(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError, match="Missing"):
        signature(t)


def test_every_wrong_argument_is_named_with_its_reason() -> None:
    def t(a: str, b: int, query: Query) -> None: ...

    with pytest.raises(ArgumentsInvalid) as caught:
        signature(t).bind({"a": 1, "query": {"limit": "many"}, "zz": 0})
    fields = caught.value.details["fields"]
    assert isinstance(fields, list)
    by_name = {entry["field"]: entry["message"] for entry in fields}
    assert by_name["b"] == by_name["query.text"] == "is required"
    assert by_name["zz"] == "is not a parameter"
    assert "valid string" in by_name["a"]
    assert "valid integer" in by_name["query.limit"]
    assert caught.value.hint == "parameters are: a, b, query"


def test_text_that_reads_as_the_wanted_type_is_converted() -> None:
    def t(a: int, b: bool, c: float) -> None: ...

    assert signature(t).bind({"a": "1", "b": "true", "c": "2.5"}).kwargs == {"a": 1, "b": True, "c": 2.5}


def test_unannotated_parameters_take_anything() -> None:
    def t(a, b=60):  # type: ignore[no-untyped-def] # the case under test
        return a, b

    assert properties(t) == {"a": {}, "b": {"default": 60}}
    assert signature(t).bind({"a": {"deep": [1]}}).kwargs == {"a": {"deep": [1]}, "b": 60}


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def t(items: list[int] = []) -> list[int]:  # noqa: B006 - what authors write
        items.append(1)
        return items

    described = signature(t)
    for _ in range(2):
        bound = described.bind({})
        assert t(*bound.args, **bound.kwargs) == [1]  # type: ignore[arg-type]


def test_the_context_is_injected_and_stays_out_of_the_schema() -> None:
    def t(a: int, ctx: Context) -> str:
        return ctx.call_id

    def optional(ctx: Context | None = None) -> bool:
        return ctx is not None

    described = signature(t)
    assert set(described.input_schema["properties"]) == {"a"}
    bound = described.bind({"a": 1}, Context("call_1"))
    assert t(*bound.args, **bound.kwargs) == "call_1"  # type: ignore[arg-type]
    assert optional(**signature(optional).bind({}).kwargs) is True  # type: ignore[arg-type]


def test_dataclasses_and_typed_dicts_are_parameters_like_any_other() -> None:
    def t(point: Point, options: Options) -> int:
        return point.x + options["depth"]

    bound = signature(t).bind({"point": {"x": 1}, "options": {"depth": 2}})
    assert t(*bound.args, **bound.kwargs) == 3  # type: ignore[arg-type]


def test_object_results_have_their_schema_and_others_are_wrapped() -> None:
    def point() -> Point: ...  # type: ignore[empty-body]
    def number() -> float: ...  # type: ignore[empty-body]
    def free() -> dict[str, Any]: ...  # type: ignore[empty-body]

    assert signature(point).output_schema == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }
    assert signature(free).output_schema == {"type": "object", "additionalProperties": True}
    wrapped = signature(number).output_schema
    assert wrapped is not None
    assert wrapped["properties"] == {"result": {"type": "number"}}
    assert wrapped["required"] == ["result"]


def test_content_nothing_and_unannotated_results_have_no_schema() -> None:
    def picture() -> Image: ...  # type: ignore[empty-body]
    def either() -> str | Image: ...  # type: ignore[empty-body]
    def nothing() -> None: ...
    def free(): ...  # type: ignore[no-untyped-def] # the case under test

    assert [signature(f).output_schema for f in (picture, either, nothing, free)] == [None] * 4


def test_a_result_that_its_annotation_forbids_is_refused() -> None:
    def t() -> list[int]: ...  # type: ignore[empty-body]

    described = signature(t)
    described.check_result([1, 2])
    with pytest.raises(ResultInvalid, match=r"result\[1\].*got 'two'"):
        described.check_result([1, "two"])


def test_a_default_that_json_cannot_show_is_left_out_of_the_schema() -> None:
    marker = object()

    def t(a: Any = marker) -> None: ...

    assert properties(t) == {"a": {}}
    assert signature(t).bind({}).kwargs == {"a": marker}
