"""The policy `allowlist`: the test is the sandbox, and two namespaces are the host and the internet."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import later, wait_for
from egressworld import (
    HOST,
    INTERNET,
    Proxy,
    connect,
    named,
    open_host,
    open_proxy,
    read_all,
    say,
    socks,
    status,
    tunnel,
)

from aenv.engines.local import egress


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with open_host(tmp_path_factory.mktemp("host")) as pid:
        yield pid


@pytest.fixture
def proxy(host: int, tmp_path: Path) -> Iterator[Proxy]:
    with open_proxy(host, tmp_path / "log") as opened:
        yield opened


def digest_through(connection: socket.socket) -> None:
    sent = random.Random(1).randbytes(5_000_000)

    def send() -> None:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)

    sending = later(send)
    with connection:
        answer = read_all(connection)
        sending.result()
    assert answer == hashlib.sha256(sent).hexdigest().encode() + b"x" * 3_000_000


def test_a_tunnel_carries_megabytes_and_the_end_of_each_side(proxy: Proxy) -> None:
    port = proxy.serve("site.test", "*.site.test:7")
    digest_through(tunnel(port, "site.test:7"))
    code, connection = socks(port, named("WWW.site.test"), 7)
    assert code == 0
    digest_through(connection)


def test_a_request_goes_on_without_what_was_meant_for_the_proxy(proxy: Proxy) -> None:
    request = (
        b"GET http://Site.test/a?b=c HTTP/1.1\r\nHost: other.test\r\nProxy-Authorization: Basic eDp5\r\n"
        b"Proxy-Connection: keep-alive\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n\r\n"
    )
    head, _, body = say(proxy.serve("site.test"), request).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in head.lower()
    assert b"keep-alive" not in head.lower()
    assert json.loads(body) == ["GET", "/a?b=c", {"host": "site.test", "x-end": "2", "connection": "close"}, ""]


def test_bodies_arrive_whether_counted_or_chunked(proxy: Proxy) -> None:
    port = proxy.serve("site.test")
    head = b"POST http://site.test HTTP/1.1\r\nHost: site.test\r\n"
    counted = say(port, head + b"Content-Length: 5\r\n\r\nhello")
    chunked = say(port, head + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n")
    for answer in (counted, chunked):
        assert json.loads(answer.partition(b"\r\n\r\n")[2])[3] == "hello"


def test_a_client_that_keeps_connections_sends_each_request_to_its_own_host(proxy: Proxy) -> None:
    client = http.client.HTTPConnection("127.0.0.1", proxy.serve("site.test", "www.site.test"), timeout=20)
    for name in ("site.test", "www.site.test", "site.test"):
        client.request("GET", f"http://{name}/")
        assert json.loads(client.getresponse().read())[2]["host"] == name
    client.close()


def test_ordinary_programs_find_the_proxy_by_their_environment(proxy: Proxy) -> None:
    port = proxy.serve("site.test")
    environ = {**os.environ, **egress.variables(port)}
    source = "import urllib.request as u; print(u.urlopen('http://site.test/x', timeout=20).status)"
    done = subprocess.run([sys.executable, "-c", source], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "200\n"
    if shutil.which("curl"):
        for options in (["-p"], ["--socks5-hostname", f"127.0.0.1:{port}"]):
            command = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", *options, "http://site.test/"]
            assert subprocess.run(command, env=environ, capture_output=True, check=True).stdout == b"200"


@pytest.mark.parametrize("target", ["evil.test:80", "www.site.test:80", "site.test:7", "93.184.215.14:80", "[::1]:80"])
def test_what_is_not_listed_is_refused_with_a_reason_and_a_hint(proxy: Proxy, target: str) -> None:
    answer = say(proxy.serve("site.test:80"), f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    assert status(answer) == 403
    body = answer.partition(b"\r\n\r\n")[2]
    assert body.endswith(b"}\n")
    assert body.count(b"\n") == 1
    assert json.loads(body)["code"] == "network.refused"
    assert target in json.loads(body)["error"]
    assert "networkAllow" in json.loads(body)["hint"]
    wait_for(lambda: f"instance=ins_1 host={target}" in proxy.log.read_text())


REBOUND = ["rebound.test", "localhost", "intern.test", "metadata.test", "ours.test", "0x7f.1", "2130706433"]


@pytest.mark.parametrize("name", [*REBOUND, "127.0.0.1", "169.254.169.254", "10.0.0.1", HOST])
def test_neither_a_listed_name_nor_a_wide_network_leads_into_the_host_or_its_network(proxy: Proxy, name: str) -> None:
    port = proxy.serve(*REBOUND, "0.0.0.0/0", "::/0")
    assert status(say(port, f"CONNECT {name}:80 HTTP/1.1\r\n\r\n".encode())) == 403
    assert status(say(port, f"GET http://{name}/ HTTP/1.1\r\n\r\n".encode())) == 403
    code, connection = socks(port, named(name))
    connection.close()
    assert code == 2


def test_an_address_of_the_host_can_be_listed(proxy: Proxy) -> None:
    answer = say(proxy.serve("127.0.0.0/8"), b"CONNECT rebound.test:1 HTTP/1.1\r\n\r\n")
    assert status(answer) == 502
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "network.unreachable"


def test_an_unlisted_name_without_an_address_is_refused_too(proxy: Proxy) -> None:
    assert status(say(proxy.serve("10.0.0.0/8"), b"CONNECT nowhere.test:80 HTTP/1.1\r\n\r\n")) == 403


def test_of_several_addresses_only_the_allowed_are_used(proxy: Proxy) -> None:
    assert status(say(proxy.serve("both.test"), b"GET http://both.test/ HTTP/1.1\r\n\r\n")) == 200


def test_a_listed_network_is_reached_by_address_and_by_name(proxy: Proxy) -> None:
    port = proxy.serve("93.184.215.0/24")
    for target in (INTERNET, "site.test"):
        assert status(say(port, f"GET http://{target}/ HTTP/1.1\r\n\r\n".encode())) == 200
    for address in (named("site.test"), b"\x01" + socket.inet_aton(INTERNET), named(INTERNET)):
        code, connection = socks(port, address)
        connection.close()
        assert code == 0


def test_a_host_that_does_not_answer_well_is_a_bad_gateway(proxy: Proxy) -> None:
    port = proxy.serve("site.test", "nowhere.test")
    assert status(say(port, b"GET http://site.test:1/ HTTP/1.1\r\n\r\n")) == 502
    assert status(say(port, b"GET http://site.test:9/ HTTP/1.1\r\n\r\n")) == 502
    assert status(say(port, b"CONNECT site.test:1 HTTP/1.1\r\n\r\n")) == 502
    assert status(say(port, b"CONNECT nowhere.test:1 HTTP/1.1\r\n\r\n")) == 502
    code, connection = socks(port, named("site.test"), 1)
    connection.close()
    assert code == 5


def test_socks_says_what_it_does_not_do(proxy: Proxy) -> None:
    port = proxy.serve("site.test")
    for address, command, expected in [(named("site.test"), 2, 7), (named("evil.test"), 1, 2), (b"\x09abcd", 1, 8)]:
        code, connection = socks(port, address, command=command)
        connection.close()
        assert code == expected
    assert say(port, b"\x05\x01\x02") == b"\x05\xff"


def test_a_dropped_sandbox_loses_listener_and_connections_and_others_do_not(proxy: Proxy) -> None:
    gone, kept = proxy.serve("site.test", id_="ins_gone"), proxy.serve("site.test", id_="ins_kept")
    with tunnel(gone, "site.test:7") as broken, tunnel(kept, "site.test:7") as whole:
        proxy.drop("ins_gone")
        with contextlib.suppress(ConnectionResetError):
            assert broken.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(gone)
        digest_through(whole)


def test_it_ends_with_the_engine_also_while_connections_are_open(proxy: Proxy) -> None:
    with tunnel(proxy.serve("site.test"), "site.test:7"):
        proxy.control.close()
        assert proxy.process.wait(10) == 0


def test_a_listener_of_another_namespace_is_served(proxy: Proxy, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    source = """if True:
        import socket, subprocess, sys, urllib.request
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        control = socket.socket(fileno=int(sys.argv[1]))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            socket.send_fds(control, [b"here"], [listener.fileno()])
            port = listener.getsockname()[1]
        control.recv(1)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{port}"}))
        print(opener.open("http://site.test/", timeout=20).status)
    """
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", source, str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE) as sandbox:
        theirs.close()
        _, (listener,), _, _ = socket.recv_fds(ours, 16, 1)
        socket.send_fds(proxy.control, [b'{"op":"serve","id":"ins_1","allow":["site.test"]}'], [listener])
        os.close(listener)
        ours.send(b"1")
        assert sandbox.stdout is not None
        assert sandbox.stdout.read() == b"200\n"
