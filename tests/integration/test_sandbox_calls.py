"""Calls that sleep, hang, exit, fork, print, or come twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from conftest import Environment, in_parallel, later, open_environment, wait_for, write_project

SOURCE = '''
import asyncio, os, subprocess, sys, threading, time
from aenv import Context, get_context, register_function, register_reward, register_tool

counts = {}

@register_tool
def add(key: str = "n", seconds: float = 0) -> int:
    """Count up, after a while."""
    time.sleep(seconds)
    counts[key] = counts.get(key, 0) + 1
    return counts[key]

@register_tool
def count(key: str = "n") -> int:
    """How often `add` ran."""
    return counts.get(key, 0)

@register_tool
def fail_once(key: str) -> None:
    """Count up and fail."""
    counts[key] = counts.get(key, 0) + 1
    raise RuntimeError(f"failed {counts[key]}")

@register_tool
def nap(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "rested"

@register_tool
async def async_nap(seconds: float, blocking: bool = False) -> str:
    """Sleep, as async code should or should not."""
    if blocking:
        time.sleep(seconds)
    await asyncio.sleep(seconds)
    return "rested"

@register_tool(timeout=0.3)
def impatient() -> None:
    """Hang."""
    time.sleep(3600)

@register_tool
def stubborn() -> str:
    """Look at its own cancellation."""
    context = get_context()
    for _ in range(2000):
        context.raise_if_cancelled()
        time.sleep(0.005)
    return "never"

@register_tool
def leave(how: str) -> None:
    """End the process, or try to."""
    if how == "exit":
        sys.exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "generator":
        raise GeneratorExit
    raise BaseException("base")

@register_tool
async def async_leave() -> None:
    """Exit from async code."""
    sys.exit(4)

@register_tool
def fork(wait: bool = False) -> int:
    """Fork and let the child come back into the server's code."""
    return os.fork()

@register_tool
async def async_fork() -> int:
    """The same from async code."""
    pid = os.fork()
    await asyncio.sleep(0)
    return pid

@register_tool
def talk(text: str) -> str:
    """Print to both streams."""
    print("out:", text)
    print("err:", text, file=sys.stderr)
    print("no line end", text, end="")
    return get_context().call_id

@register_tool
def shout() -> None:
    """Print from a child process."""
    subprocess.run(["echo", "from a child"])

@register_tool
def wrapped() -> "asyncio.Future":
    """A sync function that returns something to await."""
    return async_nap(0)

@register_reward
def score() -> float:
    """Count up."""
    counts["reward"] = counts.get("reward", 0) + 1
    return float(counts["reward"])

@register_function
def touch() -> int:
    """Count up."""
    counts["function"] = counts.get("function", 0) + 1
    return counts["function"]
