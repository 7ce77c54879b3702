"""What decorators register, and where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aenv import get_context, register_function, register_health, register_reward, register_tool
from aenv.define.registry import Registry, current_registry, get_registry
from aenv.errors import DefinitionError


@pytest.fixture
def registry() -> Iterator[Registry]:
    token = current_registry.set(Registry())
    yield current_registry.get()
    current_registry.reset(token)


def test_bare_and_called_forms_register_and_return_the_function(registry: Registry) -> None:
    def one() -> None: ...
    async def two() -> None: ...
    def three() -> None: ...

    assert register_tool(one) is one
    assert register_tool()(two) is two
    assert register_tool(name="drei", description="The third.")(three) is three
    assert list(registry.tools) == ["one", "two", "drei"]
    assert registry.tools["two"].is_async
    assert registry.tools["drei"].to_mcp()["description"] == "The third."


def test_a_renamed_tool_is_still_found_by_its_functions_name(registry: Registry) -> None:
    @register_tool(name="renamed")
    def original() -> None: ...

    assert registry.find_tool("original") is registry.find_tool("renamed")
    assert [tool.name for tool in registry.visible_tools()] == ["renamed"]


def test_a_tools_own_name_wins_over_anothers_function_name(registry: Registry) -> None:
    def first() -> str:
        return "renamed"

    def second() -> str:
        return "own"

    register_tool(name="other")(first)
    register_tool(name="first")(second)
    found = registry.find_tool("first")
    assert found is not None
    assert found.function() == "own"


def test_the_docstring_is_the_description(registry: Registry) -> None:
    @register_tool
    def t() -> None:
        """First line.

        More.
        """

    assert registry.tools["t"].description == "First line.\n\nMore."


def test_a_name_is_taken_once_and_the_error_says_where(registry: Registry) -> None:
    register_tool(name="t")(lambda: None)
    with pytest.raises(DefinitionError, match=r"tool 't' is registered already, in .*test_decorators.py:\d+") as caught:
        register_tool(name="t")(lambda: 1)
    assert isinstance(caught.value, ValueError)


def test_outside_a_loader_a_module_may_be_imported_again() -> None:
    def t() -> None: ...

    register_tool(t)
    register_tool(t)
    register_health(t)
    register_health(t)
    assert "t" in get_registry().tools


def test_the_first_reward_is_the_default_unless_another_is_marked(registry: Registry) -> None:
    register_reward(name="a")(lambda: 0.0)
    register_reward(name="b")(lambda: 1.0)
    assert registry.default_reward is registry.rewards["a"]
    register_reward(name="c", default=True)(lambda: 2.0)
    assert registry.default_reward is registry.rewards["c"]
    with pytest.raises(DefinitionError, match="'c' is the default already"):
        register_reward(name="d", default=True)(lambda: 3.0)


def test_functions_have_endpoints_of_their_own(registry: Registry) -> None:
    def plain() -> None: ...
    def item(item_id: int) -> None: ...

    register_function(plain)
    register_function(endpoint="items/{item_id}/", method="get")(item)
    assert (registry.functions["plain"].path, registry.functions["plain"].method) == ("/functions/plain", "POST")
    assert (registry.functions["item"].path, registry.functions["item"].method) == ("/items/{item_id}", "GET")


@pytest.mark.parametrize(
    ("endpoint", "method", "complaint"),
    [
        ("/mcp", "POST", "not usable"),
        ("/a b", "POST", "not usable"),
        ("/../etc", "POST", "not usable"),
        ("/x/{other}", "GET", "no parameter"),
        ("/x", "TRACE", "not one of"),
    ],
)
def test_unusable_endpoints_are_refused(registry: Registry, endpoint: str, method: str, complaint: str) -> None:
    with pytest.raises(DefinitionError, match=complaint):
        register_function(endpoint=endpoint, method=method, name="f")(lambda: None)
    assert registry.functions == {}


def test_two_functions_cannot_share_an_endpoint(registry: Registry) -> None:
    register_function(endpoint="/x", name="a")(lambda: None)
    register_function(endpoint="/x", method="GET", name="b")(lambda: None)
    with pytest.raises(DefinitionError, match="POST /x is 'a' already"):
        register_function(endpoint="/x", name="c")(lambda: None)


def test_an_environment_has_one_health_check(registry: Registry) -> None:
    register_health(name="a")(lambda: True)
    with pytest.raises(DefinitionError, match="'a' is the health check already"):
        register_health(name="b")(lambda: True)


def test_mcp_annotations_are_checked(registry: Registry) -> None:
    register_tool(name="a", annotations={"readOnlyHint": True, "title": "A"})(lambda: None)
    shown = registry.tools["a"].to_mcp()
    assert shown["annotations"] == {"readOnlyHint": True, "title": "A"}
    assert shown["title"] == "A"
    with pytest.raises(DefinitionError, match="'readonly'"):
        register_tool(name="b", annotations={"readonly": True})(lambda: None)
    with pytest.raises(DefinitionError, match="cannot be 'yes'"):
        register_tool(name="c", annotations={"readOnlyHint": "yes"})(lambda: None)


def test_an_authors_own_schema_is_published_as_it_is(registry: Registry) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"type": "string"}}}

    @register_tool(input_schema=schema)
    def proxy(**given: object) -> dict[str, object]:
        return given

    tool = registry.tools["proxy"]
    assert tool.to_mcp()["inputSchema"] == schema
    assert tool.function(**tool.signature.bind({"a": "x"}).kwargs) == {"a": "x"}
    with pytest.raises(DefinitionError, match="does not describe an object"):
        register_tool(name="other", input_schema={"type": "array"})(proxy)


@pytest.mark.parametrize("name", ["", "a b", "ümlaut", "x" * 129])
def test_unusable_names_are_refused(registry: Registry, name: str) -> None:
    with pytest.raises(DefinitionError, match="not usable"):
        register_tool(name=name)(lambda: None)


def test_options_passed_by_position_are_refused(registry: Registry) -> None:
    with pytest.raises(DefinitionError, match="'echo' is not a function"):
        register_tool("echo")  # type: ignore[call-overload] # the mistake under test


def test_a_time_out_must_be_above_zero(registry: Registry) -> None:
    with pytest.raises(DefinitionError, match="timeout"):
        register_tool(timeout=0, name="t")(lambda: None)


def test_outside_a_call_a_context_listens_to_nobody() -> None:
    context = get_context()
    context.report_progress(1, 2)
    context.info("unheard")
    context.raise_if_cancelled()
    assert context.call_id == ""
