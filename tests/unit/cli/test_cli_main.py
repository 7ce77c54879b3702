from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from aenv._version import __version__
from aenv.cli.main import COMMANDS, Entry, main
from aenv.errors import AEnvError, ConfigError, LoadError, NotFound

Capture = pytest.CaptureFixture[str]
Body = Callable[[], object]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], None]:
    """Adds a command `act` that does what the test says."""

    def add(body: Body) -> None:
        module = types.ModuleType("a_command_of_a_test")
        vars(module)["act"] = click.Command("act", callback=body)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(COMMANDS, "act", Entry(f"{module.__name__}:act", "Act.", "Project"))

    return add


def raising(error: BaseException) -> Body:
    def body() -> object:
        raise error

    return body


def run(program: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60)


def test_without_arguments_it_prints_its_help(capsys: Capture) -> None:
    assert main([]) == 0
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]


def test_help_shows_every_command_under_its_section(capsys: Capture) -> None:
    main(["--help"])
    blocks = capsys.readouterr().out.split("\n\n")
    for name, entry in COMMANDS.items():
        block = next(block for block in blocks if block.startswith(f"{entry.section}:"))
        assert any(line.split() == [name, *entry.help.split()] for line in block.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_of_a_command_what_it_says_of_itself(name: str) -> None:
    module, _, attribute = COMMANDS[name].target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert (command.name, str(command.help).splitlines()[0]) == (name, COMMANDS[name].help)


def test_help_and_completion_import_no_command_and_nothing_heavy() -> None:
    program = """
import os, sys
from aenv.cli.main import main
main(["--help"])
os.environ.update(_AENV_COMPLETE="bash_complete", COMP_WORDS="aenv ", COMP_CWORD="1")
try:
    main([])
except SystemExit:
    pass
print(*sorted(sys.modules), file=sys.stderr)
"""
    done = run(program)
    loaded = set(done.stderr.split())
    assert "plain,init" in done.stdout
    assert not {"rich", "pydantic", "asyncio", "json", "orjson", "aenv.build", "aenv.define", "aenv.model"} & loaded
    assert not [name for name in loaded if name.startswith("aenv.cli.commands")]


def test_the_version_is_printed(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"aenv {__version__}\n"


@pytest.mark.parametrize(("typed", "meant"), [("inti", "init"), ("tset", "test"), ("RUN", "run")])
def test_an_unknown_command_is_answered_with_the_nearest(typed: str, meant: str, capsys: Capture) -> None:
    assert main([typed]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: no such command {typed!r}\nhint: did you mean {meant!r}? see `aenv --help`\n")


def test_a_command_like_no_other_is_answered_with_the_help(capsys: Capture) -> None:
    assert main(["xyzzy"]) == 2
    assert capsys.readouterr().err == "error: no such command 'xyzzy'\nhint: see `aenv --help`\n"


def test_an_unknown_option_is_answered_with_the_nearest(capsys: Capture) -> None:
    assert main(["init", "demo", "--forc"]) == 2
    err = capsys.readouterr().err
    assert "error: no such option" in err
    assert "hint: did you mean '--force'? see `aenv init --help`" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AEnvError("it broke", hint="mend it"), 1),
        (ConfigError("it broke", hint="mend it"), 3),
        (NotFound("it broke", hint="mend it"), 4),
    ],
)
def test_an_error_of_ours_is_two_lines_and_its_exit_code(
    error: AEnvError, code: int, install: Callable[[Body], None], capsys: Capture
) -> None:
    install(raising(error))
    assert main(["act"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: it broke\nhint: mend it\n")


def test_an_error_without_a_hint_is_one_line(install: Callable[[Body], None], capsys: Capture) -> None:
    install(raising(AEnvError("it broke")))
    main(["act"])
    assert capsys.readouterr().err == "error: it broke\n"


def test_an_authors_own_traceback_stands_above_the_error(install: Callable[[Body], None], capsys: Capture) -> None:
    frames = ["Traceback (most recent call last):", '  File "src/tools.py", line 3', "NameError: x"]
    install(raising(LoadError("src/tools.py: NameError: x", traceback=frames)))
    assert main(["act"]) == 1
    assert capsys.readouterr().err.splitlines() == [*frames, "error: src/tools.py: NameError: x"]


def test_an_unexpected_error_is_one_line_and_a_hint(install: Callable[[Body], None], capsys: Capture) -> None:
    install(raising(ValueError("odd")))
    assert main(["act"]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: unexpected ValueError: odd"
    assert "--debug" in hint


def test_debug_shows_the_traceback_of_every_error(install: Callable[[Body], None], capsys: Capture) -> None:
    for error in (ValueError("odd"), AEnvError("odd")):
        install(raising(error))
        assert main(["--debug", "act"]) == 1
        err = capsys.readouterr().err
        assert err.startswith("Traceback")
        assert "odd" in err.splitlines()[-1]


def test_an_interrupt_is_130_without_a_word(install: Callable[[Body], None], capsys: Capture) -> None:
    install(raising(KeyboardInterrupt()))
    assert main(["act"]) == 130
    assert capsys.readouterr().err.strip() == ""


def test_saying_no_to_a_question_is_an_ordinary_failure(install: Callable[[Body], None], capsys: Capture) -> None:
    install(raising(click.Abort()))
    assert main(["act"]) == 1
    assert capsys.readouterr().err == "error: aborted\n"


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (7, 7), ("text", 0)])
def test_a_command_may_return_its_exit_code(
    returned: object, code: int, install: Callable[[Body], None], capsys: Capture
) -> None:
    install(lambda: returned)
    assert main(["act"]) == code


def test_a_reader_that_went_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("import sys; from aenv.cli.main import main; sys.exit(main(['--help']))", stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_full_disk_under_stdout_is_an_error_told_once() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full; run the tests on Linux")
    with full.open("w") as stream:
        done = run("import sys; from aenv.cli.main import main; sys.exit(main(['--help']))", stdout=stream.fileno())
    assert done.returncode == 1
    assert done.stderr.count("No space left on device") == 1


def test_colours_are_for_terminals_only(install: Callable[[Body], None], capsys: Capture) -> None:
    install(raising(AEnvError("it broke")))
    main(["act"])
    assert "\x1b" not in capsys.readouterr().err


def test_version_has_a_short_and_a_json_form(capsys: Capture) -> None:
    assert main(["version", "--short"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    assert main(["version", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["aenv"], said["python"]) == (__version__, sys.version.split()[0])
    assert main(["version"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["aenv", __version__]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str, capsys: Capture) -> None:
    assert main(["completion", shell]) == 0
    out, err = capsys.readouterr()
    assert "_AENV_COMPLETE" in out
    assert err == ""
