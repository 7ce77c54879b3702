"""What a hostile sandbox may send to the proxy of the policy `allowlist`, and how much."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import wait_for
from egressworld import (
    GET,
    Proxy,
    connect,
    open_host,
    open_proxy,
    read_all,
    say,
    status,
    tunnel,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from aenv.engines.local import egress, proxywire
from aenv.engines.local.allow import AllowList


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with open_host(tmp_path_factory.mktemp("host")) as pid:
        yield pid


@pytest.fixture
def proxy(host: int, tmp_path: Path) -> Iterator[Proxy]:
    with open_proxy(host, tmp_path / "log") as opened:
        yield opened


MALFORMED = [
    *(b"GET / HTTP/1.1\r\n\r\n", b"GET https://site.test/ HTTP/1.1\r\n\r\n", b"GET http://site.test/ HTTP/2.0\r\n\r\n"),
    *(b"GET http://user@site.test/ HTTP/1.1\r\n\r\n", b"GET http://site.test:0/ HTTP/1.1\r\n\r\n"),
    *(b"CONNECT site.test HTTP/1.1\r\n\r\n", b"CONNECT \xff\xfe:80 HTTP/1.1\r\n\r\n"),
    *(GET + b" folded\r\n\r\n", GET + b"A : b\r\n\r\n", GET + b"Transfer-Encoding: gzip\r\n\r\n"),
    GET + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
    GET + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    *(GET + b"Content-Length: +1\r\n\r\n", GET + b"A: " + b" " * 60_000 + b"b\r\n\r\n", GET + b"A: b\r\n" * 10_000),
    *(b"A" * 200_000, b"\x16\x03\x01\x02\x00\x01\n"),
]


@pytest.mark.parametrize("sent", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_not_a_clear_request_is_told_so(proxy: Proxy, sent: bytes) -> None:
    answer = say(proxy.serve("site.test"), sent)
    assert status(answer) == 400
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["code"] == "network.malformed"


PIECES = st.one_of(
    st.binary(max_size=80),
    st.sampled_from([b"CONNECT ", b"GET ", b"http://", b"site.test", b":80", b" HTTP/1.1", b"\r\n", b"\r\n\r\n", b"["]),
    st.sampled_from(
        [b"\x05", b"\x05\x01\x00", b"\x05\x01\x00\x03", b"\x05\x01\x00\x01", b"Content-Length: ", b"-1", b"9"]
    ),
)


def test_no_bytes_end_the_proxy(proxy: Proxy) -> None:
    port = proxy.serve("site.test")

    @settings(max_examples=300, deadline=None, database=None)
    @given(st.lists(PIECES, max_size=12).map(b"".join))
    def fuzz(sent: bytes) -> None:
        with connect(port) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            read_all(connection)

    fuzz()
    assert status(say(port, GET + b"\r\n")) == 200
    assert "failed" not in proxy.log.read_text()


def test_no_order_ends_the_proxy(proxy: Proxy) -> None:
    orders = [b"{", b"[]", b"1", b'{"op":"serve"}', b'{"op":"serve","id":"a","allow":[]}', b'{"op":"drop","id":"no"}']
    for order in [*orders, b'{"op":"serve","id":"a","allow":["a b"]}', b'{"op":"serve","id":"a","allow":7}']:
        proxy.control.send(order)
    with (Path("/dev/null")).open("rb") as file:
        socket.send_fds(proxy.control, [b'{"op":"serve","id":"a","allow":[]}'], [file.fileno()])
    assert status(say(proxy.serve("site.test"), GET + b"\r\n")) == 200


def test_a_sandbox_has_so_many_connections_and_no_more(proxy: Proxy) -> None:
    port = proxy.serve("site.test")
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(tunnel(port, "site.test:7")) for _ in range(egress.CONNECTIONS)]
        with connect(port) as more, contextlib.suppress(ConnectionResetError):
            assert more.recv(1) == b""
        opened[0].close()

        def is_served_again() -> bool:
            with contextlib.suppress(ConnectionError, IndexError):
                return status(say(port, GET + b"\r\n")) == 200
            return False

        wait_for(is_served_again)


def test_refusals_do_not_fill_the_log(proxy: Proxy) -> None:
    port = proxy.serve("site.test")
    for number in range(4 * egress.LINES):
        assert status(say(port, f"CONNECT evil{number}.test:80 HTTP/1.1\r\n\r\n".encode())) == 403
    # The minute may turn once under the test.
    assert egress.LINES <= len(proxy.log.read_text().splitlines()) <= 2 * egress.LINES


def ask_in_process(sent: bytes) -> bytes:
    """Serve one connection here, with the constants as they are set now."""

    async def ask() -> bytes:
        with ThreadPoolExecutor(1) as pool:
            sandbox = egress.Sandbox("ins_1", AllowList.parse(["127.0.0.1"]), pool)
            await sandbox.open(socket.create_server(("127.0.0.1", port)))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            sandbox.close()
        return answer

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return asyncio.run(ask())


def test_a_client_that_is_slow_to_say_what_it_wants_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxywire, "HEAD_SECONDS", 0.1)
    assert status(ask_in_process(b"GET http://127.0.0.1/ HTTP/1.1\r\nA: b")) == 408


def test_a_connection_on_which_nothing_moves_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "IDLE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        answer = ask_in_process(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    assert answer == b"HTTP/1.1 200 Connection established\r\n\r\n"
