"""Copies of a running sandbox server: what they have from their source, and that each goes its own way."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import Answer, in_parallel, later, wait_for
from forkfamily import SOURCE, Family, Found, families


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Found]:
    with families(tmp_path) as found:
        yield found


def test_a_copy_begins_where_its_source_was_and_goes_its_own_way(found: Found) -> None:
    one = found()
    source = one.source
    for _ in range(5):
        source.tool("add")
    copy = one.copy("copy")
    assert copy.tool("count").data == 5
    assert [copy.tool("add").data for _ in range(3)] == [6, 7, 8]
    assert source.tool("add").data == 6
    assert copy.tool("count").data == 8
    assert copy.served.pid != source.served.pid


def test_a_copy_draws_the_random_numbers_that_its_source_would_have_drawn(found: Found) -> None:
    one = found()
    one.source.tool("seed", {"number": 7})
    copy = one.copy("copy")
    assert [copy.tool("draw").data for _ in range(3)] == [one.source.tool("draw").data for _ in range(3)]


def test_copies_of_copies_and_several_of_one(found: Found) -> None:
    one = found()
    names = ["source", "a", "b", "c", "d", "e"]
    for older, younger in pairwise(names):
        one.member(older).tool("add_async")
        one.copy(younger, of=older)
    assert [one.member(name).tool("count").data for name in names] == [1, 2, 3, 4, 5, 5]
    for name in ("x", "y", "z"):
        assert one.copy(name).tool("add").data == 2
    assert [one.member(name).tool("add_async").data for name in names] == [2, 3, 4, 5, 6, 6]


def test_a_copy_may_fork_once_more_on_its_way_in(found: Found) -> None:
    one = found()
    one.source.tool("add_async")
    answer = one.order("copy", twice=True)
    copy = one.member("copy")
    assert answer["pid"] != copy.served.pid
    assert [copy.tool("add_async").data for _ in range(2)] == [2, 3]
    assert one.copy("grandchild", of="copy").tool("add").data == 4
    assert one.copy("sibling").tool("add").data == 2


def test_copies_outlive_their_source_and_end_when_asked(found: Found) -> None:
    one = found()
    answer = one.order("copy")
    copy = one.member("copy")
    os.kill(one.process.pid, signal.SIGTERM)
    assert one.process.wait(10) == 0
    assert copy.tool("add").data == 1
    os.kill(answer["pid"], signal.SIGTERM)
    wait_for(lambda: not Path(f"/proc/{answer['pid']}/cmdline").exists() or _is_zombie(answer["pid"]))


def _is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def test_no_call_is_lost_or_run_twice_while_copies_are_made(found: Found) -> None:
    one = found()
    source = one.source

    def calls(number: int) -> list[int]:
        tool = "add_async" if number % 2 else "add"
        headers = {"idempotency-key": f"c{number}"} if number % 3 else {}
        return [
            source.tool(tool, {"key": f"k{number}", "seconds": 0.002 * (number % 4)}, headers=headers).data,
            source.tool("add", {"key": f"k{number}"}).data,
        ]

    running = later(lambda: in_parallel(*[lambda number=n: calls(number) for n in range(100)]))
    copies = [one.copy(f"copy{n}", wait=10) for n in range(5)]
    assert running.result(60) == [[1, 2]] * 100
    assert [source.tool("count", {"key": f"k{n}"}).data for n in range(100)] == [2] * 100
    for copy in copies:
        # Nothing is under way in a copy: no count changes, and each was one that the source had.
        seen = [copy.tool("count", {"key": f"k{n}"}).data for n in range(100)]
        assert set(seen) <= {0, 1, 2}
        assert seen == [copy.tool("count", {"key": f"k{n}"}).data for n in range(100)]


def test_a_call_that_comes_meanwhile_waits_and_runs_in_the_source(found: Found, tmp_path: Path) -> None:
    one = found()
    slow = _slow_call(one, tmp_path)
    copying = one.begin_copy("copy")
    with one.source.connect() as client:
        client.sendall(b"POST /tools/add HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}")
        one.settle()
        (tmp_path / "go").touch()
        assert b'"data":1' in client.recv(65536)
    copy = copying()
    assert slow.result(20).data == 1
    assert copy.tool("count", {"key": "when"}).data == 1
    assert copy.tool("count").data == 0


def _slow_call(one: Family, folder: Path) -> Future[Answer]:
    """A call that has started, and ends when there is a file `go`."""
    slow = later(lambda: one.source.tool("add_when", {"path": str(folder / "go")}))
    wait_for(lambda: _works(one.process.pid))
    return slow


def _works(pid: int) -> bool:
    """Whether the process has a thread beside its main one and the loop's."""
    return len(list(Path(f"/proc/{pid}/task").iterdir())) > 2


def test_a_call_that_takes_too_long_refuses_the_copy_and_goes_on(found: Found, tmp_path: Path) -> None:
    one = found()
    slow = _slow_call(one, tmp_path)
    (obstacle,) = one.refusal(wait=0.1)["details"]["obstacles"]
    assert re.fullmatch(r"call call_\w+ of tool 'add_when' still runs", obstacle)
    (tmp_path / "go").touch()
    assert slow.result(20).data == 1
    assert one.copy("copy").tool("count", {"key": "when"}).data == 1


def test_results_by_call_id_are_known_to_both(found: Found) -> None:
    one = found()
    key = {"idempotency-key": "only-once"}
    assert one.source.tool("add", headers=key).data == 1
    copy = one.copy("copy")
    for server in (one.source, copy):
        assert server.tool("add", headers=key).data == 1
        assert server.tool("count").data == 1
        assert server.tool("add", {"key": "other"}, headers=key).json["code"] == "call.conflict"
    later_key = {"idempotency-key": "later"}
    assert copy.tool("add", headers=later_key).data == 2
    assert one.source.tool("count").data == 1
    assert one.source.tool("add", headers=later_key).data == 2


