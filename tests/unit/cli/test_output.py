from __future__ import annotations

import io
import json
import sys
from pathlib import PurePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.cli.output import Json, Progress, _yaml, fail, say, show, table, tree, write

Capture = pytest.CaptureFixture[str]

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def test_json_on_stdout_is_one_document_and_nothing_else(capsys: Capture) -> None:
    data = {"text": "[bold]é\n:smile:" * 50, "list": [1, None, True]}
    show(data, output="json")
    out, err = capsys.readouterr()
    assert json.loads(out) == data
    assert "é" in out
    assert err == ""


def test_json_survives_a_stream_that_cannot_carry_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    show({"text": "é😀"}, output="json")
    stream.seek(0)
    assert json.loads(stream.read()) == {"text": "é😀"}


@given(documents)
def test_yaml_reads_back_as_what_was_shown(data: Json) -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")
    assert yaml.safe_load("\n".join(_yaml(data))) == data


@pytest.mark.parametrize(
    "data",
    [
        {"on": "no", "yes": "null", "a: b": "x # y", "": "", "~": "1e3", "0x1f": "- x"},
        [[], {}, [[]], [{}], [[1, [2]], {"a": [{"b": []}]}]],
        {"line": "a\u2028b\x85c\x7fd\ufeff", "odd": "\ud800", "astral": "😀"},
        [1e16, -1e-7, 1.5, 10**30],
        "alone",
    ],
)
def test_yaml_keeps_what_looks_like_something_else(data: Json) -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")
    assert yaml.safe_load("\n".join(_yaml(data))) == data


def test_yaml_is_pleasant_to_read(capsys: Capture) -> None:
    show({"name": "demo", "files": [{"path": "a", "size": 1}, {"path": "b", "size": 2}], "tags": []}, output="yaml")
    assert capsys.readouterr().out == (
        'name: "demo"\nfiles:\n  - path: "a"\n    size: 1\n  - path: "b"\n    size: 2\ntags: []\n'
    )


def test_a_list_of_rows_is_a_table_with_the_columns_asked_for(capsys: Capture) -> None:
    rows: list[Json] = [{"id": 1, "name": "one", "hidden": "x"}, {"id": 22, "name": None}]
    show(rows, output="table", columns={"name": "NAME", "id": "ID"})
    assert capsys.readouterr().out == "NAME  ID\none   1\n      22\n"


def test_one_object_is_shown_key_by_key(capsys: Capture) -> None:
    show({"is_ready": True, "tags": ["a", "b"]}, output="table")
    assert capsys.readouterr().out == 'is ready  yes\ntags      ["a", "b"]\n'


def test_an_empty_list_shows_the_columns_asked_for_or_nothing(capsys: Capture) -> None:
    show([], output="table", columns={"name": "NAME"})
    show([], output="table")
    assert capsys.readouterr().out == "NAME\n"


def test_nothing_is_cut_off_when_a_program_reads(capsys: Capture) -> None:
    table([{"text": "x" * 5000, "more": "y"}], {"text": "TEXT", "more": "MORE"})
    assert f"{'x' * 5000}  y\n" in capsys.readouterr().out


def test_what_comes_from_elsewhere_cannot_steer_the_terminal(capsys: Capture) -> None:
    table([{"text": "\x1b]0;owned\x07[red]x[/red]"}], {"text": "TEXT"})
    say("\x1b[31mred")
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "[red]x[/red]" in out


def test_a_tree_shows_folders_once(capsys: Capture) -> None:
    tree("demo/", [PurePath("src/a.py"), PurePath("b.txt"), PurePath("src/deep/c.py")])
    assert capsys.readouterr().out.splitlines() == [
        "demo/",
        "├── b.txt",
        "└── src/",
        "    ├── a.py",
        "    └── deep/",
        "        └── c.py",
    ]


def test_messages_and_failures_go_to_stderr(capsys: Capture) -> None:
    say("[hello] " + "word " * 60)
    fail("it broke", hint="mend it")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "[hello] " + "word " * 60 + "\nerror: it broke\nhint: mend it\n"


def test_text_is_written_as_it_is(capsys: Capture) -> None:
    write("[bold] \x1b[0m " + "x" * 300)
    assert capsys.readouterr().out == "[bold] \x1b[0m " + "x" * 300 + "\n"


def test_progress_is_silent_without_a_terminal(capsys: Capture) -> None:
    with Progress("working", total=2) as progress:
        progress.advance()
        progress.describe("still working")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "")


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    say("x", style="red")
    assert "\x1b[31m" in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    say("x", style="red")
    assert "\x1b[31m" not in capsys.readouterr().err
