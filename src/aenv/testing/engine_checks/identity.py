"""What a sandbox is told: variables, arguments, code; and what it is not."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from aenv.engines.protocol import Handle
from aenv.testing.engine_bench import OWNERS_VARIABLE, Bench
from aenv.testing.zoo import VERSION

ODD = {
    "empty": "",
    "unicode": "žluťoučký 🐎",
    "newlines": "one\ntwo\r\n\tthree\n",
    "quotes": "\"'`$(exit 1)\\${HOME}%s{}",
    "equals": "=a=b=",
    "large": "x" * 100_000,
}


def variables(bench: Bench, handle: Handle) -> dict[str, str]:
    """The process environment of a sandbox."""
    return cast("dict[str, str]", bench.call(handle, "variables"))


def test_the_instances_variables_lie_over_the_environments(bench: Bench) -> None:
    deploy = {"environmentVariables": {"COLOUR": "red", "SHAPE": "round"}}
    launch = bench.zoo.launch(deploy=deploy, variables={"COLOUR": "blue", "SIZE": "large"})
    seen = variables(bench, bench.start(launch))
    assert {name: seen.get(name) for name in ("COLOUR", "SHAPE", "SIZE")} == {
        "COLOUR": "blue",
        "SHAPE": "round",
        "SIZE": "large",
    }


def test_a_sandbox_knows_its_instance_and_its_environment(bench: Bench) -> None:
    handle = bench.start()
    seen = variables(bench, handle)
    assert seen.get("AENV_INSTANCE_ID") == handle.id
    assert seen.get("AENV_ENV_NAME") == "polite"
    assert seen.get("AENV_ENV_VERSION") == VERSION


@pytest.mark.parametrize("kind", ODD)
def test_odd_values_of_variables_arrive_unchanged(bench: Bench, kind: str) -> None:
    handle = bench.start(bench.zoo.launch(variables={"ODD": ODD[kind]}))
    assert variables(bench, handle).get("ODD") == ODD[kind]


def test_a_thousand_variables_arrive(bench: Bench) -> None:
    given = {f"VARIABLE_{number}": str(number) for number in range(1000)}
    seen = variables(bench, bench.start(bench.zoo.launch(variables=given)))
    assert {name: seen.get(name) for name in given} == given


def test_child_processes_see_the_variables(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch(variables={"COLOUR": "blue"}))
    seen = bench.call(handle, "shell", command='printf %s "$COLOUR $AENV_INSTANCE_ID"')
    assert seen == {"code": 0, "output": f"blue {handle.id}"}


def test_code_that_is_not_preloaded_sees_its_variables_while_it_is_imported(bench: Bench) -> None:
    launch = bench.zoo.launch(deploy={"preload": False}, variables={"COLOUR": "blue"})
    assert bench.call(bench.start(launch), "variable_at_import", name="COLOUR") == "blue"


def test_arguments_are_what_author_code_finds_in_argv(bench: Bench) -> None:
    given = ["--level", "3", "", "two words", "žluťoučký 🐎", "new\nline", "--help", "-c", "x" * 10_000]
    assert bench.call(bench.start(bench.zoo.launch(arguments=given)), "arguments") == given
    assert bench.call(bench.start(), "arguments") == []


def test_nothing_of_the_owners_environment_leaks_in(bench: Bench) -> None:
    handle = bench.start()
    secret = os.environ[OWNERS_VARIABLE]
    assert [name for name, value in variables(bench, handle).items() if secret in value] == []
    own = bench.call(handle, "shell", command="cat /proc/$PPID/environ /proc/self/environ | tr '\\0' '\\n'")
    assert secret not in str(own)


def test_code_is_only_read_and_stays_as_it_was(bench: Bench) -> None:
    launch = bench.zoo.launch()
    before = snapshot(launch.project)
    handle = bench.start(launch)
    bench.call(handle, "write_file", path="note.txt", text="mine")
    bench.call(handle, "shell", command="echo '# changed' >> src/polite.py; rm -f config.json")
    bench.stop(handle)
    assert snapshot(launch.project) == before


def test_what_one_instance_does_to_its_code_no_other_sees(bench: Bench) -> None:
    first = bench.start()
    bench.call(first, "shell", command="echo '# changed' >> src/polite.py; rm -f config.json")
    second = bench.start()
    assert "# changed" not in str(bench.call(second, "read_file", path="src/polite.py"))
    assert bench.call(second, "read_file", path="config.json") is not None


def test_a_digest_that_was_seen_needs_its_folder_no_more(bench: Bench, tmp_path: Path) -> None:
    # A digest that no other test has used: the engine sees this folder first, and then never again.
    launch = bench.zoo.launch(deploy={"environmentVariables": {"ONLY": "here"}})
    tmp_path.chmod(0o755)
    moved = replace(launch, project=tmp_path / "project")
    shutil.copytree(launch.project, moved.project)
    bench.stop(bench.start(moved))
    shutil.rmtree(moved.project)
    again = replace(moved, id=bench.zoo.new_id())
    assert variables(bench, bench.start(again)).get("ONLY") == "here"


def test_two_digests_run_their_own_code(bench: Bench) -> None:
    one, other = (bench.zoo.launch(deploy={"environmentVariables": {"WHICH": word}}) for word in ("one", "other"))
    first, second, third = bench.start(one), bench.start(other), bench.start(replace(one, id=bench.zoo.new_id()))
    assert [variables(bench, handle).get("WHICH") for handle in (first, second, third)] == ["one", "other", "one"]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file with its content; byte code that Python caches does not count."""
    files = (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
