from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from aenv.build.scaffold import TEMPLATES, scaffold
from aenv.define.load import load
from aenv.define.registry import Registry

Loader = Callable[[str], Registry]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def load_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loader]:
    """Writes a template and loads it as the server does."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)

    def loader(template: str) -> Registry:
        scaffold(tmp_path / "demo", "demo", "1.0.0", template)
        return load(tmp_path / "demo")

    yield loader
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def terminal(load_template: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The terminal template, loaded, in a workspace of its own."""
    workspace = tmp_path / "work"
    workspace.mkdir()
    monkeypatch.setenv("TERMINAL_WORKSPACE", str(workspace))
    load_template("terminal")
    module = sys.modules["terminal"]
    yield module
    module.session.close()


@pytest.fixture
def run(terminal: ModuleType) -> Run:
    function: Run = terminal.execute_command
    return function


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_tool_tells_a_language_model_what_it_does(template: str, load_template: Loader) -> None:
    registry = load_template(template)
    assert registry.tools
    assert registry.default_reward is not None
    assert registry.health is not None
    for tool in registry.tools.values():
        shown: Any = tool.to_mcp()
        assert shown["description"]
        assert all(schema.get("description") for schema in shown["inputSchema"].get("properties", {}).values())


def test_default_echoes_and_scores_the_echo(load_template: Loader) -> None:
    load_template("default")
    env = sys.modules["custom_env"]
    assert env.my_custom_reward("hello")["score"] == 0.0
    assert env.my_custom_echo_env("hello") == {"result": "hello"}
    assert env.my_custom_reward("hello")["score"] == 1.0
    assert env.get_status() == {"echoed": 1}
    assert env.check_health()["status"] == "healthy"


def test_terminal_merges_both_streams_and_tells_the_exit_status(run: Run) -> None:
    assert run("echo out; echo err >&2; (exit 7)") == {
        "output": "out\nerr\n",
        "returncode": 7,
        "timed_out": False,
        "note": "",
    }


def test_terminal_keeps_folder_variables_functions_and_the_last_status(run: Run, tmp_path: Path) -> None:
    run("mkdir inner; cd inner; plain=1; export EXPORTED=2; double() { echo $1$1; }; false")
    result = run("echo $? $plain $EXPORTED $(double x) ${PWD##*/}")
    assert result["output"] == "1 1 2 xx inner\n"
    assert run("pwd")["output"] == f"{tmp_path}/work/inner\n"


@pytest.mark.parametrize(
    "command",
    [
        "sleep 30; echo too late",
        "while :; do :; done",
        "for i in 1 2 3; do sleep 30 | cat; done",
        "work() { sleep 30; echo too late; }; work",
        f"{sys.executable} -c 'import time; time.sleep(30)'",
        "yes",
    ],
)
def test_terminal_interrupts_what_takes_too_long_and_keeps_its_state(run: Run, command: str) -> None:
    run("kept=yes; cd /; sleep 40 &")
    result = run(command, timeout=0.3)
    assert (result["timed_out"], result["returncode"]) == (True, 130)
    assert "too late" not in result["output"]
    assert run("echo $kept $PWD $(jobs | wc -l)")["output"] == "yes / 1\n"


def test_terminal_kills_what_does_not_mind_an_interrupt_and_stays_where_it_was(
    run: Run, terminal: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["session"], "GRACE", 0.2)
    run("cd /usr")
    result = run("trap '' INT; sleep 30", timeout=0.2)
    assert (result["timed_out"], result["returncode"]) == (True, 137)
    assert "killed" in result["note"]
    assert run("pwd")["output"] == "/usr\n"


@pytest.mark.parametrize(
    ("command", "returncode"),
    [
        ("exit 3", 3),
        ("exec sh -c 'exit 4'", 4),
        ("kill -9 $$", 137),
        ("set -e; (exit 5)", 5),
        ("( while :; do sleep 0.1; done ) & exit 6", 6),
    ],
)
def test_terminal_outlives_its_shell(run: Run, command: str, returncode: int) -> None:
    run("cd /usr; gone=x")
    result = run(command)
    assert (result["returncode"], result["timed_out"]) == (returncode, False)
    assert "the shell has ended" in result["note"]
    assert run("echo [$gone] $PWD") == {"output": "[] /usr\n", "returncode": 0, "timed_out": False, "note": ""}


def test_terminal_starts_at_home_when_its_folder_is_gone(run: Run, tmp_path: Path) -> None:
    run("mkdir gone && cd gone && rmdir ../gone")
    run("exit")
    assert run("pwd")["output"] == f"{tmp_path}/work\n"


