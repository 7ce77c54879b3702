"""Arbitrary requests: never a failure of our own, never a dead server, never a hang."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import MODERN, MODERN_META, Environment, open_environment, write_project
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SOURCE = '''
from typing import Any, Literal
from pydantic import BaseModel
from aenv import Context, register_function, register_health, register_reward, register_tool

class Deep(BaseModel):
    text: str
    inner: "Deep | None" = None

@register_tool
def echo(value: Any = None) -> Any:
    """Return it."""
    return value

@register_tool
def typed(a: int, b: list[float] = [], c: Literal["x", "y"] = "x", d: Deep | None = None) -> dict:
    """Take all kinds."""
    return {"a": a, "b": b, "c": c}

@register_tool
def says(text: str, ctx: Context) -> str:
    """Report."""
    ctx.report_progress(1)
    ctx.info(text)
    return text

@register_tool
async def later(n: int = 0) -> int:
    """Count on."""
    return n + 1

@register_reward
def reward(points: float = 0) -> float:
    """Score."""
    return points

@register_function(endpoint="/things/{name}", method="GET")
def thing(name: str, n: int = 0) -> str:
    """Name it."""
    return name * min(abs(n), 3)

@register_function
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

@register_health
def health(part: str = "") -> bool:
    """Fine."""
    return True
'''

# What is the author's fault or the caller's may be refused; what is ours must not happen.
OURS = ("server.defect", -32603)

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=8)  # fmt: skip  # noqa: E501
names = st.sampled_from(["echo", "typed", "says", "later", "reward", "thing", "add"]) | st.text(max_size=12)
paths = st.one_of(
    st.builds("/tools/{}".format, names),
    st.builds("/functions/{}".format, names),
    st.builds("/task/reward/{}".format, names),
    st.builds("/things/{}".format, st.text(max_size=12)),
    st.sampled_from(["/", "/health", "/tools", "/functions/list", "/task/reward", "/mcp", "/inspector/"]),
    st.text(max_size=30).map(lambda text: f"/{text}"),
)
bodies = st.one_of(
    values.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({}, optional={"a": values, "b": values, "value": values, "text": values}).map(
        lambda value: json.dumps(value).encode()
    ),
    st.binary(max_size=60),
)
methods = st.sampled_from(
    ["tools/call", "tools/list", "initialize", "ping", "logging/setLevel", "server/discover", "notifications/cancelled"]
) | st.text(max_size=12)
versions = st.sampled_from([MODERN, "2025-11-25", "2024-11-05", "", "x"])
metas = st.fixed_dictionaries(
    {},
    optional={
        "progressToken": values,
        "aenv/callId": values,
        "aenv/timeout": values,
        "io.modelcontextprotocol/protocolVersion": versions | values,
        "io.modelcontextprotocol/clientCapabilities": values,
        "io.modelcontextprotocol/logLevel": values,
    },
)
params = st.one_of(
    values,
    st.fixed_dictionaries(
        {},
        optional={
            "name": names | values,
            "arguments": st.dictionaries(st.sampled_from(["a", "b", "c", "d", "n", "text", "value"]), values) | values,
            "_meta": metas | values | st.just(MODERN_META),
            "level": values,
            "requestId": values,
            "protocolVersion": versions | values,
            "capabilities": values,
            "cursor": values,
        },
    ),
)
messages = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={"id": st.integers() | st.text(max_size=5) | values, "method": methods | values, "params": params},
)

FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=False
)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = open_environment(write_project(tmp_path_factory.mktemp("fuzz"), SOURCE), "--inspector")
    yield environment
    assert environment.get("/health").status == 200
    assert environment.tool("echo", {"value": 1}).data == 1
    environment.stop()
    assert not [line for line in environment.log if "Traceback" in line or "defect" in line]


def ask(env: Environment, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
    """The status and what the JSON body says; ten seconds without an answer are a hang."""
    connection = http.client.HTTPConnection("127.0.0.1", env.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    is_json = response.headers.get_content_type() == "application/json" and method != "HEAD"
    return response.status, json.loads(text) if is_json and text else None


def quote(path: str) -> str:
    """What a client may put into a request line; anything but blanks and control characters."""
    kept = "".join(sign for sign in path if sign.isprintable() and sign != " ")
    return kept.encode("utf-8").decode("latin-1").replace("\x85", "").replace("\xa0", "").replace("\xad", "")


@FUZZ
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]),
    path=paths,
    query=st.text(alphabet="abcn=&[]{}%\"'0123 ", max_size=30),
    body=bodies,
    key=st.none() | st.text(alphabet="abc", max_size=3),
)
def test_no_route_fails_by_itself(
    env: Environment, method: str, path: str, query: str, body: bytes, key: str | None
) -> None:
    headers = {"content-type": "application/json", "accept": "application/json"}
    if key is not None:
        headers["idempotency-key"] = key
    target = quote(path) + (f"?{quote(query)}" if query else "")
    try:
        target.encode("ascii")
    except UnicodeEncodeError:
        target = "/" + target.encode("latin-1").hex()
    status, answer = ask(env, method, target, body, headers)
    assert 200 <= status < 600
    if isinstance(answer, dict) and answer.get("success") is False:
        assert answer["code"] not in OURS, answer
        assert answer["error"]
    assert status < 500 or answer is None or "code" in answer


@FUZZ
@given(
    message=messages | values,
    version=st.none() | versions,
    mirrored=st.booleans(),
    session=st.none() | st.just("mcp_x"),
)
def test_no_json_rpc_message_fails_by_itself(
    env: Environment, message: Any, version: str | None, mirrored: bool, session: str | None
) -> None:
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    if version is not None:
        headers["mcp-protocol-version"] = version
    if session is not None:
        headers["mcp-session-id"] = session
    if (
        mirrored
        and isinstance(message, dict)
        and isinstance(message.get("method"), str)
        and message["method"].isascii()
    ):
        headers["mcp-method"] = "".join(sign for sign in message["method"] if sign.isprintable())
        inner = message.get("params")
        if isinstance(inner, dict) and isinstance(inner.get("name"), str) and inner["name"].isascii():
            headers["mcp-name"] = "".join(sign for sign in inner["name"] if sign.isprintable())
    status, answer = ask(env, "POST", "/mcp", json.dumps(message).encode(), headers)
    assert status in (200, 202, 400, 404, 405, 409)
    if isinstance(answer, dict) and "error" in answer:
        assert answer["error"]["code"] not in OURS, (message, answer)


@FUZZ
@given(data=st.binary(max_size=400) | st.text(max_size=200).map(lambda text: f"GET /{text}\r\n\r\n".encode()))
def test_no_bytes_kill_the_server(env: Environment, data: bytes) -> None:
    with env.connect() as connection:
        connection.sendall(data)
        connection.settimeout(0.05)
        try:
            connection.recv(65536)
        except (TimeoutError, ConnectionResetError):
            # Half a request is waited for; that is right, and nothing to wait for here.
            return
