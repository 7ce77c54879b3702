"""Sandboxes of gVisor, with the real runsc, in the mode of whoever runs the tests: root, or an ordinary user."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import need, wait_for, write_project

from aenv.engines.local import gvisor, orders
from aenv.engines.local.box import PROXY_PORT
from aenv.engines.local.limits import Cgroups, Limits
from aenv.engines.local.prepared import prepare
from aenv.engines.local.pythons import Pythons
from aenv.engines.protocol import Launch
from aenv.errors import EngineUnavailable
from aenv.model.spec import EnvSpec

SOURCE = """
import os, socket, subprocess, sys, time
from aenv import register_tool

@register_tool
def add(a: int, b: int) -> int:
    return a + b

@register_tool
def run(command: str) -> str:
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout + (f"[{done.returncode}]" if done.returncode else "")

@register_tool
def variable(name: str) -> str:
    return os.environ.get(name, "") + " ".join(sys.argv[1:])

@register_tool
def reach(host: str, port: int) -> str:
    try:
        socket.create_connection((host, port), 3).close()
    except OSError as problem:
        return str(problem)
    return "reached"

@register_tool
def fill(megabytes: int) -> int:
    return len(b"x" * (megabytes << 20))
"""
MODE = "root" if os.geteuid() == 0 else "user"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Box:
    """One sandbox, held as the supervisor holds it."""

    def __init__(self, plan: gvisor.Plan, launch: Launch | None, folder: Path, entries: list[int]) -> None:
        self.plan = plan
        self.path = str(folder / "s")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.path)
        listener.listen()
        self.control, theirs = socket.socketpair()
        self.log_pipe, log_in = os.pipe2(os.O_CLOEXEC)
        descriptors = [theirs.detach(), listener.detach(), log_in, *entries]
        self.process = gvisor.start(plan, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if launch is not None:
            order = json.dumps(orders.activation(launch)).encode()
            self.control.sendall(len(order).to_bytes(4, "little") + order)

    def told(self) -> dict[str, Any]:
        """What it says of itself."""
        self.control.settimeout(30)
        try:
            with self.control.makefile("rb") as file:
                found: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(4), "little")))
        except (ConnectionError, ValueError):
            pytest.fail(self.log())
        return found

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """One request on a connection of its own."""
        connection = _Connection(self.path)
        try:
            connection.request(method, path, json.dumps(body), {"content-type": "application/json"})
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def tool(self, name: str, /, **arguments: object) -> Any:
        return self.ask("POST", f"/tools/{name}", arguments)["data"]

    def log(self) -> str:
        """All that it wrote; waits for its end."""
        with os.fdopen(os.dup(self.log_pipe), "rb") as file:
            return file.read().decode()

    def family(self) -> list[int]:
        """The processes of its pid namespace, and the one that was started."""
        return [self.process.pid, *_below(self.process.pid)]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.control.close()
        os.close(self.log_pipe)


def _below(pid: int) -> list[int]:
    # Each thread has children of its own, and runsc starts its processes from several.
    lists = [_read(file) for file in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(word) for text in lists for word in text.split()]
    return [*children, *(grandchild for child in children for grandchild in _below(child))]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


Start = Callable[..., Box]


@pytest.fixture(scope="module")
def runsc() -> str:
    try:
        return gvisor.require()
    except EngineUnavailable as problem:
        need(None, f"{problem.message}; {problem.hint}")
        raise


@pytest.fixture
def start(runsc: str) -> Iterator[Start]:
    """Starts sandboxes, with all their files in a folder with a short path; nothing of them is left afterwards."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="aenv-"))
        stack.callback(shutil.rmtree, folder)
        folder.chmod(0o755)
        (folder / "root").mkdir(mode=0o700)

        def make(
            source: str = SOURCE, *, policy: str = "none", entries: list[int] | None = None, is_wanted: bool = True
        ) -> Box:
            project = write_project(folder / "project", source, {"deployConfig": {"isolation": "gvisor"}})
            plan, launch = asyncio.run(_plan(runsc, folder, project, policy))
            box = Box(plan, launch if is_wanted else None, folder, entries or [])
            stack.callback(box.end)
            return box

        yield make
        assert list((folder / "root").iterdir()) == []


