"""The MCP endpoint, message by message, in both eras."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MODERN, MODERN_META, Answer, Environment, later, open_environment, write_project

SOURCE = '''
import time
from typing import Any, Literal
from aenv import Context, Image, get_registry, register_tool

@register_tool(annotations={"readOnlyHint": True})
def echo(value: Any) -> Any:
    """Return what was given."""
    return value

@register_tool
def table(rows: int) -> dict[str, int]:
    """Return an object."""
    return {"rows": rows}

@register_tool
def number() -> int:
    """Return a number."""
    return 7

@register_tool
def nothing() -> None:
    """Return nothing."""

@register_tool
def picture() -> Image:
    """Return a picture."""
    return Image(b"abc")

@register_tool
def broken() -> None:
    """Fail."""
    raise RuntimeError("out of luck")

@register_tool
def chatty(ctx: Context, level: Literal["debug", "info", "error"] = "info") -> str:
    """Report progress and log."""
    for step in range(3):
        ctx.report_progress(step, 3, f"step {step}")
    ctx.log(level, {"said": "hello"}, logger="chatty")
    return "done"

@register_tool
def grow() -> str:
    """Register another tool."""
    get_registry().add_tool(lambda: 1, name=f"grown_{len(get_registry().tools)}", description="New.")
    return "grown"

@register_tool
def bad_log(ctx: Context) -> None:
    """Log what is no JSON."""
    ctx.info(object())
'''


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = open_environment(write_project(tmp_path_factory.mktemp("mcp"), SOURCE, {"description": "Say so."}))
    yield environment
    environment.stop()


def call(env: Environment, name: str, arguments: dict[str, Any] | None = None, *, modern: bool, **meta: Any) -> Answer:
    params = {"name": name, "arguments": arguments or {}, "_meta": {key.replace("__", "/"): meta[key] for key in meta}}
    return env.modern("tools/call", params) if modern else env.rpc("tools/call", params)


def result(env: Environment, name: str, arguments: dict[str, Any] | None = None, *, modern: bool) -> dict[str, Any]:
    found: dict[str, Any] = call(env, name, arguments, modern=modern).messages[-1]["result"]
    assert (found.pop("resultType", None) == "complete") is modern
    return found


@pytest.mark.parametrize("version", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"])
def test_initialize_speaks_the_clients_revision(env: Environment, version: str) -> None:
    answer = env.rpc("initialize", {"protocolVersion": version, "capabilities": {}, "clientInfo": {}})
    assert answer.json["result"] == {
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        "serverInfo": {"name": "probe", "version": "1.2.3"},
        "instructions": "Say so.",
    }
    assert answer.headers["mcp-session-id"]


def test_an_unknown_revision_is_offered_the_newest_with_sessions(env: Environment) -> None:
    assert env.rpc("initialize", {"protocolVersion": "1999-01-01"}).json["result"]["protocolVersion"] == "2025-11-25"


def test_a_session_ends_and_is_then_unknown(env: Environment) -> None:
    session = env.rpc("initialize", {"protocolVersion": "2025-11-25"}).headers["mcp-session-id"]
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert env.post("/mcp", notice, headers=headers).status == 202
    assert env.rpc("ping", headers=headers).json["result"] == {}
    assert env.ask("DELETE", "/mcp", headers=headers).status == 200
    gone = env.rpc("ping", headers=headers)
    assert (gone.status, gone.json["error"]["message"]) == (404, "Session not found")
    assert env.ask("DELETE", "/mcp", headers=headers).status == 404
    assert env.ask("DELETE", "/mcp").status == 400


def test_discover_tells_revisions_capabilities_and_how_long_that_holds(env: Environment) -> None:
    found = env.modern("server/discover").json["result"]
    assert found["supportedVersions"][0] == MODERN
    assert found["capabilities"]["tools"] == {"listChanged": True}
    assert found["resultType"] == "complete"
    assert found["ttlMs"] > 0
    assert found["_meta"]["io.modelcontextprotocol/serverInfo"] == {"name": "probe", "version": "1.2.3"}


@pytest.mark.parametrize("modern", [False, True])
def test_tools_are_listed_with_schemas_and_hints(env: Environment, modern: bool) -> None:
    answer = env.modern("tools/list") if modern else env.rpc("tools/list")
    tools = {tool["name"]: tool for tool in answer.json["result"]["tools"]}
    assert tools["table"] == {
        "name": "table",
        "description": "Return an object.",
        "inputSchema": {
            "type": "object",
            "properties": {"rows": {"type": "integer"}},
            "required": ["rows"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "object", "additionalProperties": {"type": "integer"}},
    }
    assert tools["echo"]["annotations"] == {"readOnlyHint": True}
    assert "ctx" not in tools["chatty"]["inputSchema"]["properties"]


def test_a_cursor_that_we_never_gave_is_refused(env: Environment) -> None:
    assert env.rpc("tools/list", {"cursor": "2"}).json["error"]["code"] == -32602
    assert env.modern("tools/list", {"cursor": "2"}).json["error"]["code"] == -32602


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments", "content", "structured"),
    [
        ("table", {"rows": 2}, [{"type": "text", "text": '{"rows":2}'}], {"rows": 2}),
        ("number", {}, [{"type": "text", "text": "7"}], {"result": 7}),
        ("echo", {"value": "ä"}, [{"type": "text", "text": "ä"}], {"result": "ä"}),
        ("echo", {"value": ""}, [{"type": "text", "text": ""}], {"result": ""}),
        ("echo", {"value": [1]}, [{"type": "text", "text": "[1]"}], {"result": [1]}),
        ("echo", {"value": {"ü": 1}}, [{"type": "text", "text": '{"ü":1}'}], {"ü": 1}),
        ("nothing", {}, [], None),
        ("picture", {}, [{"type": "image", "data": "YWJj", "mimeType": "image/png"}], None),
    ],
)
def test_results_are_text_for_the_model_and_structure_for_the_program(
    env: Environment, modern: bool, name: str, arguments: dict[str, Any], content: object, structured: object
) -> None:
    found = result(env, name, arguments, modern=modern)
    assert found.pop("isError") is False
    assert found.pop("content") == content
    assert found.pop("structuredContent", None) == structured
    assert found == {}


@pytest.mark.parametrize("modern", [False, True])
def test_a_tool_that_fails_is_a_result_the_model_can_read(env: Environment, modern: bool) -> None:
    found = result(env, "broken", modern=modern)
    assert found["isError"] is True
    assert found["content"] == [{"type": "text", "text": "Error calling tool 'broken': out of luck"}]
    assert found["_meta"]["aenv/error"]["code"] == "tool.failed"
    assert found["_meta"]["aenv/error"]["details"]["type"] == "RuntimeError"


@pytest.mark.parametrize("modern", [False, True])
def test_wrong_arguments_are_told_to_the_model(env: Environment, modern: bool) -> None:
    found = result(env, "table", {"rows": "many", "x": 1}, modern=modern)
    assert found["isError"] is True
    assert "rows: input should be a valid integer" in found["content"][0]["text"]
    assert found["_meta"]["aenv/error"]["code"] == "arguments.invalid"


def test_an_invented_tool_name_is_readable_for_the_model_and_an_error_in_the_new_era(env: Environment) -> None:
    found = result(env, "tabl", modern=False)
    assert found["isError"] is True
    assert found["content"][0]["text"] == "Unknown tool: tabl (did you mean 'table'?)"
    error = call(env, "tabl", modern=True).json["error"]
    assert error["code"] == -32602
    assert "did you mean 'table'?" in error["message"]


@pytest.mark.parametrize("modern", [False, True])
def test_progress_and_logs_turn_the_answer_into_a_stream(env: Environment, modern: bool) -> None:
    meta: dict[str, Any] = {"progressToken": "p1"}
    if modern:
        meta["io.modelcontextprotocol__logLevel"] = "debug"
    answer = call(env, "chatty", modern=modern, **meta)
    assert answer.headers["content-type"] == "text/event-stream"
    *notices, final = answer.messages
    progress = [notice["params"] for notice in notices if notice["method"] == "notifications/progress"]
    assert progress == [
        {"progressToken": "p1", "progress": n, "total": 3, "message": f"step {n}"} for n in range(3)
    ]  # fmt: skip
    logs = [notice["params"] for notice in notices if notice["method"] == "notifications/message"]
    assert logs == [{"level": "info", "data": {"said": "hello"}, "logger": "chatty"}]
    assert final["result"]["content"][0]["text"] == "done"


def test_who_did_not_ask_hears_nothing(env: Environment) -> None:
    assert call(env, "chatty", modern=True).headers["content-type"] == "application/json"
    plain = env.post("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "chatty"}})
    assert plain.json["result"]["content"][0]["text"] == "done"


def test_a_sessions_log_level_filters(env: Environment) -> None:
    session = env.rpc("initialize", {"protocolVersion": "2025-11-25"}).headers["mcp-session-id"]
    headers = {"mcp-session-id": session}
    assert env.rpc("logging/setLevel", {"level": "error"}, headers=headers).json["result"] == {}
    quiet = env.rpc("tools/call", {"name": "chatty", "arguments": {"level": "info"}}, headers=headers)
    loud = env.rpc("tools/call", {"name": "chatty", "arguments": {"level": "error"}}, headers=headers)
    assert len(quiet.messages) == 1
    assert loud.messages[0]["params"]["level"] == "error"
    assert env.rpc("logging/setLevel", {"level": "loud"}, headers=headers).json["error"]["code"] == -32602


def test_a_log_message_that_is_no_json_fails_in_the_tool(env: Environment) -> None:
    answer = env.rpc("tools/call", {"name": "bad_log"})
    assert answer.json["result"]["isError"] is True
    assert "no JSON form" in answer.json["result"]["content"][0]["text"]


def read_events(env: Environment, request: bytes, count: int) -> list[Any]:
    events: list[Any] = []
    with env.connect() as connection:
        connection.sendall(request)
        buffer = b""
        while len(events) < count:
            buffer += connection.recv(65536)
            events = [json.loads(line[5:]) for line in buffer.split(b"\r\n") if line.startswith(b"data:")]
    return events


def test_a_waiting_session_hears_that_tools_changed(env: Environment) -> None:
    session = env.rpc("initialize", {"protocolVersion": "2025-11-25"}).headers["mcp-session-id"]
    head = f"GET /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nmcp-session-id: {session}\r\n\r\n"
    events = later(lambda: read_events(env, head.encode(), 1))
    while not events.done():
        assert env.tool("grow").data == "grown"
    assert events.result()[0]["method"] == "notifications/tools/list_changed"


def test_a_subscription_hears_what_it_asked_for_under_its_id(env: Environment) -> None:
    params = {"_meta": MODERN_META, "notifications": {"toolsListChanged": True, "promptsListChanged": True}}
    body = json.dumps({"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params}).encode()
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\ncontent-type: application/json\r\n"
        f"mcp-protocol-version: {MODERN}\r\nmcp-method: subscriptions/listen\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    events = later(lambda: read_events(env, head.encode() + body, 2))
    while not events.done():
        assert env.tool("grow").data == "grown"
    acknowledged, changed = events.result()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"] == {"toolsListChanged": True}
    assert changed["method"] == "notifications/tools/list_changed"
    assert changed["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "sub"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, -32700),
        (b"[]", 400, -32600),
        (b"3", 400, -32600),
        (b'{"jsonrpc":"2.0"}', 400, -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 400, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"prompts/list"}', 200, -32601),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', 400, -32602),
        (b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}', 400, -32602),
    ],
)
def test_what_is_no_request_gets_the_error_mcp_wants(env: Environment, body: bytes, status: int, code: int) -> None:
    answer = env.post("/mcp", body)
    assert (answer.status, answer.json["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("headers", "meta", "code"),
    [
        ({"mcp-protocol-version": ""}, {}, -32020),
        ({"mcp-protocol-version": "2025-11-25"}, {}, -32020),
        ({"mcp-method": "tools/call"}, {}, -32020),
        (
            {"mcp-protocol-version": "2030-01-01"},
            {"io.modelcontextprotocol/protocolVersion": "2030-01-01"},
            -32022,
        ),
        ({}, {"io.modelcontextprotocol/clientCapabilities": None}, -32602),
    ],
)
def test_headers_and_body_must_agree_in_the_new_era(
    env: Environment, headers: dict[str, str], meta: dict[str, Any], code: int
) -> None:
    answer = env.modern("tools/list", {"_meta": meta}, headers=headers)
    assert (answer.status, answer.json["error"]["code"]) == (400, code)
    assert answer.json["id"] == 1


def test_a_tools_name_may_travel_as_base64_in_its_header(env: Environment) -> None:
    params = {"name": "number"}
    assert env.modern("tools/call", params, headers={"mcp-name": "=?base64?bnVtYmVy?="}).json["result"]
    refused = env.modern("tools/call", params, headers={"mcp-name": "=?base64?!!?="})
    assert refused.json["error"]["code"] == -32020


def test_methods_and_media_types_are_checked(env: Environment) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert env.post("/mcp", ping, headers={"content-type": "text/plain"}).status == 400
    assert env.post("/mcp", ping, headers={"accept": "image/png"}).status == 406
    assert env.get("/mcp").status == 406
    assert env.get("/mcp", headers={"accept": "text/event-stream"}).status == 405
    answer = env.ask("PUT", "/mcp", ping)
    assert (answer.status, answer.headers["allow"]) == (405, "POST, GET, DELETE")


@pytest.mark.parametrize("meta", [{"aenv/callId": ""}, {"aenv/callId": 5}, {"aenv/timeout": 0}, {"aenv/timeout": "1s"}])
def test_our_own_meta_keys_are_checked(env: Environment, meta: dict[str, Any]) -> None:
    answer = env.rpc("tools/call", {"name": "number", "_meta": meta})
    assert answer.json["error"]["code"] == -32602


@pytest.mark.parametrize("modern", [False, True])
def test_ten_megabytes_travel_both_ways_over_mcp(env: Environment, modern: bool) -> None:
    text = "é" * (5 * 2**20)
    assert result(env, "echo", {"value": text}, modern=modern)["structuredContent"] == {"result": text}
