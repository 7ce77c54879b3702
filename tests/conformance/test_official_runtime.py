"""The official `mcp` package as the server of `/mcp`: what it adds, and that nothing else is different."""

from __future__ import annotations

import importlib.util
import json
import re
import resource
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MODERN, MODERN_META, Environment, in_parallel, later, open_environment, wait_for, write_project
from parts import ROOT, node, npm_packages, python_with
from test_official_clients import EXPECTED, MCP_1, MCP_2, run
from test_official_clients import SOURCE as CLIENTS_SOURCE

from aenv import extend_mcp
from aenv.build.serving import StartFailed
from aenv.errors import DefinitionError

FIXTURE = ROOT / "tests" / "fixtures" / "conformance_official"
OFFICIAL = {"deployConfig": {"sandbox": {"mcpRuntime": "official"}}}
Serve = Callable[..., Environment]

pytestmark = pytest.mark.timeout(300)

SOURCE = '''
import time
from mcp.server import MCPServer
from mcp.server.mcpserver import Context as McpContext
from mcp.types import Completion
from pydantic import BaseModel
from aenv import Context, extend_mcp, get_registry, register_health, register_tool

counted = 0
waiting = []
cancelled = []

@register_tool
def count() -> int:
    """Count up."""
    global counted
    counted += 1
    time.sleep(0.05)
    return counted

@register_tool
def nap(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"

@register_tool
def wait(name: str, ctx: Context) -> None:
    """Wait until nobody wants the result any more."""
    ctx.report_progress(0)
    waiting.append(name)
    try:
        while True:
            ctx.raise_if_cancelled()
            time.sleep(0.01)
    finally:
        cancelled.append(name)

@register_tool
def who_waits() -> list[str]:
    """Tell whose calls began."""
    return waiting

@register_tool
def who_was_cancelled() -> list[str]:
    """Tell whose calls ended early."""
    return cancelled

@register_tool
def chat(messages: int, size: int, ctx: Context) -> str:
    """Log a lot."""
    for number in range(messages):
        ctx.info(f"{number} " + "x" * size)
    return "said"

@register_tool(timeout=0.2)
def hang() -> None:
    """Take too long."""
    time.sleep(5)

@register_tool
def learn(name: str) -> str:
    """Make another tool."""
    get_registry().add_tool(lambda: "new", name=name, description="It was not there before.")
    return name

class Colour(BaseModel):
    name: str

@extend_mcp
def extend(server: MCPServer) -> None:
    @server.prompt()
    def review(code: str) -> str:
        """Ask for a review."""
        return f"Review this: {code}"

    @server.resource("notes://{name}")
    def note(name: str) -> str:
        """A note."""
        return f"the note {name}"

    @server.completion()
    async def complete(ref, argument, context):
        return Completion(values=[argument.value + "..."])

    @server.tool()
    async def paint(ctx: McpContext) -> str:
        """Ask for a colour."""
        chosen = await ctx.elicit("Which colour?", Colour)
        return f"painted {chosen.data.name}"
'''

CLIENT = """
import asyncio, json
from mcp import Client
from mcp.types import ElicitResult, PromptReference

async def choose(context, params):
    return ElicitResult(action="accept", content={"name": "red"})

async def main(url, mode):
    async with Client(url, mode=mode, elicitation_callback=choose) as client:
        prompt = await client.get_prompt("review", {"code": "x = 1"})
        note = await client.read_resource("notes://milk")
        completion = await client.complete(PromptReference(name="review"), {"name": "code", "value": "de"})
        print(json.dumps({
            "tools": sorted(tool.name for tool in (await client.list_tools()).tools),
            "prompts": [each.name for each in (await client.list_prompts()).prompts],
            "prompt": prompt.messages[0].content.text,
            "note": note.contents[0].text,
            "completion": completion.completion.values,
            "count": (await client.call_tool("nap", {"seconds": 0})).structured_content,
            "paint": (await client.call_tool("paint", {})).content[0].text if mode == "legacy" else None,
            "unknown": await unknown(client),
        }))

async def unknown(client):
    try:
        result = await client.call_tool("cuont", {})
    except Exception as problem:
        return str(problem)
    return result.content[0].text

asyncio.run(main("URL", "MODE"))
"""


@pytest.fixture(scope="module")
def python() -> Path:
    """An interpreter that has aenv with its extra, as an author would install it."""
    return python_with("official", f"--editable={ROOT}[mcp]", "mcp==2.3.0")


@pytest.fixture(scope="module")
def start(python: Path) -> Iterator[Serve]:
    """Serve a project with that interpreter."""
    opened: list[Environment] = []

    def serve(project: Path, *options: str) -> Environment:
        opened.append(open_environment(project, *options, python=str(python)))
        return opened[-1]

    yield serve
    for environment in opened:
        environment.stop()


