"""Author code and clients that do their worst: whatever it is, it costs its own call and nothing else."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from conftest import PYTHON, Environment, in_parallel, later, open_environment, wait_for, write_project

SOURCE = '''
import asyncio, multiprocessing, os, subprocess, sys, time
from typing import Annotated, Any
from pydantic import BaseModel, BeforeValidator, field_validator
from aenv import Context, register_function, register_tool

runs = 0

class Unprintable(Exception):
    def __str__(self):
        sys.exit(4)

class Model(BaseModel):
    how: str

    @field_validator("how")
    @classmethod
    def check(cls, how):
        if how == "exit":
            sys.exit(5)
        if how == "key":
            raise KeyError("inside")
        if how == "sleep":
            time.sleep(3)
        if how == "wrong":
            raise ValueError("not this one")
        return how

@register_tool
def unprintable() -> None:
    """Raise what cannot be shown."""
    raise Unprintable

@register_tool
def model(model: Model) -> str:
    """Take a model whose validator misbehaves."""
    return model.how

@register_tool
def odd(value: Annotated[int, BeforeValidator(lambda value: object())]) -> int:
    """Take what a validator has made of it."""
    return value

@register_tool
async def rest(seconds: float = 0) -> str:
    """Sleep as async code should."""
    await asyncio.sleep(seconds)
    return "rested"

@register_tool
async def leave_later() -> str:
    """Exit from a background task."""
    async def exit_now():
        sys.exit(6)
    asyncio.get_running_loop().create_task(exit_now())
    return "left"

@register_tool
async def stop_loop() -> str:
    """Stop the loop that runs it."""
    asyncio.get_running_loop().stop()
    return "stopped"

@register_tool
async def block() -> str:
    """Sleep as async code should not."""
    time.sleep(1000)

@register_tool
async def linger() -> str:
    """Leave a thread that the interpreter would wait for."""
    await asyncio.to_thread(time.sleep, 1000)

@register_tool
def nap(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "rested"

@register_tool
def flood(n: int, ctx: Context) -> int:
    """Report progress as fast as can be."""
    for step in range(n):
        ctx.report_progress(step, n)
    return n

@register_tool
def needs_sampling(ctx: Context) -> None:
    """Do something, then find that the client cannot do its part."""
    global runs
    runs += 1
    time.sleep(0.2)
    ctx.require_capability("sampling")

@register_tool
def count(a: int = 0, b: int = 0) -> int:
    """Count up."""
    global runs
    runs += 1
    return runs

@register_tool
def long_error(size: int) -> None:
    """Fail at length."""
    raise ValueError("x" * size)

@register_tool
def big(size: int) -> list[int]:
    """Return much."""
    return [0] * size

@register_tool
def terminated() -> str:
    """Start a child process and end it."""
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
    child.start()
    child.terminate()
    child.join(5)
    return "ended" if not child.is_alive() else "alive"

@register_tool
def prints() -> str:
    """Print in every way."""
    sys.stdout.buffer.write(b"bytes on stdout\\\\n")
    sys.stdout.buffer.flush()
    subprocess.run(["sh", "-c", "echo from a child; echo and its errors >&2"])
    print("\\\\x1b[31mred\\\\x1b[0m and a\\\\rreturn")
    return "printed"

@register_function(endpoint="/search", method="GET")
def search(q: str = "", tags: list[int] = [], deep: dict = {}) -> dict:
    """Search."""
    return {"q": q, "tags": tags, "deep": deep}
'''.replace("\\\\", "\\")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = open_environment(write_project(tmp_path_factory.mktemp("hostile"), SOURCE))
    yield environment
    environment.stop()


@pytest.fixture
def own(serve: Callable[..., Environment]) -> Callable[..., Environment]:
    return partial(serve, SOURCE)


def memory(env: Environment) -> int:
    """Resident bytes of the server."""
    pages = int(Path(f"/proc/{env.served.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_an_exception_that_cannot_be_shown_is_still_an_answer(env: Environment) -> None:
    for _ in range(5):
        answer = env.tool("unprintable")
        assert (answer.status, answer.json["code"]) == (500, "tool.failed")
        assert "Unprintable" in answer.json["error"]
    assert env.get("/health").status == 200


@pytest.mark.parametrize(("how", "kind"), [("exit", "SystemExit"), ("key", "KeyError")])
def test_a_validator_that_raises_is_the_authors_failure(env: Environment, how: str, kind: str) -> None:
    answer = env.tool("model", {"model": {"how": how}})
    assert (answer.status, answer.json["details"]["type"]) == (500, kind)
    refused = env.tool("model", {"model": {"how": "wrong"}})
    assert (refused.status, refused.json["code"]) == (422, "arguments.invalid")
    assert env.get("/health").status == 200


def test_a_validator_that_sleeps_delays_nobody(env: Environment) -> None:
    sleeper = later(lambda: env.tool("model", {"model": {"how": "sleep"}}))
    time.sleep(0.2)
    for _ in range(20):
        assert env.get("/health").status == 200
    assert not sleeper.done()
    assert sleeper.result(20).data == "sleep"


def test_what_a_validator_made_of_a_value_cannot_break_the_answer(env: Environment) -> None:
    answer = env.tool("odd", {"value": 1})
    assert (answer.status, answer.json["code"]) == (422, "arguments.invalid")


@pytest.mark.parametrize("name", ["leave_later", "stop_loop"])
def test_async_code_that_ends_its_loop_does_not_end_the_next_call(own: Callable[..., Environment], name: str) -> None:
    env = own()
    env.tool(name, headers={"aenv-timeout": "1"})
    for _ in range(3):
        assert env.tool("rest", headers={"aenv-timeout": "10"}).data == "rested"


def test_async_code_that_blocks_for_ever_costs_its_own_call(own: Callable[..., Environment]) -> None:
    env = own()
    assert env.tool("block", headers={"aenv-timeout": "0.3"}).status == 504
    env.await_log("later calls get a new one")
    assert env.tool("rest", headers={"aenv-timeout": "10"}).data == "rested"


def test_a_flood_of_progress_starves_nobody_and_fills_no_memory(own: Callable[..., Environment]) -> None:
    env = own()
    before = memory(env)
    call = {"name": "flood", "arguments": {"n": 300_000}, "_meta": {"progressToken": 1}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    head = (
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with env.connect() as unread:
        unread.sendall(head.encode() + body)
        for _ in range(20):
            assert env.get("/health", timeout=5).status == 200
    reading = later(lambda: env.rpc("tools/call", call, timeout=60))
    for _ in range(20):
        assert env.get("/health", timeout=5).status == 200
    assert reading.result(60).messages[-1]["result"]["structuredContent"] == {"result": 300_000}
    assert memory(env) - before < 100 * 2**20


def test_the_order_of_keys_does_not_make_another_call(env: Environment) -> None:
    headers = {"idempotency-key": "order-1"}
    first = env.post("/tools/count", b'{"a": 1, "b": 2}', headers=headers)
    again = env.post("/tools/count", b'{"b": 2, "a": 1}', headers=headers)
    assert first.data == again.data


def test_a_call_whose_client_lacks_a_capability_ran_all_the_same(own: Callable[..., Environment]) -> None:
    env = own()
    headers = {"idempotency-key": "sampling-1"}
    answers = in_parallel(*[partial(env.tool, "needs_sampling", headers=headers)] * 5)
    assert {answer.json["code"] for answer in answers} == {"client.capability_missing"}
    assert env.tool("needs_sampling", headers=headers).status == 400
    assert env.tool("count").data == 2


def test_what_is_recorded_stays_within_its_bounds(own: Callable[..., Environment]) -> None:
    env = own()
    before = memory(env)
    for number in range(30):
        assert env.tool("long_error", {"size": 5_000_000}, headers={"idempotency-key": f"e{number}"}).status == 500
        assert env.tool("big", {"size": 500_000}, headers={"idempotency-key": f"b{number}"}).status == 200
    hello = {"protocolVersion": "2025-11-25", "capabilities": {"x": "y" * 3_000_000}}
    for _ in range(30):
        assert env.rpc("initialize", hello).status == 200
    assert memory(env) - before < 200 * 2**20


def test_a_call_id_cannot_forge_a_log_line(env: Environment) -> None:
    forged = "x\n2026-01-01T00:00:00.000Z ERROR   aenv forged"
    answer = env.rpc("tools/call", {"name": "prints", "_meta": {"aenv/callId": forged}})
    assert answer.json["error"]["code"] == -32602
    assert env.tool("prints").data == "printed"
    env.await_log("bytes on stdout")
    env.await_log("from a child")
    env.await_log("and its errors")
    line = env.await_log("red")
    assert "\\x1b[31mred\\x1b[0m and a\\x0dreturn" in line
    assert not [line for line in env.log if "forged" in line]


def test_children_of_a_tool_can_be_terminated(env: Environment) -> None:
    assert env.tool("terminated").data == "ended"


def test_a_thread_that_async_code_left_behind_does_not_keep_the_server_alive(own: Callable[..., Environment]) -> None:
    env = own()
    assert env.tool("linger", headers={"aenv-timeout": "0.3"}).status == 504
    env.served.process.terminate()
    assert env.served.process.wait(20) == 0


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "\xff"])
def test_a_host_that_is_none_is_refused(env: Environment, host: str) -> None:
    assert env.get("/health", headers={"host": host}).status == 403
    assert env.get("/health", headers={"origin": f"http://{host}"}).status == 403


def test_a_query_is_read_as_the_parameters_want_it(env: Environment) -> None:
    assert env.get("/search?q=[1,2]").data["q"] == "[1,2]"
    assert env.get("/search?tags=1").data["tags"] == [1]
    assert env.get("/search?tags=1&tags=2").data["tags"] == [1, 2]
    assert env.get("/search?tags=[3,4]").data["tags"] == [3, 4]
    assert env.get('/search?deep={"a":1}').data["deep"] == {"a": 1}
    assert env.get("/search?" + "&".join(f"x{n}=1" for n in range(1500))).status == 400


def test_a_name_of_megabytes_is_answered_like_any_other(env: Environment) -> None:
    answer = env.rpc("tools/call", {"name": "x" * 15_000_000})
    assert answer.json["result"]["isError"] is True
    assert len(answer.body) < 1000


def test_calls_that_hang_are_limited_in_number(own: Callable[..., Environment]) -> None:
    env = own("--tool-threads", "2")
    answers = [env.tool("nap", {"seconds": 3}, headers={"aenv-timeout": "0.02"}) for _ in range(12)]
    codes = [answer.json["code"] for answer in answers]
    assert codes == ["tool.timed_out"] * 8 + ["tool.too_many_hung"] * 4
    assert env.get("/health").status == 200
    again = {"aenv-timeout": "1", "idempotency-key": "refused-1"}
    assert env.tool("nap", {"seconds": 0}, headers=again).status == 503
    wait_for(lambda: env.tool("nap", {"seconds": 0}, headers=again).status == 200, 20)


def test_a_tool_that_is_no_longer_quick_gets_threads_again(own: Callable[..., Environment]) -> None:
    env = own("--tool-threads", "8")
    for _ in range(10):
        assert env.tool("nap", {"seconds": 0}).data == "rested"
    answers = in_parallel(*[partial(env.tool, "nap", {"seconds": 0.5})] * 40)
    assert [answer.data for answer in answers] == ["rested"] * 40
    assert len(list(Path(f"/proc/{env.served.pid}/task").iterdir())) < 40


def test_without_descriptors_the_idle_make_room_and_nobody_spins(tmp_path: Path) -> None:
    project = write_project(tmp_path, SOURCE)
    script = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "from aenv.sandbox.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    )
    receive, send = os.pipe()
    command = [PYTHON, "-c", script, str(project), "--port", "0", "--ready-fd", str(send)]
    with (
        subprocess.Popen(command, stderr=subprocess.DEVNULL, pass_fds=[send]) as process,
        os.fdopen(receive) as channel,
    ):
        os.close(send)
        ready = json.loads(channel.readline())
        environment = Environment(served=type("Ready", (), ready)(), log=[])
        idle = [environment.connect() for _ in range(100)]
        try:
            for _ in range(3):
                assert environment.get("/health", timeout=10).status == 200
        finally:
            for connection in idle:
                connection.close()
            process.terminate()


def test_ending_a_session_ends_its_calls_and_streams(env: Environment) -> None:
    headers = {"mcp-session-id": env.rpc("initialize", {"protocolVersion": "2025-11-25"}).headers["mcp-session-id"]}
    call = later(lambda: env.rpc("tools/call", {"name": "nap", "arguments": {"seconds": 30}}, headers=headers))
    stream = later(lambda: env.get("/mcp", headers={**headers, "accept": "text/event-stream"}))
    time.sleep(0.3)
    assert env.ask("DELETE", "/mcp", headers=headers).status == 200
    assert "cancelled" in call.result(5).json["error"]["message"]
    assert stream.result(5).status == 200


@pytest.mark.parametrize(
    "options",
    [
        ("--port", "99999"),
        ("--port", "-1"),
        ("--tool-threads", "0"),
        ("--max-body", "-1"),
        ("--fd", "77"),
        ("--tool-timeout", "0s"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    project = write_project(tmp_path, "")
    command = [PYTHON, "-m", "aenv.sandbox", str(project), "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode in (1, 2, 3)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_the_environments_own_variables_are_set_under_the_callers(tmp_path: Path) -> None:
    source = (
        "import os\nfrom aenv import register_tool\n"
        "@register_tool\ndef see() -> str:\n    return os.environ['A'] + os.environ['B']\n"
    )
    project = write_project(tmp_path, source, {"deployConfig": {"environmentVariables": {"A": "own ", "B": "own"}}})
    environment = open_environment(project, environ={"B": "given"})
    try:
        assert environment.tool("see").data == "own given"
    finally:
        environment.stop()


def test_only_what_an_environment_is_made_of_starts_it_again(tmp_path: Path) -> None:
    from aenv.build.watching import changed, snapshot  # noqa: PLC0415 - one test of a small thing beside its cause

    project = write_project(tmp_path, "")
    before = snapshot(project)
    (project / "state.json").write_text("{}")
    (project / "log.csv").write_text("1")
    assert changed(before, snapshot(project)) == []
    (project / "src" / "more.py").write_text("")
    assert wait_for(lambda: [Path(name).name for name in changed(before, snapshot(project))]) == ["more.py"]
