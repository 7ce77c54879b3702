"""The catalog of checks, its page in the reference, and how a report is printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from aenv.build.validate import render
from aenv.build.validate.catalog import RUN, SERVED, STATIC
from aenv.build.validate.files import changes, snapshot
from aenv.build.validate.findings import Check
from aenv.cli.main import main

ROOT = Path(__file__).parents[3]
CHECKS: list[Check[Any]] = [*STATIC, *RUN, *SERVED]
TOOL = "from aenv import register_tool\n\n\n@register_tool\ndef look() -> int:\n    return 1\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/env.py").write_text(TOOL)
    (tmp_path / "config.json").write_text('{"name": "probe", "version": "1.0.0"}')
    return tmp_path


def write_config(project: Path, **more: object) -> None:
    (project / "config.json").write_text(json.dumps({"name": "probe", "version": "1.0.0", **more}))


def test_the_page_in_the_reference_is_current() -> None:
    written = (ROOT / "docs/reference/findings.md").read_text(encoding="utf-8")
    assert written == render(), "write what aenv.build.validate.render() returns into docs/reference/findings.md"


def test_every_code_is_dotted_and_there_once() -> None:
    codes = [check.code for check in CHECKS]
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not re.fullmatch(r"[a-z]+\.[a-z_]+", code)] == []


def test_every_check_says_what_it_looks_for_and_what_to_do() -> None:
    for check in CHECKS:
        assert check.about.endswith("."), check.code
        assert check.remedy or check.severity == "info", check.code
        assert "|" not in check.about + check.remedy, check.code
        assert check.find.__doc__, check.code
        assert check.find.__doc__.startswith(check.code), check.code


def test_only_errors_are_fatal() -> None:
    assert {check.severity for check in CHECKS if check.is_fatal} == {"error"}


def test_a_sound_project_ends_with_0_and_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(project), "--level", "static"]) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"no errors, no warnings in \d\.\d s\n", out)
    assert err == ""


def test_warnings_fail_only_when_asked_to(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(project, deployConfig={"memoryy": "1Gi"})
    command = ["validate", str(project), "--level", "static"]
    assert main(command) == 0
    assert main([*command, "--strict"]) == 1
    assert "1 warning in" in capsys.readouterr().out.splitlines()[-1]


def test_findings_are_grouped_by_code_and_share_a_hint(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "requirements.txt").write_text("a b\nc=d\n")
    write_config(project, dashboard=1)
    assert main(["validate", str(project), "--level", "static"]) == 1
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "error: requirements.invalid",
        "  requirements.txt:1 is 'a b', which pip cannot read",
        "  requirements.txt:2 is 'c=d', which pip cannot read",
        "  hint: write a package and its versions, such as `numpy>=2`",
        "",
        "info: config.unknown_key",
        "  config.json: dashboard is not a key that aenv knows",
        "  hint: nothing, if another program reads it; else remove it",
        "",
    ]


def test_a_project_that_cannot_be_run_is_told_to_be_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "src/env.py").write_text("def f(:\n")
    assert main(["validate", str(project)]) == 1
    *_, told, summary = capsys.readouterr().out.splitlines()
    assert told == "the project was not run: correct the errors above first, then look again"
    assert summary.startswith("1 error in ")


def test_what_an_author_wrote_does_not_steer_the_terminal(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(project, **{"\x1b[2J": 1})
    main(["validate", str(project), "--level", "static"])
    assert "\x1b" not in capsys.readouterr().out


def test_json_is_one_object_alone_on_stdout(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_config(project, deployConfig={"cpu": "1 core"})
    assert main(["validate", str(project), "--level", "static", "-o", "json"]) == 1
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert list(report) == ["project", "level", "findings", "summary", "checks", "measured", "duration_s"]
    assert report["project"] == str(project)
    assert report["summary"] == {"error": 1, "warning": 0, "info": 0}
    assert [list(finding) for finding in report["findings"]] == [["code", "severity", "where", "message", "remedy"]]
    assert err == ""


@pytest.mark.parametrize("arguments", [["gone"], ["config.json"], ["--level", "deep"], [".", "extra"]])
def test_a_wrong_command_line_ends_with_2(
    project: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    assert main(["validate", *arguments]) == 2
    assert capsys.readouterr().out == ""


def test_files_are_compared_by_what_a_write_changes(tmp_path: Path) -> None:
    for name in ("same", "changed", "removed", "folder/same"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = snapshot(tmp_path)
    (tmp_path / "changed").write_text("something else")
    (tmp_path / "removed").unlink()
    (tmp_path / "folder/new").write_text("")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/x.pyc").write_text("")
    found = [f"{path} {verdict}" for path, verdict in changes(before, snapshot(tmp_path))]
    assert found == ["changed was changed", "folder/new was written", "removed was removed"]
