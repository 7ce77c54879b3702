"""What does one MCP call cost on our sandbox server, beside the published one?   python bench/sandbox_call.py

Both servers load the same project (one echo tool) as plain processes, in turns, and are driven by the same raw client
over keep-alive connections in the session era of MCP. The server's CPU is read from the kernel.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from figures import compile_package, cpu_seconds, machine, percentiles
from peer import published_client

TOOLS = '''
from aenv import register_tool


@register_tool
def echo(text: str) -> dict:
    """Return the text."""
    return {"text": text}
'''
STRUCTURED = b'"structuredContent":{"text":"hello"}'
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
    """One session on one connection; knows just enough HTTP to find a response's end, to measure the server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = HEADERS
        self._received = b""
        parameters = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "b", "version": "1"}}
        answer = self.ask(self.request("initialize", parameters))
        session = answer[: answer.index(b"\r\n\r\n")].decode().lower().partition("mcp-session-id: ")[2].split("\r\n")[0]
        self._head += f"mcp-session-id: {session}\r\n"
        self.ask(self.request("notifications/initialized", None))
        self.echo = self.request("tools/call", {"name": "echo", "arguments": {"text": "hello"}})
        self.list = self.request("tools/list", {})

    def request(self, method: str, params: dict[str, Any] | None) -> bytes:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message |= {"id": 1, "params": params}
        body = json.dumps(message).encode()
        return f"{self._head}content-length: {len(body)}\r\n\r\n".encode() + body

    def ask(self, request: bytes) -> bytes:
        self.socket.sendall(request)
        while (answer := self.receive()) is None:
            pass
        return answer

    def receive(self) -> bytes | None:
        """The next part of the response; all of it once it is whole."""
        part = self.socket.recv(65536)
        assert part, "the server hung up"
        self._received += part
        if not _is_whole(self._received):
            return None
        answer, self._received = self._received, b""
        return answer


def _is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")), answer
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return body.endswith(b"0\r\n\r\n")
    return len(body) >= int(lower.partition(b"content-length:")[2].split(b"\r\n")[0])


def check(answer: bytes, wanted: bytes) -> None:
    assert wanted in answer, answer


def sequential(client: Client, request: bytes, wanted: bytes, n: int) -> list[float]:
    took = []
    for _ in range(n):
        began = time.perf_counter()
        answer = client.ask(request)
        took.append(time.perf_counter() - began)
        check(answer, wanted)
    return took


def all_at_once(clients: list[Client], each: int) -> list[float]:
    """Every client asks again as soon as it is answered, until each has been answered `each` times."""
    took: list[float] = []
    left = dict.fromkeys(clients, each)
    began: dict[Client, float] = {}
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            began[client] = time.perf_counter()
            client.socket.sendall(client.echo)
        while left:
            for key, _ in selector.select(60):
                client = key.data
                answer = client.receive()
                if answer is None:
                    continue
                took.append(time.perf_counter() - began[client])
                check(answer, STRUCTURED)
                left[client] -= 1
                if left[client]:
                    began[client] = time.perf_counter()
                    client.socket.sendall(client.echo)
                else:
                    del left[client]
    return took


def measure(port: int, pid: int, n: int, sessions: int) -> dict[str, Any]:
    first = Client(port)
    sequential(first, first.echo, STRUCTURED, 20)
    listed = sequential(first, first.list, b'"inputSchema"', n)
    cpu = cpu_seconds(pid)
    called = sequential(first, first.echo, STRUCTURED, n)
    cpu = cpu_seconds(pid) - cpu
    clients = [Client(port) for _ in range(sessions)]
    each = max(4, n // 8)
    began = time.perf_counter()
    busy = cpu_seconds(pid)
    took = all_at_once(clients, each)
    busy = cpu_seconds(pid) - busy
    wall = time.perf_counter() - began
    for client in (first, *clients):
        client.socket.close()
    return {
        "list_us": percentiles(listed),
        "call_us": percentiles(called),
        "call_cpu_us": round(cpu / n * 1e6, 1),
        f"call_{sessions}_us": percentiles(took),
        f"calls_per_s_{sessions}": round(len(took) / wall, 1),
        f"call_cpu_us_{sessions}": round(busy / len(took) * 1e6, 1),
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
                        results[name] = measure(port, pid, calls, sessions)
        for name, seconds in started.items():
            results[name]["start_to_healthy_ms"] = percentiles(seconds, 1e3)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--starts", type=int, default=7)
    options = parser.parse_args()
    compile_package()
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
