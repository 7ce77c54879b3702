"""The sandbox server's HTTP/1.1, byte by byte, and its life as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import PYTHON, Environment, open_environment, wait_for, write_project

SOURCE = '''
import subprocess, time
from aenv import register_tool

@register_tool
def echo(text: str) -> str:
    """Return it."""
    return text

@register_tool
def nap(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "rested"

@register_tool
def spawn() -> int:
    """Leave a process running."""
    return subprocess.Popen(["sleep", "1000"]).pid
'''


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = open_environment(write_project(tmp_path_factory.mktemp("wire"), SOURCE), "--max-body", "16000000")
    yield environment
    environment.stop()


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def exchange(env: Environment, data: bytes, *, then_close: bool = False) -> bytes:
    with env.connect() as connection:
        connection.sendall(data)
        if then_close:
            connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def request(body: bytes, *headers: str, path: str = "/tools/echo", method: str = "POST", close: bool = True) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    if close:
        lines.append("connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_requests_on_one_connection_are_answered_in_their_order(env: Environment) -> None:
    slow = request(b'{"seconds": 0.3}', path="/tools/nap", close=False)
    quick = [request(b'{"text": "%d"}' % n, close=n == 29) for n in range(30)]
    answer = exchange(env, slow + b"".join(quick))
    places = [answer.index(b'"rested"'), *(answer.index(b'"data":"%d"' % n) for n in range(30))]
    assert places == sorted(places)


def test_a_request_may_arrive_byte_by_byte(env: Environment) -> None:
    with env.connect() as connection:
        for byte in request(b'{"text": "slow"}'):
            connection.sendall(bytes([byte]))
        assert b'"data":"slow"' in read_all(connection)


def test_chunked_bodies_are_read(env: Environment) -> None:
    body = b"8\r\n" + b'{"text":' + b"\r\n5\r\n" + b' "x"}' + b"\r\n0\r\n\r\n"
    head = b"POST /tools/echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    assert b'"data":"x"' in exchange(env, head + body)


def test_a_client_that_waits_for_permission_gets_it(env: Environment) -> None:
    with env.connect() as connection:
        head, _, body = request(b'{"text": "go"}', "expect: 100-continue").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert b'"data":"go"' in read_all(connection)


def test_http_1_0_gets_an_answer_and_a_closed_connection(env: Environment) -> None:
    answer = exchange(env, b"GET /health HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"POST /tools/echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20000000\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_what_is_not_acceptable_is_answered_and_the_server_goes_on(env: Environment, data: bytes, status: int) -> None:
    answer = exchange(env, data)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b'"success":false' in answer
    assert env.get("/health").status == 200


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_an_offer_to_upgrade_is_declined_by_a_plain_answer(env: Environment, protocol: str) -> None:
    offer = ("connection: upgrade", f"upgrade: {protocol}")
    assert exchange(env, request(b'{"text": "plain"}', *offer, close=False)).startswith(b"HTTP/1.1 400 ")
    assert exchange(env, request(b"", *offer, method="GET", path="/health", close=False)).startswith(b"HTTP/1.1 200 ")


def test_many_small_requests_in_one_read_are_no_large_head(env: Environment) -> None:
    small = request(b"", method="GET", path="/health", close=False)
    with env.connect() as connection:
        connection.sendall(small * 1000 + small[:-2])
        connection.sendall(b"\r\n" + request(b"", method="GET", path="/tools"))
        assert read_all(connection).count(b"HTTP/1.1 200 ") == 1002


def test_nonsense_behind_a_request_does_not_cost_it_its_answer(env: Environment) -> None:
    slow = request(b'{"seconds": 0.3}', path="/tools/nap", close=False)
    answer = exchange(env, slow + b"NONSENSE\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"rested"' in answer
    assert answer.count(b"HTTP/1.1 400 ") == 1


def test_permission_to_send_a_body_does_not_overtake_an_answer(env: Environment) -> None:
    slow = request(b'{"seconds": 0.3}', path="/tools/nap", close=False)
    with env.connect() as connection:
        head, _, body = request(b'{"text": "second"}', "expect: 100-continue").partition(b"\r\n\r\n")
        connection.sendall(slow + head + b"\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(body)
        assert b'"data":"second"' in read_all(connection)


def test_a_client_that_asks_and_never_reads_is_not_listened_to_for_ever(env: Environment) -> None:
    with env.connect() as greedy:
        greedy.settimeout(3)
        ask = request(b"", method="GET", path="/tools", close=False) * 400_000
        with pytest.raises((TimeoutError, ConnectionError)):
            greedy.sendall(ask)
        assert env.get("/health").status == 200


def test_a_chunked_body_that_grows_too_large_is_refused(env: Environment) -> None:
    head = b"POST /tools/echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    assert exchange(env, head + chunk * 260).startswith(b"HTTP/1.1 413 ")


def test_a_client_that_does_not_read_does_not_stop_others(env: Environment) -> None:
    with env.connect() as greedy:
        greedy.sendall(request(b'{"text": "%s"}' % (b"x" * 15_000_000)))
        for _ in range(20):
            assert env.tool("echo", {"text": "y"}).data == "y"
        assert len(read_all(greedy)) > 15_000_000


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "127.0.0.1:1234"}, 200),
        ({"host": "[::1]:8081"}, 200),
        ({"host": "app.localhost"}, 200),
        ({"origin": "http://localhost:6274"}, 200),
    ],
)
def test_pages_from_elsewhere_are_kept_out(env: Environment, headers: dict[str, str], status: int) -> None:
    for path in ("/health", "/tools"):
        assert env.get(path, headers=headers).status == status


def test_a_unix_socket_serves_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project", SOURCE)
    path = tmp_path / "s"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    environment = open_environment(project, "--uds", str(path))
    try:
        assert environment.url == f"unix:{path}"
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(request(b'{"text": "unix"}', "host: anything.example"))
            assert b'"data":"unix"' in read_all(connection)
        second = subprocess.run(
            [PYTHON, "-m", "aenv.sandbox", str(project), "--uds", str(path)], capture_output=True, text=True, timeout=20
        )
        assert second.returncode == 1
        assert "address already in use" in second.stderr
    finally:
        environment.stop()


def test_a_socket_can_be_handed_over_already_listening(tmp_path: Path) -> None:
    project = write_project(tmp_path, SOURCE)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [PYTHON, "-m", "aenv.sandbox", str(project), "--fd", str(listener.fileno())]
        with subprocess.Popen(command, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL) as process:
            # The connection is made before the server runs: nothing has to be waited for.
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(request(b'{"text": "early"}'))
                assert b'"data":"early"' in read_all(connection)
            process.terminate()


def test_the_older_entry_point_serves_a_src_folder(tmp_path: Path) -> None:
    project = write_project(tmp_path, SOURCE)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [PYTHON, "-m", "aenv.main", str(project / "src"), "--port", str(port), "--log-dir", "/nowhere"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_for(lambda: is_listening(port))
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(request(b'{"text": "older"}'))
            assert b'"data":"older"' in read_all(connection)
        process.terminate()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_stopping_ends_what_tools_left_running(tmp_path: Path) -> None:
    environment = open_environment(write_project(tmp_path, SOURCE))
    child = environment.tool("spawn").data
    assert is_running(child)
    environment.stop()
    wait_for(lambda: not is_running(child))


def test_everything_ends_when_whoever_started_it_is_killed(tmp_path: Path) -> None:
    project = write_project(tmp_path, SOURCE)
    script = (
        "import sys, time, pathlib, urllib.request, json\n"
        "from aenv.build.serving import served\n"
        "with served(pathlib.Path(sys.argv[1]), log=lambda line: None) as server:\n"
        "    answer = urllib.request.urlopen(server.url + '/tools/spawn', b'{}').read()\n"
        "    print(server.pid, json.loads(answer)['data'], flush=True)\n"
        "    time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(project)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server, child = map(int, owner.stdout.readline().split())
        assert is_running(server)
        assert is_running(child)
        os.kill(owner.pid, signal.SIGKILL)
    wait_for(lambda: not is_running(server) and not is_running(child))


def test_a_start_that_fails_leaves_nothing_and_says_why(tmp_path: Path, serve: Callable[..., Environment]) -> None:
    with pytest.raises(Exception, match=r"src/author.py: ValueError: no") as caught:
        serve("raise ValueError('no')")
    assert caught.value.details["cause"] == "load.failed"  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="before it was ready"):
        serve("import os\nos._exit(7)")
    with pytest.raises(Exception, match="tool timeout"):
        serve("", config={"deployConfig": {"sandbox": {"toolTimeout": "soon"}}})
    assert not [thread for thread in threading.enumerate() if thread.name == "aenv-loop"]
