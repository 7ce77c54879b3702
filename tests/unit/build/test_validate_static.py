"""What `aenv validate --level static` finds by reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aenv.build.validate import validate
from aenv.build.validate.config import script_files
from aenv.build.validate.findings import CheckFailed, Finding
from aenv.build.validate.packages import read_requirements

TOOL = "from aenv import register_tool\n\n\n@register_tool\ndef look() -> int:\n    return 1\n"


def project(folder: Path, files: dict[str, str] | None = None, **config: Any) -> Path:
    """A sound project of one tool, with these files and keys besides."""
    written = {"config.json": json.dumps({"name": "probe", "version": "1.0.0", **config}), "src/env.py": TOOL}
    for path, text in {**written, **(files or {})}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def findings(folder: Path) -> list[Finding]:
    return list(validate(folder, level="static").findings)


def found(folder: Path, code: str) -> list[str]:
    """The sentences of the findings with this code."""
    return [f"{finding.where} {finding.message}" for finding in findings(folder) if finding.code == code]


def variables(**values: str) -> dict[str, Any]:
    return {"environmentVariables": values}


def test_a_sound_project_has_no_findings(tmp_path: Path) -> None:
    report = validate(project(tmp_path), level="static")
    assert report.findings == ()
    assert "config.invalid" in report.checks
    assert "load.failed" not in report.checks


def test_the_static_level_runs_nothing_of_the_author(tmp_path: Path) -> None:
    source = f"{TOOL}\nopen(__file__ + '.ran', 'w').close()\nraise SystemExit(1)\n"
    assert findings(project(tmp_path, {"src/env.py": source})) == []
    assert not (tmp_path / "src/env.py.ran").exists()
    assert not (tmp_path / "src/__pycache__").exists()


def test_a_folder_that_is_not_there_is_no_finding(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=r"cannot read .*gone") as caught:
        validate(tmp_path / "gone")
    assert caught.value.exit_code == 3


def test_every_problem_of_the_configuration_is_a_finding_with_its_path_and_hint(tmp_path: Path) -> None:
    folder = project(tmp_path, deployConfig={"cpu": "1 core", "ttl": "1d"})
    assert {(finding.where, finding.remedy) for finding in findings(folder)} == {
        ("config.json: deployConfig.cpu", "did you mean '1'?"),
        ("config.json: deployConfig.ttl", "did you mean '24h'?"),
    }


def test_text_that_is_no_json_is_shown_with_its_line(tmp_path: Path) -> None:
    folder = project(tmp_path, {"config.json": '{"name": "x",}\n'})
    [finding] = findings(folder)
    assert (finding.code, finding.where) == ("config.unreadable", "config.json:1")
    assert finding.message.startswith("is not JSON: ")
    assert finding.remedy == "remove the comma before the closing bracket"


@pytest.mark.parametrize("text", ["", "\xff\xfe", "[" * 5000])
def test_text_of_any_kind_instead_of_json_is_one_finding(tmp_path: Path, text: str) -> None:
    folder = project(tmp_path)
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    [finding] = findings(folder)
    assert (finding.code, finding.where.partition(":")[0]) == ("config.unreadable", "config.json")


def test_a_folder_in_the_place_of_the_configuration_cannot_be_read(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert found(folder, "config.unreadable") == ["config.json cannot be read: is a directory"]


def test_a_fatal_finding_keeps_the_project_from_being_run(tmp_path: Path) -> None:
    report = validate(project(tmp_path, {"src/env.py": "def f(:\n"}), level="runtime")
    assert report.is_partial
    assert [finding.where for finding in report.findings] == ["src/env.py:1"]
    assert "load.failed" not in report.checks


def test_keys_are_misspelt_when_one_is_near_and_unknown_when_none_is(tmp_path: Path) -> None:
    folder = project(tmp_path, cpu="1", dashboard="yes", deployConfig={"timeToLive": "1h", "memoryy": "1Gi"})
    assert [finding.where for finding in findings(folder) if finding.code == "config.misspelt_key"] == [
        "config.json: cpu",
        "config.json: deployConfig.memoryy",
    ]
    assert len(found(folder, "config.unknown_key")) == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ID", "AKIAIOSFODNN7EXAMPLE"),
        ("ID", "sk-proj-abcdefghijklmnopqrst"),
        ("ID", "Server=db;Password=hunter2"),
        ("ID", "postgres://ada:hunter2@db/x"),
        ("ID", "-----BEGIN RSA PRIVATE KEY-----"),
        ("DB_PASSWORD", "hunter2"),
        ("HF_TOKEN", "abc"),
    ],
)
def test_secrets_are_found_and_not_shown(tmp_path: Path, name: str, value: str) -> None:
    folder = project(tmp_path, deployConfig=variables(**{name: value}))
    [finding] = findings(folder)
    assert (finding.code, finding.severity) == ("config.secret", "warning")
    assert value not in repr(finding) or len(value) <= 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_TOKENS", "4096"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("DB_PASSWORD", "${DB_PASSWORD}"),
        ("DB_PASSWORD", ""),
        ("API_KEY", "<your key>"),
        ("API_KEY", "change-me"),
        ("TOKEN", "/run/secrets/token"),
        ("URL", "https://example.com/a:b@c"),
        ("NAME", "task-sk-learning"),
        ("MODEL", "/models/llm"),
        ("STORE", "/home/admin/data/x"),
    ],
)
def test_what_only_resembles_a_secret_or_a_machine_path_is_left_alone(tmp_path: Path, name: str, value: str) -> None:
    assert findings(project(tmp_path, deployConfig=variables(**{name: value}))) == []


@pytest.mark.parametrize("path", ["/home/ada/x", "/Users/ada/x", "C:\\Users\\ada", "/root/x"])
def test_a_path_of_one_machine_is_found(tmp_path: Path, path: str) -> None:
    assert len(found(project(tmp_path, deployConfig=variables(DATA=path)), "config.machine_path")) == 1


def test_a_build_file_outside_of_the_project_is_found(tmp_path: Path) -> None:
    folder = project(tmp_path, buildConfig={"context": "/srv/build"})
    assert len(found(folder, "config.machine_path")) == 1


def test_a_dockerfile_is_only_missed_where_it_is_named(tmp_path: Path) -> None:
    assert findings(project(tmp_path)) == []
    assert len(found(project(tmp_path, buildConfig={"dockerfile": "./Dockerfile"}), "build.dockerfile_missing")) == 1
    assert findings(project(tmp_path, {"Dockerfile": "FROM x"}, buildConfig={"dockerfile": "./Dockerfile"})) == []


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("", []),
        ("pytest test", ["test"]),
        ("python -m pytest test tests/a.py::test_x", ["tests/a.py", "test"]),
        ("pytest -q test", []),
        ("pytest test && echo all good", ["test"]),
        ("pytest test; echo done", []),
        ("pytest --junitxml out/report.xml -k reward", []),
        ("bash scripts/run.sh --fast", ["scripts/run.sh"]),
        ("./run.sh", ["./run.sh"]),
        ("sh test.sh", ["test.sh"]),
        ("cd tests && pytest unit", []),
        ("/usr/bin/python3 check.py", ["check.py"]),
        ("LEVEL=1 python $HOME/x.py 'tests/*.py'", []),
        ("curl http://localhost:8081/health", []),
        ("echo 'unclosed", []),
    ],
)
def test_only_words_that_must_be_files_are_taken_for_files(script: str, files: list[str]) -> None:
    assert sorted(script_files(script)) == sorted(files)


@pytest.mark.parametrize(
    ("block", "where"),
    [
        ([], "validation"),
        ({"reward": {"range": [1, 0]}}, "validation.reward.range"),
        ({"reward": {"range": [0, True]}}, "validation.reward.range"),
        ({"examplez": []}, "validation.examplez"),
        ({"examples": [{"tool": 3}]}, "validation.examples[0].tool"),
        ({"examples": [{"arguments": {}}]}, "validation.examples[0].tool"),
        ({"examples": [{"tool": "a", "arguments": []}]}, "validation.examples[0].arguments"),
        ({"rewardExamples": [{"expect": "high"}]}, "validation.rewardExamples[0].expect"),
    ],
)
def test_a_promise_of_the_wrong_shape_is_a_finding(tmp_path: Path, block: object, where: str) -> None:
    [finding] = findings(project(tmp_path, validation=block))
    assert (finding.code, finding.where) == ("validation.invalid", f"config.json: {where}")


def test_promises_of_the_right_shape_are_no_unknown_key(tmp_path: Path) -> None:
    block = {
        "reward": {"range": [0, 1.5]},
        "examples": [{"tool": "look", "arguments": {"a": [None]}, "expect": None}],
        "rewardExamples": [{"expect": 1}, {"reward": "x", "arguments": {}, "expect": [0, 1]}],
    }
    assert findings(project(tmp_path, validation=block)) == []


def test_a_misspelt_promise_is_told_with_the_right_word(tmp_path: Path) -> None:
    [finding] = findings(project(tmp_path, validation={"examplez": []}))
    assert finding.message == "is not a key of this block"
    assert finding.remedy.startswith("did you mean 'examples'")


def test_code_beside_the_configuration_is_imported_all_of_it_and_that_is_told(tmp_path: Path) -> None:
    folder = project(tmp_path, {"env.py": TOOL})
    (folder / "src/env.py").unlink()
    (folder / "src").rmdir()
    assert [finding.code for finding in findings(folder)] == ["source.no_src"]


@pytest.mark.parametrize("text", ["x = (\n", "def f():\nreturn\n", "a = '\0'\n", "# coding: nonsense\n", "'" + "\xff"])
def test_a_file_that_is_not_python_is_found_with_its_name(tmp_path: Path, text: str) -> None:
    folder = project(tmp_path)
    (folder / "src/bad.py").write_bytes(text.encode("latin-1"))
    [sentence] = found(folder, "source.syntax")
    assert sentence.startswith("src/bad.py")


def test_a_file_that_cannot_be_opened_is_found_too(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "src/dangling.py").symlink_to("nowhere.py")
    assert found(folder, "source.syntax") == [
        "src/dangling.py is not Python: it cannot be read: no such file or directory"
    ]


def test_names_of_the_standard_library_are_taken_at_the_top_only(tmp_path: Path) -> None:
    folder = project(tmp_path, {"src/json/tools.py": "", "src/deep/random.py": "", "src/aenv.py": ""})
    assert found(folder, "source.shadows_stdlib") == [
        "src/aenv.py takes the name 'aenv', which belongs to aenv itself",
        "src/json takes the name 'json', which belongs to the standard library",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "import aenv\n@aenv.register_reward(default=True)\ndef f() -> float: ...\n",
        "from aenv import register_tool as tool\n@tool\ndef f(): ...\n",
        "from aenv import get_registry\nget_registry().add_tool(print)\n",
        "import aenv as a\nfor f in (len, abs):\n    a.register_function(f)\n",
    ],
)
def test_every_way_to_register_counts(tmp_path: Path, source: str) -> None:
    assert found(project(tmp_path, {"src/env.py": source}), "define.nothing") == []


def test_what_a_private_module_registers_counts_too(tmp_path: Path) -> None:
    folder = project(tmp_path, {"src/env.py": "import _tools\n", "src/_tools.py": TOOL})
    assert findings(folder) == []


def test_names_repeat_only_within_a_kind_and_at_the_top_level(tmp_path: Path) -> None:
    source = """
