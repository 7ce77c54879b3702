"""A host and an internet made of namespaces for the proxy of `allowlist`, and clients that speak to it by hand."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from conftest import need

HOST, INTERNET = "93.184.215.13", "93.184.215.14"
HOSTS = f"""
127.0.0.1 localhost rebound.test
{INTERNET} site.test www.site.test both.test
10.0.0.1 both.test intern.test
169.254.169.254 metadata.test
{HOST} ours.test
"""
# Port 80 tells what it was asked, 7 answers with the digest of all it got, 9 with what is not HTTP.
SERVERS = """
import hashlib, json, socketserver, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("transfer-encoding"):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size + 2)[:-2]
        answer = [self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body.decode()]
        answer = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Keep-Alive", "timeout=5")
        self.end_headers()
        self.wfile.write(answer)
    do_POST = do_GET
    def log_message(self, *_): pass

class Digest(socketserver.StreamRequestHandler):
    def handle(self):
        digest = hashlib.sha256()
        while chunk := self.request.recv(65536):
            digest.update(chunk)
        self.wfile.write(digest.hexdigest().encode() + b"x" * 3_000_000)

class Noise(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"\\0\\1\\2 no HTTP\\n" * 100)

socketserver.ThreadingTCPServer.allow_reuse_address = True
for server in (ThreadingHTTPServer(("", 80), Site), socketserver.ThreadingTCPServer(("", 7), Digest),
               socketserver.ThreadingTCPServer(("", 9), Noise)):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


def enter(pid: int, *command: str) -> list[str]:
    return ["nsenter", f"--target={pid}", "--user", "--net", "--mount", "--preserve-credentials", *command]


@contextlib.contextmanager
def staying(*command: str) -> Iterator[int]:
    """Run a command that says a line once it is there, and ends with its input."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        need(process.stdout.readline(), f"{command[0]} gives no namespaces here; try `sysctl user.max_user_namespaces`")
        yield process.pid


@contextlib.contextmanager
def open_host(folder: Path) -> Iterator[int]:
    """A process in namespaces that have a wire to others, where some public sites are served."""
    need(shutil.which("ip"), "there is no `ip`; try `apt install iproute2`")
    hosts = folder / "hosts"
    hosts.write_text(HOSTS)
    unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c"]
    with (
        staying(*unshare, f"mount --bind {hosts} /etc/hosts && ip link set lo up && echo && exec cat") as pid,
        staying(*enter(pid, "unshare", "--net", "sh", "-c", "ip link set lo up && echo && exec cat")) as outside,
    ):
        for where, what in (
            (pid, f"ip link add wire type veth peer name wire netns {outside} && ip addr add {HOST}/24 dev wire"),
            (outside, f"ip addr add {INTERNET}/24 dev wire && ip link set wire up"),
            (pid, "ip link set wire up"),
        ):
            subprocess.run(enter(where, "sh", "-c", what), check=True)
        with staying(*enter(outside, sys.executable, "-c", SERVERS)):
            yield pid


@dataclass
class Proxy:
    """The proxy's process, and the engine's end of its socket."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    log: Path

    def serve(self, *allow: str, id_: str = "ins_1") -> int:
        """Serve a listener of ours; returns its port."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            message = json.dumps({"op": "serve", "id": id_, "allow": allow}).encode()
            socket.send_fds(self.control, [message], [listener.fileno()])
            port: int = listener.getsockname()[1]
        return port

    def drop(self, id_: str = "ins_1") -> None:
        self.control.send(json.dumps({"op": "drop", "id": id_}).encode())


@contextlib.contextmanager
def open_proxy(host: int, log: Path) -> Iterator[Proxy]:
    """The proxy, running on that host."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = enter(host, sys.executable, "-m", "aenv.engines.local.egress", "--fd", str(theirs.fileno()))
    with log.open("wb") as file, subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=file) as process, ours:
        theirs.close()
        yield Proxy(process, ours, log)
        ours.close()
        assert process.wait(10) == 0
    assert "Traceback" not in log.read_text()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


GET = b"GET http://site.test/ HTTP/1.1\r\n"


def say(port: int, request: bytes) -> bytes:
    """All that comes back on a connection of its own."""
    with connect(port) as connection:
        connection.sendall(request)
        return read_all(connection)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def tunnel(port: int, target: str) -> socket.socket:
    connection = connect(port)
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += connection.recv(1)
    assert status(answer) == 200
    return connection


def socks(port: int, address: bytes, target_port: int = 80, command: int = 1) -> tuple[int, socket.socket]:
    """The reply code, and the connection."""
    connection = connect(port)
    connection.sendall(b"\x05\x02\x02\x00")
    assert connection.recv(2) == b"\x05\x00"
    connection.sendall(bytes([5, command, 0]) + address + target_port.to_bytes(2, "big"))
    reply = connection.recv(10)
    assert len(reply) == 10
    return reply[1], connection


def named(name: str) -> bytes:
    return bytes([3, len(name)]) + name.encode()
