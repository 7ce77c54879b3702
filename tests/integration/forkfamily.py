"""A sandbox server that can be copied, its copies, and an author's code that can hold on to all that cannot be."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conftest import Environment, wait_for, write_project

from aenv.build.serving import Served

RUNNER = Path(__file__).parents[1] / "fixtures" / "forking" / "run.py"

SOURCE = '''
import asyncio, os, random, socket, subprocess, tempfile, threading, time
from aenv import register_function, register_health, register_tool

counts = {}
held = []

@register_tool
def add(key: str = "n", seconds: float = 0) -> int:
    """Count up, after a while."""
    time.sleep(seconds)
    counts[key] = counts.get(key, 0) + 1
    return counts[key]

@register_tool
def add_when(path: str) -> int:
    """Count up as soon as a file is there."""
    while not os.path.exists(path):
        time.sleep(0.005)
    return add("when")

@register_tool
def count(key: str = "n") -> int:
    """How often `add` ran."""
    return counts.get(key, 0)

@register_tool
async def add_async(key: str = "n", seconds: float = 0) -> int:
    """Count up on the event loop."""
    await asyncio.sleep(seconds)
    counts[key] = counts.get(key, 0) + 1
    return counts[key]

@register_tool
def seed(number: int) -> None:
    """Make the random numbers known."""
    random.seed(number)

@register_tool
def draw() -> float:
    """The next random number."""
    return random.random()

@register_tool
def hold(what: str) -> int:
    """Keep something that cannot be copied."""
    if what == "thread":
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait, name="ticker", daemon=True)
        thread.start()
        held.append(stop.set)
    elif what == "process":
        held.append(subprocess.Popen(["sleep", "60"]).kill)
    elif what == "socket":
        pair = socket.socketpair()
        held.append(lambda: [one.close() for one in pair])
        return pair[0].fileno()
    elif what == "pipe":
        ends = os.pipe()
        held.append(lambda: [os.close(end) for end in ends])
        return ends[0]
    elif what == "event":
        event = os.eventfd(0)
        held.append(lambda: os.close(event))
        return event
    elif what == "nameless":
        file = tempfile.TemporaryFile()
        held.append(file.close)
        return file.fileno()
    return 0

@register_tool
async def hold_async(what: str) -> None:
    """Keep async code that cannot be copied."""
    if what == "task":
        task = asyncio.create_task(asyncio.sleep(60), name="pulse")
        held.append(lambda: task.get_loop().call_soon_threadsafe(task.cancel))
    elif what == "timer":
        timer = asyncio.get_running_loop().call_later(60, print)
        held.append(lambda: asyncio.get_event_loop_policy() and timer.cancel())

@register_tool
def let_go() -> None:
    """Give all of it up."""
    while held:
        held.pop()()
'''


@dataclass
class Family:
    """A server and its copies."""

    process: subprocess.Popen[bytes]
    folder: Path
    opened: ExitStack

    def member(self, name: str) -> Environment:
        file = self.folder / f"{name}.json"
        wait_for(file.exists)
        where = json.loads(file.read_text())
        return Environment(Served(where["url"], name, "", where["pid"], [], [], [], None, self.process), [])  # type: ignore[arg-type] # a process all the same

    @property
    def source(self) -> Environment:
        return self.member("source")

    def order(self, name: str, *, of: str = "source", **options: Any) -> dict[str, Any]:
        """What becomes of the wish for a copy."""
        return self._ordered(name, of, options)()

    def _ordered(self, name: str, of: str, options: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        path = self.folder / f"{of}.ctl"
        wait_for(path.exists)
        control = self.opened.enter_context(socket.socket(socket.AF_UNIX))
        control.settimeout(30)
        control.connect(str(path))
        control.sendall(json.dumps({"name": name, **options}).encode())

        def answer() -> dict[str, Any]:
            told: dict[str, Any] = json.loads(control.recv(65536))
            return told

        return answer

    def begin_copy(self, name: str) -> Callable[[], Environment]:
        """Ask for a copy, and return when the source has heard of it; what is returned waits for the copy."""
        answer = self._ordered(name, "source", {})
        self.settle()

        def copy() -> Environment:
            assert "pid" in answer()
            return self.member(name)

        return copy

    def copy(self, name: str, *, of: str = "source", **options: Any) -> Environment:
        answer = self.order(name, of=of, **options)
        assert "pid" in answer, answer
        return self.member(name)

    def refusal(self, **options: Any) -> dict[str, Any]:
        answer = self.order("never", **options)
        assert answer["code"] == "engine.fork_refused", answer
        return answer

    def obstacles(self, **options: Any) -> str:
        answer = self.refusal(**options)
        assert answer["hint"]
        return "\n".join(answer["details"]["obstacles"])

    def settle(self) -> None:
        """Return when the source has read what was sent before: by the second of these, as it serves in turns."""
        for _ in range(2):
            self.source.get("/")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


Found = Callable[..., Family]


@contextmanager
def families(folder: Path) -> Iterator[Found]:
    """Start families with `found(SOURCE, "unshare", …)`, the words being put before the server's own command."""
    started: list[subprocess.Popen[bytes]] = []
    opened = ExitStack()

    def found(source: str = SOURCE, *wrapper: str) -> Family:
        project = write_project(folder / f"project{len(started)}", source)
        home = folder / f"f{len(started)}"
        home.mkdir()
        with (home / "log").open("wb") as log:
            command = [*wrapper, sys.executable, str(RUNNER), str(project), str(home)]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=log, stdout=log, start_new_session=True
            )
        started.append(process)
        wait_for((home / "source.ctl").exists, 20)
        return Family(process, home, opened)

    try:
        yield found
    finally:
        opened.close()
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
