"""The whole way on one page: make an environment, check it, serve it, call it, reward it, start isolated instances.

`make demo` runs this. It needs nothing but the package itself, leaves nothing behind, and prints what happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from aenv.build.scaffold import scaffold
from aenv.build.serving import served
from aenv.engines.local.engine import LocalEngine
from aenv.engines.protocol import Launch
from aenv.model.spec import EnvSpec
from aenv.settings import EngineSettings

AENV = str(Path(sys.executable).with_name("aenv"))


def step(text: str) -> None:
    sys.stdout.write(f"\n\033[1m{text}\033[0m\n" if sys.stdout.isatty() else f"\n{text}\n")


def tell(name: str, value: object) -> None:
    sys.stdout.write(f"  {name:<38} {value}\n")
    sys.stdout.flush()


def post(url: str, body: dict[str, Any], **headers: str) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def mcp(url: str, method: str, params: dict[str, Any]) -> Any:
    headers = {"accept": "application/json, text/event-stream"}
    return post(f"{url}/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, **headers)["result"]


def author(folder: Path) -> Path:
    step("1. Author: a project from the `terminal` template")
    project = folder / "demo-terminal"
    for file in scaffold(project, "demo-terminal", "1.0.0", "terminal"):
        tell("wrote", file.relative_to(folder))
    return project


def validate(project: Path) -> None:
    step("2. Check it: configuration, imports, schemas, rewards, health, leaks")
    done = subprocess.run([AENV, "validate", str(project), "-o", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    report = json.loads(done.stdout)
    tell("findings", report["summary"])


def use(project: Path) -> None:
    step("3. Serve it, call its tools over MCP, ask for the reward")
    began = time.perf_counter()
    with served(project, log=lambda line: None) as server:
        tell("served in", f"{(time.perf_counter() - began) * 1000:.0f} ms at {server.url}")
        tell("tools", ", ".join(tool["name"] for tool in mcp(server.url, "tools/list", {})["tools"]))
        for command in ("mkdir work && cd work", "echo hello > greeting; cat greeting", "basename $PWD"):
            result = mcp(server.url, "tools/call", {"name": "execute_command", "arguments": {"command": command}})
            tell(f"$ {command}", result["structuredContent"]["output"].strip())
        reward = post(f"{server.url}/task/reward", {"command": "grep -q hello work/greeting"})
        tell("reward", reward["data"])
        step("4. The same call id runs once, however often it is sent")
        call = {"command": "echo once >> log; wc -l < log"}
        for _ in range(3):
            again = post(f"{server.url}/tools/execute_command", call, **{"idempotency-key": "demo-1"})
            tell("lines written", again["data"]["output"].strip())
        process = server.process
    tell("server ended with", process.returncode)


async def isolate(project: Path, folder: Path) -> None:
    step("5. Start instances of it: isolated, in milliseconds, each with its own files and processes")
    settings = EngineSettings(data=folder / "data", run=folder / "run")
    spec = EnvSpec.parse((project / "config.json").read_bytes()).with_changes(
        {"deployConfig": {"network": "no-network"}}
    )
    async with contextlib.aclosing(LocalEngine(settings)) as engine:
        handles = []
        for number in range(4):
            began = time.perf_counter()
            launch = Launch(f"ins_demo{number}", spec, project, digest="demo")
            handles.append(await engine.start(launch))
            what = "first, with everything to prepare" if number == 0 else f"instance {number + 1}"
            tell(what, f"{(time.perf_counter() - began) * 1000:.1f} ms")
            # The first one's imports are learned by then, and the next are forked off a process that has them.
            await asyncio.sleep(0.5 if number == 0 else 0)
        for number, handle in enumerate(handles[:2]):
            command = f"echo only here {number} > note; cat note; id -un; ls /proc | grep -c '^[0-9]'"
            result = await call(handle.address, "execute_command", {"command": command})
            tell(f"inside {handle.id}", " / ".join(result["output"].split("\n")).strip(" /"))
        reward = await call(handles[0].address, None, {"command": "grep -q 0 note"})
        tell("reward", reward)
        began = time.perf_counter()
        await asyncio.gather(*(engine.stop(handle) for handle in handles))
        tell("all four stopped in", f"{(time.perf_counter() - began) * 1000:.1f} ms; listed: {await engine.list()}")
    step("6. Nothing is left")
    tell("files in the run folder", list((folder / "run").iterdir()))


async def call(address: str, tool: str | None, arguments: dict[str, Any]) -> Any:
    """POST to an instance's unix socket: a tool, or the reward."""
    reader, writer = await asyncio.open_unix_connection(address.removeprefix("unix:"))
    body = json.dumps(arguments).encode()
    path = "/task/reward" if tool is None else f"/tools/{tool}"
    head = f"POST {path} HTTP/1.1\r\nhost: demo\r\ncontent-type: application/json\r\nconnection: close\r\n"
    writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])["data"]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="aenv-demo-") as folder:
        project = author(Path(folder))
        validate(project)
        use(project)
        asyncio.run(isolate(project, Path(folder)))
    step("Next: aenv init my-env && cd my-env && aenv run --inspector")


if __name__ == "__main__":
    main()
