from __future__ import annotations

import json
from pathlib import Path

import pytest

from aenv.build.scaffold import TEMPLATES
from aenv.cli.main import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_init_shows_what_was_written_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "demo"]) == 0
    out, err = capsys.readouterr()
    assert (tmp_path / "demo/src/custom_env.py").exists()
    assert out.splitlines()[0] == "demo/"
    assert "custom_env.py" in out
    steps = [line.split("  ")[1] for line in err.splitlines() if line.startswith("  ")]
    assert steps == ["cd demo", "aenv run", "aenv test"]


def test_json_is_alone_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "demo", "-v", "0.3.0", "-t", "gym", "-o", "json"]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert (said["name"], said["version"], said["template"]) == ("demo", "0.3.0", "gym")
    assert said["path"] == str(tmp_path / "demo")
    assert all((tmp_path / "demo" / name).is_file() for name in said["files"])
    assert "src/gridworld.py" in said["files"]
    assert err == ""


def test_a_work_folder_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my envs").mkdir()
    assert main(["init", "demo", "-w", "my envs"]) == 0
    assert (tmp_path / "my envs/demo/config.json").exists()
    assert "cd 'my envs/demo'" in capsys.readouterr().err


def test_a_work_folder_that_is_missing_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "demo", "-w", "missing"]) == 2
    assert "'missing' does not exist" in capsys.readouterr().err


def test_config_only_writes_into_the_work_folder_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "demo", "--config-only"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert "aenv validate" in capsys.readouterr().err


def test_a_second_init_fails_and_force_succeeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["init", "demo"])
    (tmp_path / "demo/src/mine.py").write_text("mine")
    capsys.readouterr()
    assert main(["init", "demo"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "already holds .gitignore, Dockerfile" in err
    assert "hint: `--force`" in err
    assert main(["init", "demo", "--force"]) == 0
    assert (tmp_path / "demo/src/mine.py").read_text() == "mine"


def test_a_name_that_may_not_be_one_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "My_Env"]) == 2
    assert capsys.readouterr().err.endswith("hint: did you mean 'my-env'?\n")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 2
    assert capsys.readouterr().err == "error: missing argument 'NAME'\nhint: see `aenv init --help`\n"


def test_an_unknown_template_is_answered_with_the_nearest_and_with_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "demo", "-t", "termnal"]) == 2
    err = capsys.readouterr().err
    assert "did you mean 'terminal'?" in err
    assert all(description in err for description in TEMPLATES.values())
    assert list(tmp_path.iterdir()) == []


def test_templates_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--list-templates", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {row["template"]: row["description"] for row in listed} == TEMPLATES
    assert list(tmp_path.iterdir()) == []


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--help"]) == 0
    assert "aenv init my-shell -t terminal" in capsys.readouterr().out