'''


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    environment = open_environment(write_project(tmp_path_factory.mktemp("calls"), SOURCE))
    yield environment
    environment.stop()


@pytest.fixture
def own(serve: Callable[..., Environment]) -> Callable[..., Environment]:
    return partial(serve, SOURCE)


def alive(env: Environment) -> bool:
    return env.get("/health").status == 200 and env.tool("count", {"key": "nobody"}).data == 0


def test_a_sleeping_sync_tool_delays_nobody(env: Environment) -> None:
    sleeper = later(lambda: env.tool("nap", {"seconds": 3}))
    for _ in range(50):
        assert env.tool("count").status == 200
        assert env.get("/health").status == 200
    assert not sleeper.done()
    assert sleeper.result(20).data == "rested"


def test_a_tool_that_was_always_quick_may_still_sleep_without_stopping_the_server(
    own: Callable[..., Environment],
) -> None:
    env = own()
    for _ in range(20):
        assert env.tool("nap", {"seconds": 0}).data == "rested"
    sleepers = [later(lambda: env.tool("nap", {"seconds": 3})) for _ in range(3)]
    time.sleep(0.2)
    for _ in range(20):
        assert alive(env)
    assert not any(sleeper.done() for sleeper in sleepers)
    assert [sleeper.result(20).data for sleeper in sleepers] == ["rested"] * 3
    assert env.tool("nap", {"seconds": 0}).data == "rested"


def test_async_code_that_blocks_its_loop_does_not_stop_sync_tools_or_health(env: Environment) -> None:
    sleeper = later(lambda: env.tool("async_nap", {"seconds": 2, "blocking": True}))
    time.sleep(0.2)
    assert alive(env)
    assert not sleeper.done()
    assert sleeper.result(20).data == "rested"


def test_async_tools_wait_together(env: Environment) -> None:
    long = later(lambda: env.tool("async_nap", {"seconds": 2}))
    answers = in_parallel(*[partial(env.tool, "async_nap", {"seconds": 0.1})] * 20)
    assert [answer.data for answer in answers] == ["rested"] * 20
    assert not long.done()
    assert long.result(20).data == "rested"


def test_a_sync_function_may_return_an_awaitable(env: Environment) -> None:
    assert env.tool("wrapped").data == "rested"


def test_a_call_that_takes_too_long_is_reported_and_given_up(env: Environment) -> None:
    answer = env.tool("nap", {"seconds": 60}, headers={"aenv-timeout": "0.2"})
    assert (answer.status, answer.json["code"]) == (504, "tool.timed_out")
    assert answer.json["details"]["seconds"] == 0.2
    answer = env.tool("impatient")
    assert (answer.status, answer.json["details"]["seconds"]) == (504, 0.3)
    answer = env.tool("async_nap", {"seconds": 60}, headers={"aenv-timeout": "0.2"})
    assert answer.status == 504


def test_hung_tools_do_not_use_up_the_threads(own: Callable[..., Environment]) -> None:
    env = own("--tool-threads", "2")
    for _ in range(6):
        assert env.tool("nap", {"seconds": 60}, headers={"aenv-timeout": "0.1"}).status == 504
    assert env.tool("add").data == 1


def test_more_calls_than_threads_wait_for_one(own: Callable[..., Environment]) -> None:
    env = own("--tool-threads", "2")
    answers = in_parallel(*[partial(env.tool, "nap", {"seconds": 0.2})] * 8)
    assert [answer.data for answer in answers] == ["rested"] * 8


def test_a_default_time_limit_comes_from_config(serve: Callable[..., Environment]) -> None:
    env = serve(SOURCE, config={"deployConfig": {"sandbox": {"toolTimeout": "200ms"}}})
    assert env.tool("nap", {"seconds": 60}).json["details"]["seconds"] == 0.2


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("generator", "GeneratorExit"),
        ("base", "BaseException"),
    ],
)
def test_a_tool_that_tries_to_end_the_process_only_fails(env: Environment, how: str, kind: str) -> None:
    for _ in range(5):
        answer = env.tool("leave", {"how": how})
        assert (answer.status, answer.json["details"]["type"]) == (500, kind)
    assert alive(env)


def test_async_code_that_exits_only_fails(env: Environment) -> None:
    answer = env.tool("async_leave")
    assert answer.json["error"] == "the tool called sys.exit(4)"
    assert env.tool("async_nap", {"seconds": 0}).data == "rested"


@pytest.mark.parametrize("name", ["fork", "async_fork"])
def test_a_tool_that_forks_leaves_one_server(own: Callable[..., Environment], name: str) -> None:
    env = own()
    children = [env.tool(name).data for _ in range(5)]
    assert all(child > 0 for child in children)
    assert len(set(children)) == 5
    assert alive(env)


def test_what_a_tool_prints_is_in_the_log_with_its_call(env: Environment) -> None:
    call_id = "call-that-talks"
    assert env.tool("talk", {"text": "höre"}, headers={"idempotency-key": call_id}).data == call_id
    env.await_log(f"call={call_id}", "out: höre")
    env.await_log(f"call={call_id}", "err: höre")
    env.await_log(f"call={call_id}", "no line end höre")
    env.tool("shout")
    env.await_log("from a child")


def test_the_same_call_id_runs_once(env: Environment) -> None:
    headers = {"idempotency-key": "once-1"}
    answers = [env.tool("add", {"key": "once"}, headers=headers) for _ in range(5)]
    assert [answer.data for answer in answers] == [1] * 5
    assert {answer.headers["idempotency-key"] for answer in answers} == {"once-1"}
    assert env.tool("count", {"key": "once"}).data == 1


def test_a_repeat_joins_the_call_that_is_running(env: Environment) -> None:
    headers = {"idempotency-key": "join-1"}
    answers = in_parallel(*[partial(env.tool, "add", {"key": "join", "seconds": 0.5}, headers=headers)] * 8)
    assert [answer.data for answer in answers] == [1] * 8


def test_a_caller_that_was_cut_off_finds_its_result(env: Environment) -> None:
    body = b'{"key": "cut", "seconds": 0.4}'
    head = (
        f"POST /tools/add HTTP/1.1\r\nhost: localhost\r\nidempotency-key: cut-1\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with env.connect() as connection:
        connection.sendall(head.encode() + body)
        time.sleep(0.1)
    headers = {"idempotency-key": "cut-1"}
    assert env.tool("add", {"key": "cut", "seconds": 0.4}, headers=headers).data == 1
    assert env.tool("count", {"key": "cut"}).data == 1


def test_one_id_for_two_calls_is_a_conflict(env: Environment) -> None:
    headers = {"idempotency-key": "conflict-1"}
    assert env.tool("add", {"key": "c"}, headers=headers).status == 200
    for other in (
        env.tool("add", {"key": "d"}, headers=headers),
        env.tool("count", {"key": "c"}, headers=headers),
        env.post("/task/reward", headers=headers),
    ):
        assert (other.status, other.json["code"]) == (409, "call.conflict")
    assert env.tool("count", {"key": "d"}).data == 0


def test_a_failure_is_recorded_like_a_result(env: Environment) -> None:
    headers = {"idempotency-key": "fails-1"}
    answers = [env.tool("fail_once", {"key": "f"}, headers=headers) for _ in range(3)]
    assert [answer.json["error"] for answer in answers] == ["failed 1"] * 3


def test_refused_arguments_leave_the_id_free(env: Environment) -> None:
    headers = {"idempotency-key": "free-1"}
    assert env.tool("add", {"keys": "x"}, headers=headers).status == 422
    assert env.tool("add", {"key": "free"}, headers=headers).data == 1


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_call_id_that_is_none_is_refused(env: Environment, key: str) -> None:
    answer = env.tool("add", {"key": "unusable"}, headers={"idempotency-key": key})
    assert (answer.status, answer.json["code"]) == (400, "request.invalid")
    assert env.tool("count", {"key": "unusable"}).data == 0


def test_rewards_and_functions_run_once_too(env: Environment) -> None:
    for path in ("/task/reward", "/functions/touch"):
        headers = {"idempotency-key": f"once{path}"}
        first, second = (env.post(path, headers=headers).data for _ in range(2))
        assert first == second


def test_mcp_and_http_share_the_journal(env: Environment) -> None:
    meta = {"_meta": {"aenv/callId": "shared-1"}}
    call = {"name": "add", "arguments": {"key": "shared"}, **meta}
    results = [env.rpc("tools/call", call).json["result"], env.modern("tools/call", call).json["result"]]
    assert [result["structuredContent"] for result in results] == [{"result": 1}] * 2
    assert env.tool("add", {"key": "shared"}, headers={"idempotency-key": "shared-1"}).data == 1
    answer = env.rpc("tools/call", {**call, "arguments": {"key": "other"}})
    assert (answer.status, answer.json["error"]["data"]["code"]) == (409, "call.conflict")


def test_a_modern_client_that_hangs_up_cancels_its_call(own: Callable[..., Environment]) -> None:
    env = own("--log-calls")
    message = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"stubborn","_meta":{'
        b'"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}'
    )
    head = (
        "POST /mcp HTTP/1.1\r\nhost: localhost\r\n"
        "content-type: application/json\r\nmcp-protocol-version: 2026-07-28\r\n"
        f"mcp-method: tools/call\r\nmcp-name: stubborn\r\ncontent-length: {len(message)}\r\n\r\n"
    )
    with env.connect() as connection:
        connection.sendall(head.encode() + message)
        time.sleep(0.2)
    env.await_log("stubborn failed: ToolCancelled")


def test_a_session_cancels_by_notification(env: Environment) -> None:
    session = env.rpc("initialize", {"protocolVersion": "2025-11-25"}).headers["mcp-session-id"]
    headers = {"mcp-session-id": session}

    call = later(lambda: env.rpc("tools/call", {"name": "stubborn"}, id_=77, headers=headers))
    time.sleep(0.3)
    message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 77}}
    assert env.post("/mcp", message, headers=headers).status == 202
    assert "cancelled" in call.result(5).json["error"]["message"]


def test_calls_under_way_finish_before_the_server_ends(own: Callable[..., Environment]) -> None:
    env = own()

    sleeper = later(lambda: env.tool("nap", {"seconds": 1}))
    time.sleep(0.3)
    env.served.process.terminate()
    assert sleeper.result(20).data == "rested"
    assert wait_for(lambda: env.served.process.poll() is not None)
    assert env.served.process.returncode == 0