async def _plan(runsc: str, folder: Path, project: Path, policy: str) -> tuple[gvisor.Plan, Launch]:
    spec = EnvSpec.parse((project / "config.json").read_text())
    owner = orders.OUTER_USER if MODE == "root" else None
    prepared = await prepare(folder / "environments", "d1", project, owner=owner)
    python = await Pythons(folder / "pythons", python=sys.executable).ensure(None)
    order = orders.order(spec, prepared, python, mode=MODE, closes_loopback=True)
    order |= {"mode": MODE, "root": str(folder / "root"), "policy": policy}
    order["request"] |= {"rlimits": [(7, 512, 512)]}
    launch = Launch("ins_1", spec, project, "d1", variables={"SECRET": "s3"}, arguments=("--hard",))
    return gvisor.Plan.of(order, runsc), launch


def test_a_tool_call_is_answered_from_a_kernel_that_is_not_this_machines(start: Start) -> None:
    box = start()
    assert box.told()["tools"] == ["add", "run", "variable", "reach", "fill"]
    assert box.tool("add", a=2, b=3) == 5
    assert box.ask("GET", "/health")["success"] is True
    assert "gVisor" in box.tool("run", command="dmesg")
    assert box.tool("run", command="uname -r").strip() != os.uname().release
    assert box.tool("variable", name="SECRET") == "s3--hard"


def test_the_sandbox_is_an_ordinary_user_who_writes_to_its_own_files_only(start: Start) -> None:
    box = start()
    box.told()
    assert box.tool("run", command="id -u; id -g; pwd; echo $HOME; hostname").split() == [
        *("1000", "1000", "/app", "/home/agent", "probe")
    ]
    made = "echo more >> src/author.py && touch /app/a ~/b /tmp/c /run/d /dev/shm/e"
    assert box.tool("run", command=made) == ""
    assert box.tool("run", command="find src/author.py -printf %u") == "agent"
    assert "[" in box.tool("run", command="touch /etc/x")
    assert "[" in box.tool("run", command="touch /usr/x")
    assert "more" not in (Path(box.path).parent / "environments/d1/project/src/author.py").read_text()


def test_files_and_processes_of_the_host_are_not_to_be_seen(start: Start) -> None:
    box = start()
    box.told()
    folder = Path(box.path).parent
    assert "[" in box.tool("run", command=f"ls {folder}/environments")
    assert "[" in box.tool("run", command=f"ls {folder}/root")
    assert "[" in box.tool("run", command="ls /etc/shadow /var/log /boot")
    assert str(os.getpid()) not in box.tool("run", command="ls /proc").split()
    assert "s3" not in "".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in box.family())


def test_without_a_policy_nothing_can_be_reached(start: Start) -> None:
    box = start()
    box.told()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert box.tool("reach", host="127.0.0.1", port=server.getsockname()[1]) != "reached"