import aenv, os

@aenv.register_tool
def look(): ...

@aenv.register_reward(name="look")
def score() -> float: ...

if os.environ.get("X"):
    @aenv.register_tool
    def other(): ...
else:
    @aenv.register_tool
    def other(): ...

NAME = "look"

@aenv.register_tool(name=NAME)
def computed(): ...

@aenv.register_tool(name="look")
def again(): ...
"""
    folder = project(tmp_path, {"src/env.py": source})
    assert found(folder, "define.duplicate") == [
        "src/env.py:23 registers the tool 'look' again, which is registered in src/env.py:5"
    ]


def test_blocking_calls_are_found_by_what_they_are_not_by_how_they_are_spelt(tmp_path: Path) -> None:
    source = """
import asyncio, subprocess, time
import requests as web
from time import sleep as nap
from aenv import register_tool, register_reward

@register_tool
async def bad() -> None:
    nap(1)
    if True:
        web.get("http://x")
    await asyncio.to_thread(time.sleep, 1)

    def inside() -> None:
        time.sleep(1)

@register_reward
async def worse() -> float:
    return float(subprocess.run(["true"]).returncode)

@register_tool
def fine() -> None:
    time.sleep(1)

async def not_a_tool() -> None:
    time.sleep(1)
"""
    folder = project(tmp_path, {"src/env.py": source, "requirements.txt": "requests"})
    assert [finding.where for finding in findings(folder)] == ["src/env.py:9", "src/env.py:11", "src/env.py:19"]
    assert found(folder, "source.blocking_call")[0].endswith(
        "calls time.sleep in the async tool 'bad': all others wait for it"
    )


def test_packages_are_missed_only_where_they_are_needed(tmp_path: Path) -> None:
    source = """
