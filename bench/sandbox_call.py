"""What does one MCP call cost on our sandbox server, beside the published one?   python bench/sandbox_call.py

Both servers load the same project (one echo tool) as plain processes, in turns, and are driven by the same raw client
over keep-alive connections in the session era of MCP. The server's CPU is read from the kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import cpu_seconds, machine, percentiles
from peer import published_client

TOOLS = '''
from aenv import register_tool


@register_tool
def echo(text: str) -> dict:
    """Return the text."""
    return {"text": text}
'''
HEADERS = (
    "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2025-11-25\r\n"
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(json.load(answer)["data"]["status"] in ("success", "healthy"))
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(command: list[str], port: int) -> Iterator[tuple[int, float]]:
    """The server's pid and how long it took from its start to a healthy answer."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not is_healthy(port):
                if process.poll() is not None or time.perf_counter() - began > 60:
                    raise RuntimeError(f"{command} did not become healthy")
                time.sleep(0.001)
            yield process.pid, time.perf_counter() - began
        finally:
            process.terminate()


class Client:
    """One session on one connection; knows just enough HTTP to find a response's end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._session = ""
        self._id = 0

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        parameters = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}}
        await self.ask("initialize", parameters)
        await self._exchange({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._id += 1
        body = await self._exchange({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        if body.startswith(b"{"):
            return json.loads(body)["result"]
        lines = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
        return json.loads(lines[-1])["result"]

    async def echo(self) -> None:
        result = await self.ask("tools/call", {"name": "echo", "arguments": {"text": "hello"}})
        assert result["structuredContent"] == {"text": "hello"}, result

    async def list(self) -> None:
        result = await self.ask("tools/list", {})
        assert result["tools"][0]["name"] == "echo", result

    def close(self) -> None:
        self._writer.close()

    async def _exchange(self, message: dict[str, Any]) -> bytes:
        body = json.dumps(message).encode()
        session = f"mcp-session-id: {self._session}\r\n" if self._session else ""
        self._writer.write(f"{HEADERS}{session}content-length: {len(body)}\r\n\r\n".encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith(("http/1.1 200", "http/1.1 202")), head
        for line in head.split("\r\n"):
            if line.startswith("mcp-session-id:"):
                self._session = line.partition(":")[2].strip()
        if "transfer-encoding: chunked" in head:
            return await self._chunks()
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        return await self._reader.readexactly(length)

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self._reader.readline(), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return b"".join(parts)


async def sequential(client: Client, ask: Callable[[Client], Any], n: int) -> list[float]:
    took = []
    for _ in range(n):
        began = time.perf_counter()
        await ask(client)
        took.append(time.perf_counter() - began)
    return took


async def measure(port: int, pid: int, n: int, sessions: int) -> dict[str, Any]:
    first = Client(port)
    await first.open()
    await sequential(first, Client.echo, 20)
    listed = await sequential(first, Client.list, n)
    cpu = cpu_seconds(pid)
    called = await sequential(first, Client.echo, n)
    cpu = cpu_seconds(pid) - cpu
    clients = [Client(port) for _ in range(sessions)]
    await asyncio.gather(*(client.open() for client in clients))
    each = max(4, n // 16)
    began = time.perf_counter()
    busy = cpu_seconds(pid)
    took = await asyncio.gather(*(sequential(client, Client.echo, each) for client in clients))
    busy = cpu_seconds(pid) - busy
    wall = time.perf_counter() - began
    for client in (first, *clients):
        client.close()
    return {
        "list_us": percentiles(listed),
        "call_us": percentiles(called),
        "call_cpu_us": round(cpu / n * 1e6, 1),
        f"call_{sessions}_us": percentiles([one for many in took for one in many]),
        f"calls_per_s_{sessions}": round(sessions * each / wall, 1),
        f"call_cpu_us_{sessions}": round(busy / (sessions * each) * 1e6, 1),
    }


def run(n: int, sessions: int, starts: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        source.mkdir()
        (source / "tools.py").write_text(TOOLS)
        ours = [sys.executable, "-m", "aenv.sandbox", folder]
        # The published server's health check is bound to this one port; elsewhere it never becomes healthy.
        theirs = [str(published_client()), "-m", "aenv.main", folder]
        started: dict[str, list[float]] = {"aenv": [], "aenvironment==0.1.7": []}
        results: dict[str, Any] = {}
        for turn in range(starts):
            for name, command in (("aenv", ours), ("aenvironment==0.1.7", theirs)):
                port = free_port() if name == "aenv" else 8081
                with running([*command, "--host", "127.0.0.1", "--port", str(port)], port) as (pid, took):
                    started[name].append(took)
                    if turn == starts - 1:
                        calls = n if name == "aenv" else max(50, n // 10)
                        results[name] = asyncio.run(measure(port, pid, calls, sessions))
        for name, seconds in started.items():
            results[name]["start_to_healthy_ms"] = percentiles(seconds, 1e3)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--starts", type=int, default=7)
    options = parser.parse_args()
    results = run(options.n, options.sessions, options.starts)
    ours, theirs = results["aenv"], results["aenvironment==0.1.7"]
    at_once = f"calls_per_s_{options.sessions}"
    ratio = {
        at_once: round(ours[at_once] / theirs[at_once], 1),
        "call_p50": round(theirs["call_us"]["p50"] / ours["call_us"]["p50"], 1),
        "call_cpu": round(theirs["call_cpu_us"] / ours["call_cpu_us"], 1),
        f"call_cpu_{options.sessions}": round(
            theirs[f"call_cpu_us_{options.sessions}"] / ours[f"call_cpu_us_{options.sessions}"], 1
        ),
        "start_to_healthy_p50": round(theirs["start_to_healthy_ms"]["p50"] / ours["start_to_healthy_ms"]["p50"], 1),
    }
    print(json.dumps({"bench": "sandbox_call", **machine(), **results, "times_better": ratio}))


if __name__ == "__main__":
    main()