def test_an_allowlist_finds_its_proxy_on_the_loopback_and_nothing_else_of_the_host(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        box = start(policy="proxy")
        text, descriptors, _flags, _address = socket.recv_fds(box.control, 4096, 1)
        assert json.loads(text[4:]) == {"op": "boxed"}
        box.told()
        assert box.tool("reach", host="127.0.0.1", port=server.getsockname()[1]) != "reached"
        with socket.socket(fileno=descriptors[0]) as proxy:
            assert box.tool("reach", host="127.0.0.1", port=PROXY_PORT) == "reached"
            proxy.accept()[0].close()


def test_many_connections_are_served_side_by_side(start: Start) -> None:
    box = start()
    box.told()
    connections = [_Connection(box.path) for _ in range(40)]
    for turn in range(2):
        for number, connection in enumerate(connections):
            body = json.dumps({"a": number, "b": turn})
            connection.request("POST", "/tools/add", body, {"content-type": "application/json"})
        answers = [json.loads(connection.getresponse().read())["data"] for connection in connections]
        assert answers == [number + turn for number in range(40)]
    for connection in connections:
        connection.close()


def test_killing_what_was_started_ends_everything(start: Start) -> None:
    box = start()
    box.told()
    box.tool("run", command="nohup sleep 1000 >/dev/null 2>&1 &")
    family = box.family()
    assert len(family) > 4
    box.process.kill()
    wait_for(lambda: not any(_is_alive(pid) for pid in family))
    with pytest.raises(ConnectionRefusedError):
        box.ask("GET", "/health")


def test_a_sandbox_ends_with_the_process_that_started_it(start: Start) -> None:
    # The supervisor is killed here in the person of a process that starts a sandbox and waits.
    box = start()
    box.told()
    code = (
        "import json, os, socket, sys, time; from aenv.engines.local import gvisor\n"
        "listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[2]); listener.listen()\n"
        "ours, theirs = socket.socketpair()\n"
        "plan = gvisor.Plan(**json.loads(sys.argv[1]))\n"
        "process = gvisor.start(plan, [theirs.fileno(), listener.fileno(), 2])\n"
        "print(process.pid, flush=True); time.sleep(1000)\n"
    )
    command = [sys.executable, "-c", code, json.dumps(asdict(box.plan)), f"{box.path}2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        try:
            started = int(owner.stdout.readline())
            wait_for(lambda: len(_below(started)) > 3, 30)
            family = [started, *_below(started)]
        finally:
            owner.kill()
    wait_for(lambda: not any(_is_alive(pid) for pid in family))


def test_sigterm_lets_the_server_end_in_order(start: Start) -> None:
    box = start("import atexit\natexit.register(lambda: print('farewell', flush=True))\n" + SOURCE)
    box.told()
    box.process.send_signal(signal.SIGTERM)
    assert box.process.wait(20) == 0
    assert "farewell" in box.log()


def test_code_that_does_not_import_is_told_with_its_error(start: Start) -> None:
    box = start("import nonesuch\n")
    told = box.told()
    assert told["op"] == "failed"
    assert "nonesuch" in told["error"]
    assert "nonesuch" in box.log()


def test_one_that_nobody_needs_any_more_ends_by_itself(start: Start) -> None:
    box = start(is_wanted=False)
    box.control.close()
    assert box.process.wait(20) == 0


def test_the_group_holds_the_whole_tree(start: Start) -> None:
    cgroups = Cgroups.find(f"gvisor-test-{os.getpid()}")
    need(
        cgroups is not None and {"memory", "pids"} <= cgroups.controllers,
        "no control groups can be made here; run the tests as root",
    )
    assert cgroups is not None
    group = cgroups.make(
        "b1", Limits(cpu_cores=1, memory_bytes=256 << 20, storage_bytes=1 << 20, processes=200, open_files=512)
    )
    try:
        box = start(entries=group.open_entries())
        box.told()
        assert (group.memory_bytes() or 0) > 1 << 20
        assert (group.processes() or 0) >= len(box.family())
        with pytest.raises((OSError, http.client.HTTPException)):
            box.tool("fill", megabytes=1000)
        assert box.process.wait(20) != 0
    finally:
        wait_for(group.remove)
        cgroups.close()


def test_a_machine_without_runsc_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gvisor.find() is None
    with pytest.raises(EngineUnavailable, match="runsc, which is not in PATH") as caught:
        gvisor.require()
    assert "apt install runsc" in (caught.value.hint or "")


def test_a_runsc_that_does_not_work_here_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "runsc").write_text("#!/bin/sh\necho no ptrace for you >&2\nexit 1\n")
    (tmp_path / "runsc").chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gvisor.find() is None
    with pytest.raises(EngineUnavailable, match="does not run here"):
        gvisor.require()