@pytest.mark.parametrize("command", ["echo 'abc", "echo $(", "echo ${", "for", "}", ")", "echo one &&", "cat <<X\nhe"])
def test_terminal_takes_half_a_command_for_what_it_is(run: Run, command: str) -> None:
    assert "bash:" in run(command, timeout=5)["output"]
    assert run("echo fine")["output"] == "fine\n"


@pytest.mark.parametrize("command", ["", "\n\n", "# nothing", "set -u; echo $unset_name", "set -x; true"])
def test_terminal_goes_on_after_an_odd_command(run: Run, command: str) -> None:
    assert run(command, timeout=5)["timed_out"] is False
    assert run("{ set +x; set +u; } 2>/dev/null; echo fine")["output"].endswith("fine\n")


def test_terminal_carries_any_text_both_ways(run: Run) -> None:
    text = "é € 😀 'single' \"double\" $HOME `tick` !! \\n %s \t end"
    assert run(f"cat <<'END'\n{text}\nEND")["output"] == f"{text}\n"
    assert run("x=" + "a" * 300_000 + "; echo ${#x}")["output"] == "300000\n"


def test_terminal_shows_bytes_that_are_no_text(run: Run) -> None:
    assert run(r"printf 'a\000b\377c\n'")["output"] == "a\x00b\ufffdc\n"
    assert run("head -c 100000 /dev/urandom")["returncode"] == 0


def test_terminal_keeps_the_beginning_and_the_end_of_huge_output(run: Run) -> None:
    result = run("echo first; yes | head -c 20000000; echo last", timeout=30)
    output = result["output"]
    assert output.startswith("first\ny\n")
    assert output.endswith("y\nlast\n")
    assert "[... 19900011 bytes left out ...]" in output
    assert len(output) < 100_100


def test_terminal_does_not_wait_for_what_runs_in_the_background(run: Run) -> None:
    run("sleep 30 &", timeout=10)
    assert run("echo found", timeout=10)["output"] == "found\n"
    # One that prints without end is heard along with the commands, as on any terminal.
    run("yes &", timeout=10)
    assert "y\ny\n" in run("sleep 0.2", timeout=10)["output"]
    run("kill %2; wait %2", timeout=10)
    assert run("echo quiet", timeout=10)["output"] == "quiet\n"


def test_terminal_gives_commands_no_input_and_no_terminal(run: Run) -> None:
    assert run("cat; read line; echo [$line]; test -t 1 || echo none", timeout=5)["output"] == "[]\nnone\n"
    assert run("cat /dev/tty", timeout=5)["returncode"] == 1