import json, os.path
import numpy.linalg
from env_parts import x
from . import y
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import pandas
try:
    import uvloop
except ImportError:
    uvloop = None
"""
    folder = project(tmp_path, {"src/more.py": source, "src/env_parts.py": "x = 1"})
    assert found(folder, "requirements.missing") == ["requirements.txt is missing, and the code imports numpy"]
    (folder / "pyproject.toml").write_text("[project]\n")
    assert findings(folder) == []


def test_modules_are_looked_for_under_the_names_of_their_packages(tmp_path: Path) -> None:
    source = "import yaml, sklearn, cv2, torch, google.protobuf\n"
    listed = "PyYAML\nscikit_learn>=1\nopencv.python\n"
    folder = project(tmp_path, {"src/more.py": source, "requirements.txt": listed})
    assert found(folder, "requirements.unlisted") == [
        "src/more.py:1 imports 'torch', and no line of requirements.txt seems to bring it",
        "src/more.py:1 imports 'google', and no line of requirements.txt seems to bring it",
    ]
    (folder / "requirements.txt").write_text("-r base.txt\n")
    assert found(folder, "requirements.unlisted") == []


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "numpy==2.0.*",
        "numpy >= 2, < 3 ; python_version < '3.13'  # why",
        "uvicorn[standard] ~= 0.30",
        "a.b-c_d (>=1)",
        "pip @ https://example.com/pip.zip",
        "numpy==2.0 --hash=sha256:abc",
        "git+https://example.com/x.git@main",
        "./wheels/x-1.0-py3-none-any.whl",
        "-e .",
        "--index-url https://example.com",
        "numpy==${VERSION}",
        "torch==2.1.0+cu121",
        "pkg===weird",
        "# a remark",
        "numpy \\\n  >=2",
    ],
)
def test_lines_that_pip_reads_are_right(line: str) -> None:
    assert read_requirements(line).wrong == ()


@pytest.mark.parametrize("line", ["numpy=>2", "numpy 2", "import numpy", "numpy==", "[extra]", "numpy>=2 <3", "=1"])
def test_lines_that_pip_refuses_are_wrong(line: str) -> None:
    [flaw] = read_requirements(f"aenvironment\n{line}\n").wrong
    assert flaw.where == "requirements.txt:2"
