"""User-mode networking: a world of namespaces is the machine, with a loopback of its own and an address far away."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import need, wait_for

from aenv.engines.local.usernet import INTERFACE, Tool, UserNet, find, resolv_conf

NOBODY = 65534
OWN, GATEWAY, FAR = "198.51.100.1", "198.51.100.254", "203.0.113.9"
WORLD = f"""
mount --bind "$1" /etc/resolv.conf && ip link set lo up
ip link add own type veth peer name plug && ip link set plug up && ip link set own up
ip addr add {OWN}/24 dev own && ip route add default via {GATEWAY} && ip addr add {FAR}/32 dev lo && echo && exec cat
"""
# What listens on loopback tells all who come; far away there is a site, and a name server that knows one address.
SERVERS = f"""
import socket, socketserver, sys, threading

class Tell(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.sendall(self.server.server_address[0].encode())

class Name(socketserver.BaseRequestHandler):
    def handle(self):
        question, reply = self.request
        head = question[:2] + b"\\x81\\x80\\0\\1\\0\\1\\0\\0\\0\\0"
        answer = b"\\xc0\\x0c\\0\\1\\0\\1\\0\\0\\0\\x3c\\0\\4" + socket.inet_aton("{FAR}")
        reply.sendto(head + question[12:] + answer, self.client_address)

class Six(socketserver.ThreadingTCPServer):
    address_family = socket.AF_INET6

for server in (
    socketserver.ThreadingTCPServer(("127.0.0.1", 8000), Tell), Six(("::1", 8000), Tell),
    socketserver.ThreadingTCPServer(("{FAR}", 80), Tell), socketserver.ThreadingUDPServer(("{FAR}", 53), Name),
):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""
CLIENT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def reach(target):
    try:
        with socket.create_connection(target, timeout=2) as connection:
            return connection.recv(99).decode()
    except OSError:
        return None

with ThreadPoolExecutor(16) as pool:
    print(json.dumps(list(pool.map(reach, json.loads(sys.argv[1])))))
"""
QUESTION = b"\x12\x34\x01\x00\0\1\0\0\0\0\0\0\x04site\x04test\0\0\1\0\1"
RESOLVE = f"""
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.settimeout(10)
    server.sendto({QUESTION!r}, (sys.argv[1], 53))
    print(socket.inet_ntoa(server.recv(512)[-4:]))
"""
WHO = ["root", "user", "mapped"] if os.geteuid() == 0 else ["mapped"]
"""Root, an ordinary user, and root of a user namespace; only root can be all of them."""


@contextlib.contextmanager
def staying(command: list[str], *, inherited: tuple[int, ...] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command that says a line once it is there, and ends with its input."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=inherited) as process:
        assert process.stdout is not None
        need(process.stdout.readline(), f"{command[0]} gives no namespaces here; try `sysctl user.max_user_namespaces`")
        yield process


@dataclass
class Sandbox:
    """A process in namespaces of its own, and how to look into them."""

    process: subprocess.Popen[bytes]

    def run(self, *command: str) -> str:
        inside = ["nsenter", f"--target={self.process.pid}", "--user", "--net", "--preserve-credentials", *command]
        return subprocess.run(inside, capture_output=True, text=True, check=True).stdout

    def reach(self, *targets: tuple[str, int]) -> list[str | None]:
        """What each says who listens there; None where nobody does."""
        answers: list[str | None] = json.loads(self.run(sys.executable, "-c", CLIENT, json.dumps(targets)))
        return answers


@dataclass
class World:
    """The machine, and the one who runs things there."""

    pid: int
    who: str

    def command(self, *command: str) -> list[str]:
        spaces = ["--user", "--preserve-credentials"] if self.who == "mapped" else []
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if self.who == "user" else []
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", *spaces, *become, *command]

    def pipe(self) -> tuple[int, int]:
        """A pipe that belongs to them."""
        ends = os.pipe()
        if self.who == "user":
            os.fchown(ends[0], NOBODY, NOBODY)
        return ends

    @contextlib.contextmanager
    def sandbox(self, *, inherited: tuple[int, ...] = ()) -> Iterator[Sandbox]:
        user = ["--user"] if self.who == "root" else ["--user", "--map-root-user"]
        command = self.command("unshare", *user, "--net", "sh", "-c", "echo && exec cat")
        with staying(command, inherited=inherited) as process:
            if self.who == "root":
                # As the engine does: root of the sandbox is nobody of the machine.
                for kind in ("uid", "gid"):
                    Path(f"/proc/{process.pid}/{kind}_map").write_text("0 100000 65536")
            yield Sandbox(process)

    def spawn(self, net: UserNet, pid: int, ready: int, ends: int) -> subprocess.Popen[bytes]:
        """Run the tool for a process."""
        if self.who == "user":
            os.seteuid(NOBODY)
        try:
            command = net.command(pid, ready, ends)
        finally:
            if self.who == "user":
                os.seteuid(0)
        quiet = subprocess.DEVNULL
        return subprocess.Popen(
            self.command(*command), pass_fds=[ready, ends], stdin=quiet, stdout=quiet, stderr=quiet, process_group=0
        )

    def start(self, net: UserNet, sandbox: Sandbox, ends: int) -> subprocess.Popen[bytes]:
        """Run the tool, and wait until it says that it is ready."""
        heard, ready = self.pipe()
        tool = self.spawn(net, sandbox.process.pid, ready, ends)
        os.close(ready)
        answer = os.read(heard, 16)
        os.close(heard)
        assert answer
        return tool


@pytest.fixture(scope="module", params=WHO)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    need(shutil.which("ip"), "there is no `ip`; try `apt install iproute2`")
    resolv = tmp_path_factory.mktemp("world") / "resolv.conf"
    resolv.write_text(f"nameserver {FAR}\n")
    user = ["--user", "--map-root-user"] if request.param == "mapped" else []
    unshare = ["unshare", *user, "--net", "--mount", "sh", "-c", WORLD, "world", str(resolv)]
    with staying(unshare) as process:
        made = World(process.pid, request.param)
        root = World(process.pid, "root") if made.who == "user" else made
        with staying(root.command(sys.executable, "-c", SERVERS)):
            yield made


@pytest.fixture(params=["slirp4netns", "pasta"])
def net(request: pytest.FixtureRequest) -> UserNet:
    tool: Tool = request.param
    path = shutil.which(tool)
    need(path, f"{tool} is not installed; try `apt install {'passt' if tool == 'pasta' else tool}`")
    return UserNet(tool, path or "")


@pytest.fixture
def joined(world: World, net: UserNet) -> Iterator[Sandbox]:
    """A sandbox with a network."""
    ends, end = world.pipe()
    with world.sandbox() as sandbox, world.start(net, sandbox, ends):
        os.close(ends)
        yield sandbox
        os.close(end)


def is_gone(group: int) -> Callable[[], bool]:
    """Whether nothing is left of a process group."""

    def look() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    return look


def test_the_sandbox_has_an_interface_with_address_and_route_when_the_tool_is_ready(joined: Sandbox) -> None:
    link = next(one for one in json.loads(joined.run("ip", "-json", "addr")) if one["ifname"] == INTERFACE)
    assert "UP" in link["flags"]
    assert any(address["family"] == "inet" for address in link["addr_info"])
    assert any(route["dst"] == "default" for route in json.loads(joined.run("ip", "-json", "route")))


def test_traffic_flows(joined: Sandbox) -> None:
    assert joined.reach((FAR, 80)) == [FAR]


def test_names_are_resolved_by_the_server_of_resolv_conf(joined: Sandbox, net: UserNet) -> None:
    word, server = resolv_conf(net.tool).split()
    assert word == "nameserver"
    assert joined.run(sys.executable, "-c", RESOLVE, server).strip() == FAR


def test_nothing_that_listens_on_the_loopback_of_the_machine_is_reached(joined: Sandbox, net: UserNet) -> None:
    names = ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1", "0.0.0.0", "10.0.2.2", "10.0.2.3", "10.0.2.100"]
    server = resolv_conf(net.tool).split()[1]
    targets = [(name, 8000) for name in [*names, OWN, GATEWAY, FAR, server, "255.255.255.255"]]
    assert set(joined.reach(*targets)) == {None}


def test_the_tool_ends_when_the_descriptor_is_closed(world: World, net: UserNet) -> None:
    ends, end = world.pipe()
    with world.sandbox() as sandbox, world.start(net, sandbox, ends) as tool:
        os.close(ends)
        assert tool.poll() is None
        os.close(end)
        tool.wait(10)
        wait_for(is_gone(tool.pid))


def test_the_tool_ends_with_the_sandbox_that_holds_the_other_end(world: World, net: UserNet) -> None:
    ends, end = world.pipe()
    with world.sandbox(inherited=(end,)) as sandbox, world.start(net, sandbox, ends) as tool:
        os.close(ends)
        os.close(end)
        assert tool.poll() is None
        sandbox.process.kill()
        tool.wait(10)
        wait_for(is_gone(tool.pid))


def test_the_tool_ends_when_there_is_nothing_to_join(world: World, net: UserNet) -> None:
    with world.sandbox() as sandbox:
        pass
    (ends, end), (heard, ready) = world.pipe(), world.pipe()
    with world.spawn(net, sandbox.process.pid, ready, ends) as tool:
        assert tool.wait(10) != 0
        for descriptor in (ends, end, ready):
            os.close(descriptor)
        assert os.read(heard, 16) == b""
        os.close(heard)
        wait_for(is_gone(tool.pid))


def test_a_tool_is_found_if_one_is_installed() -> None:
    need(shutil.which("slirp4netns") or shutil.which("pasta"), "no tool is installed; try `apt install slirp4netns`")
    found = find()
    assert found is not None
    assert found.path == shutil.which(found.tool)


def test_a_tool_that_does_not_work_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("slirp4netns", "pasta"):
        (tmp_path / tool).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find() is None
