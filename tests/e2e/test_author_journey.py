"""An author's way with the real executable: init, run, test, and what is said when something is wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_for

AENV = str(Path(sys.executable).with_name("aenv"))


def aenv(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [AENV, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
        check=False,
    )


class Running:
    """`aenv run` in the background, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def says(self, *words: str, after: int = 0) -> str:
        return wait_for(lambda: next((line for line in self.lines[after:] if all(w in line for w in words)), ""), 20)

    @property
    def url(self) -> str:
        return self.says("is served at").rpartition(" ")[2]

    def call(self, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)


@contextmanager
def running(cwd: Path, *arguments: str, **environ: str) -> Iterator[Running]:
    command = [AENV, "run", *arguments]
    env = {**os.environ, **environ}
    with subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True, env=env) as process:
        session = Running(process)
        try:
            yield session
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    assert aenv("init", "my-env", cwd=tmp_path).returncode == 0
    return tmp_path / "my-env"


def test_from_nothing_to_a_running_environment(tmp_path: Path) -> None:
    made = aenv("init", "first", "-o", "json", cwd=tmp_path)
    assert json.loads(made.stdout)["name"] == "first"
    with running(tmp_path / "first", "--port", "0") as session:
        session.says("tools", "my_custom_echo_env")
        session.says("rewards", "my_custom_reward")
        assert session.call("/tools/my_custom_echo_env", {"content": "hi"})["data"] == {"result": "hi"}
        assert session.call("/health")["data"]["status"] == "healthy"
        session.says("tool my_custom_echo_env ok")
    assert session.process.returncode == 0


def test_quiet_says_the_address_and_nothing_else(project: Path) -> None:
    with running(project, "--port", "0", "--quiet") as session:
        assert session.call("/tools/my_custom_echo_env", {"content": "hi"})["success"] is True
        assert len(session.lines) == 1


def test_a_change_starts_it_again_and_a_mistake_is_told_and_waited_out(project: Path) -> None:
    source = project / "src" / "custom_env.py"
    good = source.read_text()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    with running(project, "--port", port, "--reload") as session:
        session.says("Ctrl-C")
        seen = len(session.lines)
        source.write_text(good + "\ndef broken(:\n")
        session.says("error: src/custom_env.py: SyntaxError", after=seen)
        session.says("waiting for a change", after=seen)
        seen = len(session.lines)
        source.write_text(good.replace("my_custom_echo_env", "renamed_tool"))
        session.says("changed: src/custom_env.py", after=seen)
        session.says("tools", "renamed_tool", after=seen)
        assert session.call("/tools/renamed_tool", {"content": "hi"})["data"] == {"result": "hi"}


def test_a_file_that_does_not_import_is_named_with_the_authors_lines(project: Path) -> None:
    (project / "src" / "custom_env.py").write_text("import json\n\njson.loads('{')\n")
    done = aenv("run", "--port", "0", cwd=project)
    assert done.returncode == 1
    assert 'src/custom_env.py", line 3' in done.stderr
    assert "error: src/custom_env.py: JSONDecodeError" in done.stderr
    assert "decoder.py" not in done.stderr


def test_a_port_in_use_names_who_holds_it(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = aenv("run", "--port", str(port), cwd=project)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: address already in use: process {os.getpid()} listens" in done.stderr
    assert f"hint: end it, or choose another port: aenv run --port {port + 1}" in done.stderr


def test_a_wrong_configuration_is_told_before_anything_starts(project: Path) -> None:
    config = json.loads((project / "config.json").read_text())
    config["deployConfig"]["memory"] = "2 gigs"
    (project / "config.json").write_text(json.dumps(config))
    done = aenv("run", cwd=project)
    assert done.returncode == 3
    assert "deployConfig.memory is '2 gigs'" in done.stderr


def test_a_folder_without_a_project_is_told_what_to_do(tmp_path: Path) -> None:
    for command in ("run", "test"):
        done = aenv(command, cwd=tmp_path)
        assert done.returncode == 1
        assert "there is no config.json" in done.stderr
        assert "aenv init" in done.stderr


def test_requirements_that_are_not_installed_are_named_and_nothing_is_installed(project: Path) -> None:
    (project / "requirements.txt").write_text("aenvironment\nno-such-package-anywhere>=2  # a comment\n")
    with running(project, "--port", "0") as session:
        session.says("not installed: no-such-package-anywhere>=2", "pip install -r requirements.txt")
        session.says("is served at")


def test_the_inspector_is_served_on_the_same_port(project: Path) -> None:
    with running(project, "--port", "0", "--inspector") as session:
        page = session.says("inspector", "/inspector/").split()[-1]
        with urllib.request.urlopen(page, timeout=10) as answer:
            assert b"<title>" in answer.read()
            assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_the_public_inspector_is_refused_with_the_reason_where_it_cannot_run(project: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "npx").write_text("#!/bin/sh\nexit 9\n")
    (tools / "node").write_text("#!/bin/sh\necho v20.1.0\n")
    for tool in tools.iterdir():
        tool.chmod(0o755)
    with running(project, "--port", "0", "--inspector", "mcp", PATH=f"{tools}:/usr/bin:/bin") as session:
        session.says("the public MCP Inspector cannot be started: it needs Node 22, and here is v20.1.0")
        assert session.call("/health")["success"] is True


def test_the_projects_own_tests_run_against_a_fresh_instance(project: Path) -> None:
    done = aenv("test", cwd=project)
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout
    chosen = aenv("test", "--", "-k", "no_such_test", cwd=project)
    assert chosen.returncode == 1
    assert "exit code 5" in chosen.stderr


def test_failing_tests_show_the_instances_log(project: Path) -> None:
    config = json.loads((project / "config.json").read_text())
    script = 'curl -s "$AENV_TEST_URL/tools/noisy" -d "{}"; exit 3'
    config["testConfig"]["script"] = script.replace("curl -s", f"{sys.executable} fetch.py")
    (project / "config.json").write_text(json.dumps(config))
    (project / "fetch.py").write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1], b'{}')\n")
    (project / "src" / "noise.py").write_text(
        "from aenv import register_tool\n@register_tool\ndef noisy() -> None:\n    print('a word from the inside')\n"
    )
    done = aenv("test", cwd=project)
    assert done.returncode == 1
    assert "exit code 3" in done.stderr
    assert "a word from the inside" in done.stderr


def test_killing_the_command_ends_the_server(project: Path) -> None:
    with subprocess.Popen([AENV, "run", "--port", "0"], cwd=project, stderr=subprocess.PIPE, text=True) as process:
        session = Running(process)
        port = int(session.url.rpartition(":")[2])
        process.kill()

    def is_closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    assert wait_for(is_closed)


def test_help_is_there_for_every_command(tmp_path: Path) -> None:
    overview = aenv("--help", cwd=tmp_path)
    assert overview.returncode == 0
    for command in ("init", "run", "test", "validate", "completion", "version"):
        assert command in overview.stdout
        shown = aenv(command, "--help", cwd=tmp_path)
        assert shown.returncode == 0
        assert "Usage: aenv" in shown.stdout