def test_a_session_of_the_source_works_on_the_copy(found: Found) -> None:
    one = found()
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    session = {"mcp-session-id": one.source.rpc("initialize", hello).headers["mcp-session-id"]}
    copy = one.copy("copy")
    for server in (one.source, copy):
        answer = server.rpc("tools/call", {"name": "add", "arguments": {}}, headers=session)
        assert answer.messages[-1]["result"]["structuredContent"] == {"result": 1}
    assert copy.rpc("ping", headers={"mcp-session-id": "mcp_none"}).status == 404
    assert copy.ask("DELETE", "/mcp", headers=session).status == 200
    assert one.source.rpc("ping", headers=session).status == 200


def test_connections_stay_with_the_source(found: Found) -> None:
    one = found()
    request = b"POST /tools/add HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}"
    with one.source.connect() as client:
        client.sendall(request)
        assert b'"data":1' in client.recv(65536)
        copy = one.copy("copy")
        client.sendall(request)
        assert b'"data":2' in client.recv(65536)
        assert copy.tool("count").data == 1
        os.kill(one.process.pid, signal.SIGKILL)
        # The copy does not keep it open.
        assert client.recv(65536) == b""
    assert copy.tool("add").data == 2


def test_async_objects_stay_bound_to_their_loop_in_the_copy(found: Found) -> None:
    source = """
lock = asyncio.Lock()
loops = []

@register_tool
async def locked(seconds: float = 0) -> bool:
    "Use a lock that others wait for, threads included, and tell whether the loop is still the first one."
    loops.append(asyncio.get_running_loop())
    async with lock:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(time.sleep, seconds)
    return loops[0] is loops[-1]
"""
    one = found(SOURCE + source)
    many: list[Callable[[], Any]] = [lambda: one.source.tool("locked", {"seconds": 0.01}).data] * 3
    assert in_parallel(*many) == [True] * 3
    copy = one.copy("copy")
    for server in (one.source, copy, one.copy("third", of="copy")):
        assert in_parallel(*[lambda server=server: server.tool("locked", {"seconds": 0.01}).data] * 3) == [True] * 3


def test_an_open_file_is_opened_anew_where_the_source_was_in_it(found: Found) -> None:
    source = """
import pathlib
story = pathlib.Path(__file__).parent / "story.txt"
story.write_text("one\\ntwo\\nthree\\n")
file = story.open()

@register_tool
def line() -> str:
    "The next line."
    return os.read(file.fileno(), 4).decode().strip()
"""
    one = found(SOURCE + source)
    assert one.source.tool("line").data == "one"
    copy = one.copy("copy")
    assert [server.tool("line").data for server in (one.source, copy)] == ["two", "two"]


def test_a_copy_that_cannot_enter_its_sandbox_ends_and_the_source_does_not(found: Found) -> None:
    one = found()
    pid = one.order("never", fails=True)["pid"]
    wait_for(lambda: "RuntimeError: no entry" in one.log)
    assert one.source.tool("add").data == 1
    assert one.copy("copy").tool("add").data == 2
    # The next copy has the source wait for the one that ended.
    assert not Path(f"/proc/{pid}").exists()


def test_a_call_given_up_while_it_waits_for_the_copy_never_runs(found: Found, tmp_path: Path) -> None:
    one = found()
    slow = _slow_call(one, tmp_path)
    copying = one.begin_copy("copy")
    with pytest.raises(TimeoutError):
        one.source.modern("tools/call", {"name": "add", "arguments": {}}, timeout=0.2)
    (tmp_path / "go").touch()
    assert slow.result(20).data == 1
    assert [server.tool("count").data for server in (one.source, copying())] == [0, 0]


def test_clients_that_wait_for_news_stay_with_the_source(found: Found) -> None:
    source = """
@register_tool
def grow() -> None:
    "Add a tool."
    register_tool(name="grown")(add)
"""
    one = found(SOURCE + source)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    session = one.source.rpc("initialize", hello).headers["mcp-session-id"]
    with one.source.connect() as client:
        head = ["GET /mcp HTTP/1.1", "host: localhost", "accept: text/event-stream", f"mcp-session-id: {session}"]
        client.sendall("\r\n".join([*head, "", ""]).encode())
        assert b"200 OK" in client.recv(65536)
        copy = one.copy("copy")
        assert copy.tool("grow").status == 200
        assert copy.tool("grown").data == 1
        assert one.source.tool("grown").status == 404
        assert one.source.tool("grow").status == 200
        assert b"list_changed" in client.recv(65536)


def test_a_health_check_that_comes_meanwhile_is_answered(found: Found, tmp_path: Path) -> None:
    one = found(SOURCE + '\n@register_health\ndef well() -> bool:\n    "Fine."\n    return True\n')
    slow = _slow_call(one, tmp_path)
    copying = one.begin_copy("copy")
    healths = later(lambda: in_parallel(*[lambda: one.source.get("/health").status] * 5))
    (tmp_path / "go").touch()
    assert healths.result(20) == [200] * 5
    assert slow.result(20).data == 1
    assert copying().get("/health").status == 200


def test_many_orders_at_once_are_served_one_after_another(found: Found) -> None:
    one = found()
    copies = in_parallel(*[lambda n=n: one.copy(f"m{n}") for n in range(8)])
    assert [copy.tool("add").data for copy in copies] == [1] * 8
    assert len({copy.served.pid for copy in copies}) == 8