@pytest.fixture(scope="module")
def env(start: Serve, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return start(write_project(tmp_path_factory.mktemp("official"), SOURCE, OFFICIAL))


def open_session(env: Environment, **capabilities: object) -> dict[str, str]:
    """The headers of a client of the session era that has shaken hands."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    answer = env.rpc("initialize", hello)
    headers = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
    accept = {"accept": "application/json, text/event-stream"}
    assert env.post("/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers={**accept, **headers})
    return headers


def in_vain(start: Serve, folder: Path, source: str, *options: str) -> StartFailed:
    """How the server refuses to start."""
    with pytest.raises(StartFailed) as refused:
        start(write_project(folder, source, OFFICIAL), *options)
    return refused.value


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_the_official_client_finds_what_the_author_added(
    env: Environment, python: Path, tmp_path: Path, mode: str
) -> None:
    found = run([python], CLIENT.replace("URL", f"{env.url}/mcp").replace("MODE", mode), tmp_path, ".py")

    assert {"count", "nap", "paint"} <= set(found.pop("tools"))
    assert "Unknown tool: cuont (did you mean 'count'?)" in found.pop("unknown")
    assert found == {
        "prompts": ["review"],
        "prompt": "Review this: x = 1",
        "note": "the note milk",
        "completion": ["de..."],
        "count": {"result": "awake"},
        "paint": "painted red" if mode == "legacy" else None,
    }


@pytest.mark.parametrize(
    ("client", "script", "large"),
    [
        ("mcp==1.30.0", MCP_1, 10_000_000),
        ("mcp==2.3.0", MCP_2.replace("MODE", "auto"), 10_000_000),
        ("mcp==2.3.0", MCP_2.replace("MODE", "2026-07-28"), 10_000_000),
        # In sessions the package answers with events alone, and its own newer client takes none above 1 MiB.
        ("mcp==2.3.0", MCP_2.replace("MODE", "legacy").replace("10_000_000", "500_000"), 500_000),
    ],
    ids=["1.30", "2.3-auto", "2.3-modern", "2.3-legacy"],
)
def test_clients_cannot_tell_which_runtime_answers(
    start: Serve, tmp_path: Path, client: str, script: str, large: int
) -> None:
    served = start(write_project(tmp_path / "project", CLIENTS_SOURCE), "--runtime", "official")
    python = python_with("mcp1" if client == "mcp==1.30.0" else "mcp2", client)

    found = run([python], script.replace("URL", f"{served.url}/mcp"), tmp_path, ".py")

    assert found == {**EXPECTED, "large": large}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
def test_the_public_suite_passes(start: Serve, tmp_path: Path, revision: str) -> None:
    packages = npm_packages()
    suite = packages / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    command = [str(node(packages)), str(suite), "server", "--url", f"{start(FIXTURE).url}/mcp"]
    command += ["--requirements", revision, "--output-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    failed = re.findall(r"^✗ ([a-z0-9-]+): ", report, re.MULTILINE)
    passed = re.findall(r"^✓ ([a-z0-9-]+): [1-9]", report, re.MULTILINE)

    # The package has no tasks in 2.3; the suite does not score them.
    assert [name for name in failed if not name.startswith("tasks-")] == [], report
    assert {"prompts-get-simple", "resources-read-text", "completion-complete", "tools-call-image"} <= set(passed)
    assert done.returncode == 0, report


def test_the_page_about_it_shows_what_happens(start: Serve, python: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "howto" / "official-runtime.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (config,) = [json.loads(text) for language, text in blocks if language == "json"]
    library, client, burning = [text for language, text in blocks if language == "python"]
    (shown,) = [text for language, text in blocks if language == "text"]
    project = write_project(tmp_path, library, config)
    (project / "src" / "burning.py").write_text(burning)

    env = start(project)
    done = subprocess.run(
        [python, "-c", client.replace("http://127.0.0.1:8081", env.url)], capture_output=True, text=True, check=False
    )

    assert done.stdout == shown, done.stderr
    assert [tool["name"] for tool in env.modern("tools/list").messages[-1]["result"]["tools"]] == ["search", "burn"]


def test_a_call_id_means_one_call_whoever_repeats_it(env: Environment) -> None:
    before = env.tool("count").data
    session = open_session(env)
    params = {"name": "count", "arguments": {}, "_meta": {"aenv/callId": "once"}}

    answers = in_parallel(
        lambda: env.modern("tools/call", params).messages[-1]["result"]["structuredContent"]["result"],
        lambda: env.rpc("tools/call", params, headers=session).messages[-1]["result"]["structuredContent"]["result"],
        lambda: env.tool("count", headers={"idempotency-key": "once"}).data,
    )

    assert answers == [before + 1] * 3
    assert env.tool("count").data == before + 2
    conflict = env.modern("tools/call", {**params, "name": "nap", "arguments": {"seconds": 0}}).messages[-1]["error"]
    assert conflict["data"]["code"] == "call.conflict"


def test_a_sleeping_tool_is_in_nobodys_way(env: Environment) -> None:
    asleep = later(lambda: env.modern("tools/call", {"name": "nap", "arguments": {"seconds": 1.5}}))
    assert env.get("/health").data["status"] == "success"
    assert "result" in env.modern("tools/call", {"name": "nap", "arguments": {"seconds": 0}}).messages[-1]
    assert not asleep.done()
    assert asleep.result(10).messages[-1]["result"]["content"][0]["text"] == "awake"


def test_a_tool_that_hangs_is_given_up(env: Environment) -> None:
    result = env.modern("tools/call", {"name": "hang", "arguments": {}}).messages[-1]["result"]

    assert result["isError"] is True
    assert result["_meta"]["aenv/error"]["code"] == "tool.timed_out"


def send_modern(raw: socket.socket, method: str, params: dict[str, Any]) -> None:
    """A request of the newest revision on a raw connection."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method}
    body = json.dumps({**message, "params": {**params, "_meta": {**MODERN_META, **params.get("_meta", {})}}}).encode()
    headers = {
        "host": "localhost",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
        "mcp-protocol-version": MODERN,
        "mcp-method": method,
        "mcp-name": params.get("name", ""),
    }
    send_head(raw, "POST", headers)
    raw.sendall(body)


def send_head(raw: socket.socket, method: str, headers: dict[str, str]) -> None:
    lines = [f"{method} /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value), "", ""]
    raw.sendall("\r\n".join(lines).encode())


def first_line(raw: socket.socket, words: str) -> str:
    """The first line of a raw answer that holds these words."""
    with raw.makefile("r") as lines:
        return next(line for line in lines if words in line)


def hang_up_on(env: Environment, name: str, **meta: object) -> None:
    """Call `wait`, read that it runs, and leave."""
    with env.connect() as raw:
        meta["progressToken"] = name
        send_modern(raw, "tools/call", {"name": "wait", "arguments": {"name": name}, "_meta": meta})
        first_line(raw, "notifications/progress")


def test_a_client_that_hangs_up_cancels_its_call(env: Environment) -> None:
    hang_up_on(env, "left")

    wait_for(lambda: "left" in env.tool("who_was_cancelled").data)


def test_a_call_with_an_id_goes_on_when_its_client_hangs_up(env: Environment) -> None:
    hang_up_on(env, "named", **{"aenv/callId": "named", "aenv/timeout": 1.5})
    hang_up_on(env, "unnamed")
    wait_for(lambda: "unnamed" in env.tool("who_was_cancelled").data)

    assert "named" not in env.tool("who_was_cancelled").data
    again = env.modern(
        "tools/call", {"name": "wait", "arguments": {"name": "named"}, "_meta": {"aenv/callId": "named"}}
    )
    assert again.messages[-1]["result"]["_meta"]["aenv/error"]["code"] == "tool.timed_out"


def test_a_session_cancels_its_call_by_a_notification(env: Environment) -> None:
    session = open_session(env)
    called = later(lambda: env.rpc("tools/call", {"name": "wait", "arguments": {"name": "s"}}, id_=7, headers=session))
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    wait_for(lambda: "s" in env.tool("who_waits").data)

    env.post("/mcp", cancel, headers={"accept": "application/json, text/event-stream", **session})

    wait_for(lambda: "s" in env.tool("who_was_cancelled").data)
    assert called.result(10).messages[-1]["error"]["code"] == -32800


def test_a_session_hears_what_its_level_lets_through(env: Environment) -> None:
    session = open_session(env)
    call = {"name": "chat", "arguments": {"messages": 2, "size": 1}}

    everything = env.rpc("tools/call", call, headers=session).messages
    env.rpc("logging/setLevel", {"level": "error"}, headers=session)
    errors = env.rpc("tools/call", call, headers=session).messages

    assert [message["params"]["data"] for message in everything[:-1]] == ["0 x", "1 x"]
    assert len(errors) == 1


def test_a_client_that_reads_slowly_gets_its_result_and_fills_no_memory(env: Environment) -> None:
    call = {"name": "chat", "arguments": {"messages": 30_000, "size": 5_000}}
    params = {**call, "_meta": {"io.modelcontextprotocol/logLevel": "info"}}
    with env.connect() as raw:
        send_modern(raw, "tools/call", params)
        assert env.get("/health").status == 200
        # Nothing tells from outside that the tool has said it all.
        env.tool("nap", {"seconds": 3})
        held = resident(env)
        read = bytearray()
        while b'"said"' not in read[-20_000:]:
            chunk = raw.recv(1 << 20)
            assert chunk, "the connection was closed before the result came"
            read += chunk

    # All that the tool said is 150 MB.
    assert held < 150_000_000
    assert read.count(b"notifications/message") < 30_000


def resident(env: Environment) -> int:
    """Bytes that the server holds."""
    return int(Path(f"/proc/{env.served.pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_new_tool_is_announced_to_both_eras(env: Environment) -> None:
    with env.connect() as old, env.connect() as new:
        send_head(old, "GET", {"host": "localhost", "accept": "text/event-stream", **open_session(env)})
        send_modern(new, "subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        first_line(old, "text/event-stream")
        first_line(new, "subscriptions/acknowledged")

        env.tool("learn", {"name": "learnt"})

        assert json.loads(first_line(old, "tools/list_changed")[5:])["params"] == {}
        assert "io.modelcontextprotocol/subscriptionId" in first_line(new, "tools/list_changed")


def test_web_pages_of_elsewhere_are_kept_out(env: Environment) -> None:
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        refused = env.rpc("initialize", headers=headers)
        assert (refused.status, refused.json["code"]) == (403, "request.forbidden_origin")


def test_it_ends_while_clients_wait_for_news(start: Serve, tmp_path: Path) -> None:
    env = start(write_project(tmp_path, SOURCE, OFFICIAL))
    with env.connect() as raw:
        send_head(raw, "GET", {"host": "localhost", "accept": "text/event-stream", **open_session(env)})
        first_line(raw, "text/event-stream")
        slow = later(lambda: env.modern("tools/call", {"name": "nap", "arguments": {"seconds": 0.5}}))
        assert env.tool("nap", {"seconds": 0.1}).data == "awake"
        env.served.process.terminate()
        assert env.served.process.wait(10) == 0
    assert slow.result(1).messages[-1]["result"]["content"][0]["text"] == "awake"
    assert not [line for line in env.log if "ERROR" in line]


def test_a_failing_extension_is_told_in_the_authors_frames(start: Serve, tmp_path: Path) -> None:
    source = "from aenv import extend_mcp\n@extend_mcp\ndef extend(server):\n    server.no_such_thing()\n"

    refused = in_vain(start, tmp_path, source)

    assert refused.message.startswith("@extend_mcp extend: AttributeError: 'MCPServer' object has no attribute")
    assert any("author.py" in str(line) for line in refused.details["traceback"])  # type: ignore[attr-defined] # lines


def test_an_extension_is_a_plain_function() -> None:
    async def extend(server: object) -> None: ...

    with pytest.raises(DefinitionError, match="cannot extend the MCP server"):
        extend_mcp(extend)


def test_one_name_for_two_tools_is_refused(start: Serve, tmp_path: Path) -> None:
    source = """
from aenv import extend_mcp, register_tool

@register_tool
def add(a: int) -> int:
    return a

@extend_mcp
def extend(server):
    server.add_tool(lambda: 1, name="add")
"""
    assert "'add' is registered with @register_tool and with @server.tool" in in_vain(start, tmp_path, source).message


def test_a_route_beside_mcp_is_refused(start: Serve, tmp_path: Path) -> None:
    source = """
from aenv import extend_mcp

@extend_mcp
def extend(server):
    @server.custom_route("/status", methods=["GET"])
    async def status(request):
        return None
"""
    refused = in_vain(start, tmp_path, source)

    assert "'/status'" in refused.message
    assert "@register_function(endpoint='/status')" in str(refused.hint)


def test_the_core_refuses_a_project_that_extends_the_official_server(tmp_path: Path) -> None:
    source = "from aenv import extend_mcp\n@extend_mcp\ndef more_prompts(server):\n    pass\n"

    with pytest.raises(StartFailed) as refused:
        open_environment(write_project(tmp_path, source))

    assert "@extend_mcp more_prompts" in refused.value.message
    assert '"mcpRuntime": "official"' in str(refused.value.hint)
    assert refused.value.details["cause"] == "config.invalid"


def test_a_missing_package_is_a_sentence(tmp_path: Path) -> None:
    if importlib.util.find_spec("mcp") is not None:
        pytest.skip("this interpreter has mcp; try `make test-all`, whose .venv has not")

    with pytest.raises(StartFailed) as refused:
        open_environment(write_project(tmp_path, "", OFFICIAL))

    assert refused.value.message == "the official MCP runtime needs the extra: pip install 'aenvironment[mcp]'"


def test_an_unknown_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="mcpRuntime is 'fast'"):
        open_environment(write_project(tmp_path, "", {"deployConfig": {"sandbox": {"mcpRuntime": "fast"}}}))
