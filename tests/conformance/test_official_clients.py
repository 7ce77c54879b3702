"""The official MCP clients against our core: Python 1.30 and 2.3, TypeScript 1.x and 2.x, and the published SDK."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Environment, open_environment, wait_for, write_project
from parts import node, npm_packages, python_with

from aenv.build.ports import port_holder

SOURCE = '''
from aenv import Context, Image, register_function, register_health, register_reward, register_tool

@register_tool
def add(a: int, b: int = 1) -> dict[str, int]:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return {"sum": a + b}

@register_tool
def greet(name: str) -> str:
    """Greet."""
    return f"Grüß dich, {name}"

@register_tool
def picture() -> Image:
    """Return a picture."""
    return Image(b"abc")

@register_tool
def broken() -> None:
    """Fail."""
    raise ValueError("out of luck")

@register_tool
def steps(ctx: Context) -> str:
    """Report progress."""
    for step in range(3):
        ctx.report_progress(step, 3, f"step {step}")
    return "done"

@register_tool
def echo(text: str) -> str:
    """Return it."""
    return text

@register_function
def double(n: int) -> int:
    """Double."""
    return 2 * n

@register_reward
def reward(answer: int) -> float:
    """One for forty-two."""
    return 1.0 if answer == 42 else 0.0

@register_health
def health() -> dict:
    """Fine."""
    return {"status": "healthy", "note": "fine"}
'''

EXPECTED = {
    "tools": ["add", "broken", "echo", "greet", "picture", "steps"],
    "add": {"sum": 42},
    "greet": "Grüß dich, Łukasz",
    "picture": ["image", "image/png", "YWJj"],
    "broken": [True, "Error calling tool 'broken': out of luck"],
    "steps": [0, 1, 2],
    "large": 10_000_000,
}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = open_environment(write_project(tmp_path_factory.mktemp("clients"), SOURCE))
    yield environment
    environment.stop()


def run(command: list[str | Path], script: str, tmp_path: Path, ending: str, **environ: str) -> Any:
    """What a script of another program prints as its last line."""
    file = tmp_path / f"script{ending}"
    file.write_text(textwrap.dedent(script))
    done = subprocess.run([*command, file], capture_output=True, text=True, env=environ, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


MCP_1 = """
import asyncio, json, sys
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

