"""The sandbox server over plain HTTP: routes, envelopes, statuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Environment, open_environment, write_project

SOURCE = '''
import dataclasses, datetime, decimal, enum, pathlib, uuid
from typing import Any
from pydantic import BaseModel
from aenv import File, Image, register_function, register_health, register_reward, register_tool

class Colour(enum.Enum):
    RED = "red"

class Model(BaseModel):
    at: datetime.date
    n: int = 1

@dataclasses.dataclass
class Point:
    x: int
    where: pathlib.Path

@register_tool
def echo(value: Any) -> Any:
    """Return what was given."""
    return value

@register_tool
def rich() -> dict:
    """Return one of each kind that is converted."""
    return {
        "point": Point(1, pathlib.Path("/a")), "model": Model(at=datetime.date(2026, 1, 2)), "enum": Colour.RED,
        "time": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "took": datetime.timedelta(seconds=1.5),
        "set": {3, 1, 2}, "tuple": (1, "a"), "uuid": uuid.UUID(int=0), "decimal": decimal.Decimal("1.10"),
        "keys": {1: "one", Colour.RED: 2}, "big": 2**70,
    }

@register_tool
def wrong(kind: str) -> Any:
    """Return what JSON cannot carry."""
    return {"nan": [0.0, {"a": float("nan")}], "bytes": b"raw", "object": object(), "key": {(1, 2): 3}}[kind]

@register_tool
def broken(message: str = "no good") -> int:
    """Fail."""
    raise ValueError(message)

@register_tool
def liar() -> int:
    """Return text though a number was promised."""
    return "text"

@register_tool(name="renamed", description="Under another name.")
def original() -> str:
    return "it is me"

@register_tool
def picture() -> list:
    """Return text and a picture."""
    return ["look:", Image(b"abc", "image/jpeg"), {"n": 1}, File("x:y", b"raw")]

@register_reward
def first(task: str = "") -> float:
    """The first reward."""
    return 0.25

@register_reward(default=True)
def second(points: list[int]) -> dict:
    """The default reward."""
    return {"score": sum(points)}

@register_function
def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b

@register_function(endpoint="/items/{item_id}", method="GET")
def get_item(item_id: int, detail: str = "no", tags: list[str] = []) -> dict:
    return {"id": item_id, "detail": detail, "tags": tags}

@register_function(endpoint="/items/{item_id}", method="DELETE")
def delete_item(item_id: int) -> str:
    return f"deleted {item_id}"

@register_function(endpoint="/items/{item_id}", method="PUT")
def put_item(item_id: int, body: dict) -> dict:
    return {"id": item_id, **body}

@register_health
def health(part: str = "all") -> dict:
    """Healthy, always."""
    return {"status": "OK", "part": part}
'''


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    project = write_project(tmp_path_factory.mktemp("http"), SOURCE, {"description": "A probe."})
    environment = open_environment(project)
    yield environment
    environment.stop()


def test_a_tool_is_called_with_a_json_object(env: Environment) -> None:
    answer = env.tool("echo", {"value": {"ünïcode": ["✓", None, 1.5]}})
    assert (answer.status, answer.data) == (200, {"ünïcode": ["✓", None, 1.5]})


def test_values_that_are_not_json_are_converted_by_the_stated_rules(env: Environment) -> None:
    assert env.tool("rich").data == {
        "point": {"x": 1, "where": "/a"},
        "model": {"at": "2026-01-02", "n": 1},
        "enum": "red",
        "time": "2026-01-02T03:04:05+00:00",
        "took": 1.5,
        "set": [1, 2, 3],
        "tuple": [1, "a"],
        "uuid": "00000000-0000-0000-0000-000000000000",
        "decimal": "1.10",
        "keys": {"1": "one", "red": 2},
        "big": 2**70,
    }


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("nan", "result[1]['a'] is nan"),
        ("bytes", "result is of type bytes"),
        ("object", "result is of type object"),
        ("key", "has the key (1, 2)"),
    ],
)
def test_values_that_json_cannot_carry_are_refused_with_their_place(
    env: Environment, kind: str, complaint: str
) -> None:
    answer = env.tool("wrong", {"kind": kind})
    assert (answer.status, answer.json["code"]) == (500, "tool.result_invalid")
    assert complaint in answer.json["error"]
    assert answer.json["hint"]


def test_a_result_that_its_annotation_forbids_is_refused(env: Environment) -> None:
    answer = env.tool("liar")
    assert (answer.status, answer.json["code"]) == (500, "tool.result_invalid")
    assert "annotation int" in answer.json["error"]


def test_an_authors_exception_is_told_with_its_type_and_their_frames(env: Environment) -> None:
    answer = env.tool("broken")
    assert answer.status == 500
    assert answer.json["success"] is False
    assert answer.json["error"] == "no good"
    assert answer.json["details"]["type"] == "ValueError"
    frames = "\n".join(answer.json["details"]["traceback"])
    assert "author.py" in frames
    assert "raise ValueError(message)" in frames
    assert "aenv/sandbox" not in frames


def test_tracebacks_can_be_switched_off(serve: Callable[..., Environment]) -> None:
    answer = serve(SOURCE, "--no-traceback").tool("broken")
    assert answer.json["details"] == {"type": "ValueError"}


def test_content_that_is_not_json_comes_as_mcp_blocks(env: Environment) -> None:
    assert env.tool("picture").data["content"] == [
        {"type": "text", "text": "look:"},
        {"type": "image", "data": "YWJj", "mimeType": "image/jpeg"},
        {"type": "text", "text": '{"n":1}'},
        {"type": "resource", "resource": {"uri": "x:y", "blob": "cmF3"}},
    ]


def test_an_unknown_tool_is_404_with_the_nearest_names(env: Environment) -> None:
    answer = env.tool("eco")
    assert (answer.status, answer.json["code"]) == (404, "request.not_found")
    assert answer.json["hint"] == "did you mean 'echo'?"


def test_a_renamed_tool_answers_to_both_names_and_is_listed_once(env: Environment) -> None:
    assert env.tool("renamed").data == env.tool("original").data == "it is me"
    listed = {tool["name"]: tool for tool in env.get("/tools").data["tools"]}
    assert listed["renamed"]["description"] == "Under another name."
    assert "original" not in listed


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "request.invalid"),
        (b"[1]", 400, "request.invalid"),
        (b'"text"', 400, "request.invalid"),
        (b"null", 400, "request.invalid"),
        (b"\xff\xfe", 400, "request.invalid"),
        (b"{}", 422, "arguments.invalid"),
        (b'{"a": "one"}', 422, "arguments.invalid"),
        (b'{"a": 1, "c": 2}', 422, "arguments.invalid"),
    ],
)
def test_bad_bodies_are_refused_with_the_right_status(env: Environment, body: bytes, status: int, code: str) -> None:
    answer = env.post("/functions/add", body)
    assert (answer.status, answer.json["code"], answer.json["success"]) == (status, code, False)
    assert answer.json["hint"]


def test_wrong_arguments_name_the_field_and_the_reason(env: Environment) -> None:
    answer = env.post("/functions/add", {"a": "one", "c": 2})
    assert answer.json["details"]["fields"] == [
        {
            "field": "a",
            "message": "input should be a valid integer, unable to parse string as an integer",
            "value": "one",
        },
        {"field": "c", "message": "is not a parameter", "value": 2},
    ]


def test_rewards_answer_by_name_and_the_default_one_without(env: Environment) -> None:
    assert env.post("/task/reward", {"points": [1, 2]}).data == {"score": 3}
    assert env.post("/task/reward/first").data == 0.25
    answer = env.post("/task/reward/secnd")
    assert (answer.status, answer.json["details"]["names"]) == (404, ["first", "second"])


def test_an_environment_without_rewards_says_so(serve: Callable[..., Environment]) -> None:
    answer = serve("").post("/task/reward")
    assert (answer.status, answer.json["error"]) == (404, "this environment has no reward")


def test_functions_answer_at_their_own_endpoints_and_methods(env: Environment) -> None:
    assert env.post("/functions/add", {"a": 2}).data == 3
    assert env.get("/items/7?detail=yes&tags=a&tags=b").data == {"id": 7, "detail": "yes", "tags": ["a", "b"]}
    assert env.get('/items/7?tags=["x"]').data["tags"] == ["x"]
    assert env.ask("DELETE", "/items/7").data == "deleted 7"
    assert env.ask("PUT", "/items/7", {"body": {"n": 1}}).data == {"id": 7, "n": 1}
    assert env.get("/items/seven").status == 422


def test_a_wrong_method_is_405_and_names_those_that_work(env: Environment) -> None:
    answer = env.post("/items/7")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, PUT")
    assert answer.json["code"] == "request.method_not_allowed"


def test_an_unknown_path_and_function_are_404_envelopes(env: Environment) -> None:
    assert env.get("/nothing/here").json["code"] == "request.not_found"
    answer = env.post("/functions/ad")
    assert (answer.status, answer.json["hint"]) == (404, "did you mean 'add'?")
    assert env.get("/helth").json["hint"] == "did you mean '/health'?"


def test_slashes_at_the_end_do_not_matter(env: Environment) -> None:
    assert env.get("/health/").status == 200
    assert env.post("/mcp/", {"jsonrpc": "2.0", "id": 1, "method": "ping"}).status == 200


def test_head_answers_like_get_without_a_body(env: Environment) -> None:
    answer = env.ask("HEAD", "/tools")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 100


def test_functions_are_listed_as_older_clients_read_them(env: Environment) -> None:
    listed = env.get("/functions/list").data
    assert listed["total"] == 4 + 2 + 1
    add = next(entry for entry in listed["functions"] if entry["name"] == "add")
    assert {key: add[key] for key in ("name", "endpoint", "method", "description", "is_async")} == {
        "name": "add",
        "endpoint": "/functions/add",
        "method": "POST",
        "description": "Add.",
        "is_async": False,
    }
    assert add["parameters"] == {
        "a": {"type": "<class 'int'>", "default": None},
        "b": {"type": "<class 'int'>", "default": "1"},
    }
    assert [reward["default"] for reward in listed["reward"]] == [False, True]
    assert listed["health"][0]["endpoint"] == "/health"


def test_the_root_says_what_this_is(env: Environment) -> None:
    about = env.get("/").data
    assert {key: about[key] for key in ("name", "version", "description", "rewards", "functions")} == {
        "name": "probe",
        "version": "1.2.3",
        "description": "A probe.",
        "rewards": 2,
        "functions": 4,
    }


def test_the_authors_health_check_decides_and_takes_query_parameters(env: Environment) -> None:
    answer = env.get("/health?part=disk")
    assert answer.status == 200
    assert answer.data["status"] == "healthy"
    assert answer.data["part"] == "disk"
    assert env.get("/health?nonsense=1").status == 422


HEALTH = "from aenv import register_health\nimport time\n@register_health\n{code}\n"


@pytest.mark.parametrize(
    ("code", "status", "state"),
    [
        ("def h(): return True", 200, "healthy"),
        ("def h(): return None", 200, "healthy"),
        ("async def h(): return {'status': 'healthy', 'cpu': 1}", 200, "healthy"),
        ("def h(): return {'status': 'success'}", 200, "success"),
        ("def h(): return {'cpu': 1}", 200, "healthy"),
        ("def h(): return False", 503, "unhealthy"),
        ("def h(): return {'status': 'degraded'}", 503, "degraded"),
        ("def h(): raise RuntimeError('disk is full')", 503, "unhealthy"),
    ],
)
def test_healthy_is_what_clients_accept_and_unhealthy_is_503(
    serve: Callable[..., Environment], code: str, status: int, state: str
) -> None:
    answer = serve(HEALTH.format(code=code)).get("/health")
    assert (answer.status, answer.json["success"]) == (status, status == 200)
    assert answer.json["data"]["status"] == state
    assert isinstance(answer.json["data"]["last_active"], float)


def test_a_health_check_that_hangs_is_unhealthy(serve: Callable[..., Environment]) -> None:
    env = serve(HEALTH.format(code="def h(): time.sleep(60)"))
    answer = env.get("/health", headers={"aenv-timeout": "0.2"})
    assert answer.status == 503
    assert "did not finish within 0.2 s" in answer.json["error"]


def test_without_a_health_check_the_server_itself_is_the_answer(serve: Callable[..., Environment]) -> None:
    data = serve("from aenv import register_tool\n@register_tool\ndef t(): ...\n").get("/health").data
    assert (data["status"], data["details"]) == ("success", {"tool_count": 1})


@pytest.mark.parametrize("value", ["-1", "soon", "0", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(env: Environment, value: str) -> None:
    answer = env.tool("echo", {"value": 1}, headers={"aenv-timeout": value})
    assert (answer.status, answer.json["code"]) == (400, "request.invalid")


def test_ten_megabytes_travel_both_ways(env: Environment) -> None:
    text = "ä" * (5 * 2**20)
    assert env.tool("echo", {"value": text}).data == text


def test_a_single_file_is_an_environment_too(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(
        "from aenv import register_tool\n@register_tool\ndef t() -> int:\n    return 5\n"
    )
    environment = open_environment(tmp_path / "alone.py")
    try:
        assert environment.tool("t").data == 5
        assert environment.get("/").data["name"] == "alone"
    finally:
        environment.stop()


def test_the_envelope_of_an_error_is_stable(env: Environment) -> None:
    envelope: dict[str, Any] = json.loads(env.tool("eco").body)
    assert set(envelope) == {"success", "error", "code", "retryable", "hint", "details"}
