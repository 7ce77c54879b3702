"""`aenv validate` over broken projects, each caught by the check that is for it, and over sound ones."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aenv.build.scaffold import TEMPLATES, scaffold
from aenv.build.validate import validate
from aenv.build.validate.catalog import RUN, SERVED, STATIC
from aenv.build.validate.processes import MARK

CORPUS = Path(__file__).parents[1] / "corpus"
CASES = sorted(path.name for path in CORPUS.iterdir() if path.is_dir())
# What no small project can show in a moment, and what every project shows.
WITHOUT_CASE = {"envelope.slow_start"}

AENV = [sys.executable, "-c", "import sys; from aenv.cli.main import main; sys.exit(main())"]

TOOL = '''
from aenv import register_tool


@register_tool
def look() -> int:
    """Look at the world and count what is there."""
    return 1
'''


def expected(case: str) -> dict[str, str]:
    expectation: dict[str, str] = json.loads((CORPUS / case / "expect.json").read_text())
    return expectation


def run(folder: Path, *options: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*AENV, "validate", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(environ or {})}, timeout=60)


def write_project(folder: Path, source: str, **config: Any) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src/env.py").write_text(source)
    (folder / "config.json").write_text(json.dumps({"name": "probe", "version": "1.0.0", **config}))
    return folder


def marked() -> list[str]:
    """Command lines of processes that carry the mark of a validation, whoever's it was."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}=".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def outcomes(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[Any]]]:
    """Each broken project that is asked for, checked by the executable; several at once: most of it is waiting."""
    folder = tmp_path_factory.mktemp("corpus")

    def check(case: str) -> subprocess.CompletedProcess[str]:
        shutil.copytree(CORPUS / case, folder / case)
        return run(folder / case, "-o", "json", "--level", expected(case)["level"])

    asked = {item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(4) as pool:
        yield {case: pool.submit(check, case) for case in CASES if case in asked}


@pytest.mark.parametrize("case", CASES)
def test_a_broken_project_is_caught_by_the_check_that_is_for_it(
    case: str, outcomes: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    ended = outcomes[case].result()
    expectation = expected(case)
    report = json.loads(ended.stdout)
    found = {(finding["code"], finding["severity"]) for finding in report["findings"]}
    assert (expectation["code"], expectation["severity"]) in found, report["findings"]
    assert [other for other in found if other[1] != "info" and other[0] != expectation["code"]] == []
    assert ended.returncode == (1 if expectation["severity"] == "error" else 0)
    assert ended.stderr == ""


def test_every_check_has_a_broken_project() -> None:
    codes = {check.code for check in STATIC} | {check.code for check in RUN} | {check.code for check in SERVED}
    assert codes - {expected(case)["code"] for case in CASES} == WITHOUT_CASE


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_is_sound(template: str, tmp_path: Path) -> None:
    scaffold(tmp_path / "probe", "probe", "1.0.0", template)
    ended = run(tmp_path / "probe", "--strict", "-o", "json")
    report = json.loads(ended.stdout)
    assert report["findings"] == []
    assert report["measured"]["start_s"] > 0
    assert ended.returncode == 0


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, temporary = tmp_path / "probe", tmp_path / "tmp"
    temporary.mkdir()
    scaffold(folder, "probe", "1.0.0", "terminal")
    before = sorted(path for path in folder.rglob("*"))
    run(folder, environ={"TMPDIR": str(temporary)})
    assert sorted(path for path in folder.rglob("*")) == before
    assert list(temporary.iterdir()) == []


def test_what_a_project_ends_by_itself_is_no_leak(tmp_path: Path) -> None:
    source = f"""
import atexit, subprocess
{TOOL}

child = subprocess.Popen(["sleep", "300"], start_new_session=True)

@atexit.register
def end() -> None:
    child.kill()
    child.wait()
"""
    report = validate(write_project(tmp_path / "probe", source))
    assert report.findings == ()


def test_a_leaked_process_is_named_and_killed(tmp_path: Path) -> None:
    source = f"import subprocess\n{TOOL}\n\nsubprocess.Popen(['sleep', '301'], start_new_session=True)\n"
    report = validate(write_project(tmp_path / "probe", source))
    [leak] = [finding for finding in report.findings if finding.code == "leak.process"]
    assert leak.message.startswith("(sleep 301) outlived the server")
    assert [command for command in marked() if "301" in command] == []


def test_leaks_are_told_of_a_project_that_does_not_even_start(tmp_path: Path) -> None:
    source = "import subprocess\nsubprocess.Popen(['sleep', '302'], start_new_session=True)\nraise ValueError('no')\n"
    report = validate(write_project(tmp_path / "probe", f"{TOOL}\n{source}"))
    assert [finding.code for finding in report.findings] == ["load.failed", "leak.process"]


def test_the_traceback_is_the_authors_own(tmp_path: Path) -> None:
    report = validate(write_project(tmp_path / "probe", f"{TOOL}\n\nraise ValueError('no world')\n"))
    [finding] = report.findings
    assert finding.where == "src/env.py"
    first, *frames = finding.message.split("\n")
    assert first == "does not import: ValueError: no world"
    assert frames[-1] == "ValueError: no world"
    assert [line for line in frames if "File " in line and "src/env.py" not in line] == []


def test_variables_of_the_configuration_are_there_when_it_is_run(tmp_path: Path) -> None:
    source = f"import os\n{TOOL}\n\nassert os.environ['LEVEL'] == '3'\n"
    folder = write_project(tmp_path / "probe", source, deployConfig={"environmentVariables": {"LEVEL": "3"}})
    assert validate(folder).summary()["error"] == 0


def test_examples_are_called_in_order_and_rewards_after_them(tmp_path: Path) -> None:
    source = '''
from aenv import register_reward, register_tool

said: list[str] = []


@register_tool
def say(text: str) -> int:
    """Say a text and return how many were said.

    Args:
        text: What to say.
    """
    said.append(text)
    return len(said)


@register_reward
def score() -> float:
    """The part of the task that is done."""
    return len(said) / 2
'''
    examples = [
        {"tool": "say", "arguments": {"text": "a"}, "expect": 1},
        {"tool": "say", "arguments": {"text": "b"}, "expect": 2},
    ]
    promises = {"reward": {"range": [0, 1]}, "examples": examples, "rewardExamples": [{"expect": 1}]}
    report = validate(write_project(tmp_path / "probe", source, validation=promises))
    assert report.findings == ()


def test_the_world_outside_may_differ(tmp_path: Path) -> None:
    source = '''
import random

from aenv import register_tool


@register_tool(annotations={"readOnlyHint": True, "openWorldHint": True})
def weather() -> float:
    """Ask a weather station for the temperature."""
    return random.random()
'''
    assert validate(write_project(tmp_path / "probe", source)).summary()["error"] == 0


def test_a_folder_that_may_not_be_read_ends_with_3(tmp_path: Path) -> None:
    folder = write_project(tmp_path / "probe", TOOL)
    for part in (tmp_path, *tmp_path.parents[:2]):
        part.chmod(0o755)
    folder.chmod(0o000)
    # Root may read everything, so it becomes somebody else, once it has imported what only root may read.
    start = (
        "import os, sys, aenv.cli.commands.validate; from aenv.cli.main import main; os.getuid() or os.setuid(65534)"
    )
    command = [sys.executable, "-c", f"{start}; sys.exit(main())", "validate", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    folder.chmod(0o700)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.startswith(f"error: cannot read {str(folder)!r}: permission denied\nhint: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    source = f"""
import pathlib, subprocess, time
{TOOL}
child = subprocess.Popen(["sleep", "303"], start_new_session=True)
pathlib.Path({str(tmp_path / "started")!r}).touch()
time.sleep(60)
"""
    folder, temporary = write_project(tmp_path / "probe", source), tmp_path / "tmp"
    temporary.mkdir()
    command = [*AENV, "validate", str(folder)]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.DEVNULL) as process:
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(30) == 130
    assert [command for command in marked() if "303" in command] == []
    assert list(temporary.iterdir()) == []