async def main(url):
    async with streamable_http_client(url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        listed = await session.list_tools()
        add = await session.call_tool("add", {"a": 40, "b": 2})
        greet = await session.call_tool("greet", {"name": "Łukasz"})
        picture = (await session.call_tool("picture", {})).content[0]
        broken = await session.call_tool("broken", {})
        seen = []
        async def progress(done, total, message):
            seen.append(int(done))
        await session.call_tool("steps", {}, progress_callback=progress)
        large = await session.call_tool("echo", {"text": "x" * 10_000_000})
        print(json.dumps({
            "tools": sorted(tool.name for tool in listed.tools), "add": add.structuredContent,
            "greet": greet.content[0].text, "picture": [picture.type, picture.mimeType, picture.data],
            "broken": [broken.isError, broken.content[0].text], "steps": seen, "large": len(large.content[0].text),
        }))

asyncio.run(main("URL"))
"""

MCP_2 = """
import asyncio, json
from mcp import Client

async def main(url, mode):
    async with Client(url, mode=mode) as client:
        listed = await client.list_tools()
        add = await client.call_tool("add", {"a": 40, "b": 2})
        greet = await client.call_tool("greet", {"name": "Łukasz"})
        picture = (await client.call_tool("picture", {})).content[0]
        broken = await client.call_tool("broken", {})
        seen = []
        async def progress(done, total, message):
            seen.append(int(done))
        await client.call_tool("steps", {}, progress_callback=progress)
        large = await client.call_tool("echo", {"text": "x" * 10_000_000})
        print(json.dumps({
            "tools": sorted(tool.name for tool in listed.tools), "add": add.structured_content,
            "greet": greet.content[0].text, "picture": [picture.type, picture.mime_type, picture.data],
            "broken": [broken.is_error, broken.content[0].text], "steps": seen, "large": len(large.content[0].text),
        }))

asyncio.run(main("URL", "MODE"))
"""


@pytest.mark.timeout(300)
def test_the_python_client_of_the_session_era(env: Environment, tmp_path: Path) -> None:
    python = python_with("mcp1", "mcp==1.30.0")
    assert run([python], MCP_1.replace("URL", f"{env.url}/mcp"), tmp_path, ".py") == EXPECTED


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
def test_the_python_client_of_the_new_era(env: Environment, tmp_path: Path, mode: str) -> None:
    python = python_with("mcp2", "mcp==2.3.0")
    assert run([python], MCP_2.replace("URL", f"{env.url}/mcp").replace("MODE", mode), tmp_path, ".py") == EXPECTED


TYPESCRIPT = """
import {{ Client }} from "{client}";
import {{ StreamableHTTPClientTransport }} from "{transport}";

const client = new Client({{ name: "test", version: "1.0.0" }});
await client.connect(new StreamableHTTPClientTransport(new URL("{url}")));
const text = (result) => result.content[0].text;
const listed = await client.listTools();
const add = await client.callTool({{ name: "add", arguments: {{ a: 40, b: 2 }} }});
const greet = await client.callTool({{ name: "greet", arguments: {{ name: "Łukasz" }} }});
const picture = (await client.callTool({{ name: "picture", arguments: {{}} }})).content[0];
const broken = await client.callTool({{ name: "broken", arguments: {{}} }});
const seen = [];
const onprogress = (progress) => seen.push(progress.progress);
const call = {{ name: "steps", arguments: {{}} }};
await client.callTool(call, ...{steps});
const large = await client.callTool({{ name: "echo", arguments: {{ text: "x".repeat(10_000_000) }} }});
console.log(JSON.stringify({{
  tools: listed.tools.map((tool) => tool.name).sort(), add: add.structuredContent, greet: text(greet),
  picture: [picture.type, picture.mimeType, picture.data], broken: [broken.isError, text(broken)], steps: seen,
  large: text(large).length,
}}));
await client.close();
process.exit(0);
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("client", "transport", "steps"),
    [
        (
            "@modelcontextprotocol/sdk/client/index.js",
            "@modelcontextprotocol/sdk/client/streamableHttp.js",
            "[undefined, { onprogress }]",
        ),
        ("@modelcontextprotocol/client", "@modelcontextprotocol/client", "[{ onprogress }]"),
    ],
    ids=["sdk-1", "client-2"],
)
def test_the_typescript_clients(env: Environment, client: str, transport: str, steps: str) -> None:
    packages = npm_packages()
    script = TYPESCRIPT.format(client=client, transport=transport, steps=steps, url=f"{env.url}/mcp")
    assert run([node(packages)], script, packages, ".mjs") == EXPECTED


PUBLISHED = """
import asyncio, json, logging, os
logging.disable(logging.CRITICAL)
from aenv import Environment

async def main():
    async with Environment("probe@1.2.3") as env:
        listed = await env.list_tools()
        add = await env.call_tool("probe@1.2.3/add", {"a": 40, "b": 2})
        broken = await env.call_tool("broken", {})
        functions = await env.list_functions()
        print(json.dumps({
            "tools": sorted(tool["name"] for tool in listed), "add": [add.content, add.is_error],
            "broken": [broken.content, broken.is_error], "double": await env.call_function("double", {"n": 4}),
            "reward": await env.call_reward({"answer": 42}), "functions": functions["total"],
            "health": (await env.check_health({}))["data"]["note"],
        }))

asyncio.run(main())
"""


@pytest.mark.timeout(300)
def test_the_published_sdk_reaches_a_served_project(tmp_path: Path) -> None:
    """It only knows port 8081, so the environment is served there."""
    python = python_with("aenvironment-0.1.7", "aenvironment==0.1.7")
    wait_for(lambda: port_holder(8081) is None, 60)
    environment = open_environment(write_project(tmp_path / "project", SOURCE), "--port", "8081")
    try:
        found = run([python], PUBLISHED, tmp_path, ".py", DUMMY_INSTANCE_IP="http://127.0.0.1", PATH="")
    finally:
        environment.stop()
    assert found == {
        "tools": [f"probe@1.2.3/{name}" for name in EXPECTED["tools"]],  # type: ignore[attr-defined] # a list of names
        "add": [[{"type": "text", "text": '{"sum":42}'}], False],
        "broken": [[{"type": "text", "text": "Error calling tool 'broken': out of luck"}], True],
        "double": 8,
        "reward": 1.0,
        "functions": 3,
        "health": "fine",
    }