def test_terminal_takes_one_command_at_a_time(run: Run) -> None:
    def twice(number: int) -> str:
        return str(run(f"echo {number}; sleep 0.02; echo {number}")["output"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(twice, range(16))) == [f"{number}\n{number}\n" for number in range(16)]


@pytest.mark.parametrize(("command", "timeout"), [("true", 0), ("true", -1), ("true", float("nan")), ("a\0b", 1)])
def test_terminal_refuses_what_makes_no_sense(run: Run, command: str, timeout: float) -> None:
    with pytest.raises(ValueError, match=r"timeout must be more than 0|cannot hold a NUL"):
        run(command, timeout)


def test_terminal_is_unhealthy_when_its_shell_was_killed_and_healthy_again_after_the_next_command(
    terminal: ModuleType,
) -> None:
    assert terminal.check_health()["status"] == "healthy"
    pid = int(terminal.execute_command("echo $$")["output"])
    assert terminal.check_health()["status"] == "healthy"
    os.kill(pid, 9)
    deadline = time.monotonic() + 5
    while terminal.check_health()["status"] == "healthy" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert terminal.check_health()["status"] == "unhealthy"
    assert "was killed" in terminal.execute_command("true")["note"]
    assert terminal.check_health()["status"] == "healthy"


def test_terminal_ends_all_that_it_started(terminal: ModuleType) -> None:
    output = terminal.execute_command("sleep 50 & echo $!")["output"]
    pid = int(output.split()[-1])
    terminal.session.close()
    deadline = time.monotonic() + 5
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_terminal_has_a_folder_of_its_own_unless_it_is_given_one(
    load_template: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TERMINAL_WORKSPACE", raising=False)
    load_template("terminal")
    module = sys.modules["terminal"]
    home = Path(module.execute_command("pwd")["output"].strip())
    assert list(home.iterdir()) == []
    module.session.close()
    assert not home.exists()


def test_terminal_finds_files_where_the_session_stands(terminal: ModuleType, tmp_path: Path) -> None:
    terminal.execute_command("mkdir inner && cd inner")
    assert terminal.write_file("deep/a.txt", "hé")["size"] == 3
    assert (tmp_path / "work/inner/deep/a.txt").read_text() == "hé"
    assert terminal.read_file("deep/a.txt")["content"] == "hé"
    terminal.execute_command("head -c 250000 /dev/zero > big; mkfifo pipe")
    big = terminal.read_file("big")
    assert (len(big["content"]), big["size"], big["truncated"]) == (100_000, 250_000, True)
    for path in ("missing", "pipe", "."):
        with pytest.raises(FileNotFoundError):
            terminal.read_file(path)


def test_terminal_reward_is_not_decided_by_the_agents_shell(terminal: ModuleType) -> None:
    terminal.execute_command("touch done; test() { return 0; }; export -f test; cd /")
    assert terminal.check("test -f done") == 1.0
    assert terminal.check("test -f missing") == 0.0
    assert terminal.check("sleep 30", timeout=0.2) == 0.0


def test_gym_is_the_same_for_the_same_seed(load_template: Loader) -> None:
    load_template("gym")
    world = sys.modules["gridworld"]
    grids = [world.reset(seed)["observation"]["grid"] for seed in (1, 2, 1)]
    assert grids[0] == grids[2] != grids[1]
    unseeded = world.reset()
    assert world.reset(unseeded["info"]["seed"])["observation"] == unseeded["observation"]


def test_gym_pays_for_the_goal_and_charges_for_steps(load_template: Loader) -> None:
    load_template("gym")
    world = sys.modules["gridworld"]
    assert world.episode_return() == 0.0
    for unusable in (world.state, lambda: world.step("up")):
        with pytest.raises(RuntimeError, match="call reset first"):
            unusable()
    # Any seed will do: the grid is drawn until the goal can be reached.
    world.reset(3)
    path = _solve(world)
    results = [world.step(action) for action in path]
    assert results[-1]["terminated"]
    assert world.episode_return() == pytest.approx(1.0 - 0.01 * (len(path) - 1))
    with pytest.raises(RuntimeError, match="the episode is over"):
        world.step("up")


def _solve(world: ModuleType) -> list[str]:
    walls = world.episode.walls
    paths: dict[tuple[int, int], list[str]] = {world.START: []}
    ahead = [world.START]
    for row, column in ahead:
        for action, (down, right) in world.MOVES.items():
            cell = (row + down, column + right)
            if cell not in paths and world.is_free(cell, walls):
                paths[cell] = [*paths[(row, column)], action]
                ahead.append(cell)
    return paths[world.GOAL]


def test_gym_ends_an_episode_that_leads_nowhere(load_template: Loader) -> None:
    load_template("gym")
    world = sys.modules["gridworld"]
    world.reset(3)
    last = [world.step("up") for _ in range(world.MAX_STEPS)][-1]
    assert (last["truncated"], last["terminated"]) == (True, False)
    assert world.state()["truncated"]


@pytest.fixture
def agent(load_template: Loader, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for part in ("BASE_URL", "API_KEY", "MODEL"):
        monkeypatch.delenv(f"OPENAI_{part}", raising=False)
    load_template("agent")
    return sys.modules["agent"]


def test_agent_remembers_within_a_conversation_and_not_across(agent: ModuleType) -> None:
    first = agent.chat("Hello, my name is Ada")
    assert "Ada" in agent.chat("What is my name?", first["conversation_id"])["reply"]
    assert "Ada" not in agent.chat("What is my name?")["reply"]
    assert agent.said("ada", first["conversation_id"]) == 1.0
    assert agent.reset_conversation(first["conversation_id"])["forgotten"] == 2
    assert agent.said("ada") == 0.0
    with pytest.raises(ValueError, match="no conversation 'x'"):
        agent.chat("hello", "x")


def test_agent_asks_the_model_that_is_configured(agent: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    answers = [(200, {"choices": [{"message": {"content": "Bonjour"}}]}), (401, {"error": "bad key"}), (200, {})]

    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, self.headers["authorization"], body))
            status, answer = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1/")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        monkeypatch.setenv("OPENAI_MODEL", "small")
        first = agent.chat("hello")
        with pytest.raises(RuntimeError, match="the model answered 401") as refused:
            agent.chat("again", first["conversation_id"])
        with pytest.raises(RuntimeError, match="does not answer as an OpenAI-compatible endpoint"):
            agent.chat("again", first["conversation_id"])
        server.shutdown()

    path, key, body = asked[0]
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer sk-secret", "small")
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert first["reply"] == "Bonjour"
    assert "sk-secret" not in str(refused.value)
    assert len(agent.conversations[first["conversation_id"]].messages) == 2
