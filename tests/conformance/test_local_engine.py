"""The local engine holds every promise of an engine: as root, as an ordinary user, and with plain processes.

The tests are those of `aenv.testing.engine_suite`, collected here once for each mode that this user can have. Root runs
them for an ordinary user in a pytest of its own.
"""

from __future__ import annotations

import os
import shutil
import site
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import need

import aenv
from aenv.engines.local.engine import LocalEngine
from aenv.settings import EngineSettings
from aenv.testing.engine_bench import Subject
from aenv.testing.engine_suite import *  # noqa: F403 - the tests

pytest_plugins = ("aenv.testing.engine_plugin",)

HERE = Path(__file__).parent
NOBODY = 65534
NAMESPACES = "namespaces" if os.geteuid() == 0 else "user namespaces"

_SHARED = "plain processes share the files and processes of the machine"
_NO_GROUPS = "without control groups nothing holds the processor, and nobody counts who met a limit"
_NO_COPIES = "a plain process has no namespaces that a copy of it could have its own of"
_NO_QUOTA = "plain processes write to the machine's own disk, which has no quota"

GAPS: dict[str, dict[str, str]] = {
    "namespaces": {},
    "user namespaces": {
        "test_one_that_spins_on_every_core_gets_no_more_than_its_share": _NO_GROUPS,
        "test_running_out_of_memory_is_told": _NO_GROUPS,
        "test_running_out_of_processes_is_told": _NO_GROUPS,
    },
    "process": {
        **dict.fromkeys(
            (
                "test_a_cancelled_fork_leaves_no_copy",
                "test_a_copy_can_be_copied",
                "test_a_copy_has_the_files_of_its_source_and_goes_its_own_way",
                "test_a_copy_has_the_memory_of_its_source_and_goes_its_own_way",
                "test_a_fork_waits_for_calls_under_way",
                "test_copies_are_sandboxes_like_any_other",
                "test_copies_outlive_their_source",
            ),
            _NO_COPIES,
        ),
        "test_a_command_sees_no_file_of_the_host": _SHARED,
        "test_a_full_disk_is_told_to_the_one_who_writes": _NO_QUOTA,
        "test_an_instance_cannot_write_to_its_host": _SHARED,
        "test_an_instance_sees_no_file_of_its_host": _SHARED,
        "test_an_instance_sees_no_process_of_another": _SHARED,
        "test_the_disk_ends_at_its_limit_in_the_temporary_folder": _NO_QUOTA,
        "test_the_disk_ends_at_its_limit_where_a_sandbox_works": _NO_QUOTA,
        "test_two_instances_share_no_file_in_slash_tmp": _SHARED,
    },
}
"""What each mode does not hold: the name of a test, and why."""


def make_subject(mode: str, folder: Path) -> Subject:
    """The local engine in a mode, with all of its files in a folder."""
    settings = EngineSettings(
        isolation="process" if mode == "process" else "namespaces", data=folder / "data", run=folder / "run"
    )
    return Subject(make=lambda: LocalEngine(settings), gaps=GAPS[mode], folders=[settings.run])


def make_folder() -> Path:
    """A folder with a path that is short enough for sockets, and that sandboxes of another user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="aenv-"))
    folder.chmod(0o755)
    return folder


ORDINARY = make_subject("user namespaces", Path(os.environ.get("AENV_SUITE_FOLDER", "/nonexistent")))
"""What the child pytest of an ordinary user tries."""


@pytest.fixture(scope="module", params=[NAMESPACES, "process"])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    folder = make_folder()
    yield make_subject(request.param, folder)
    shutil.rmtree(folder)


def find_python() -> str | None:
    """An interpreter of this version that everybody may run: this one, unless it lies in somebody's home."""
    here = Path(sys.executable).resolve()
    if all(folder.stat().st_mode & stat.S_IXOTH for folder in here.parents):
        return str(here)
    return shutil.which(f"python{sys.version_info.major}.{sys.version_info.minor}", path="/usr/local/bin:/usr/bin")


def make_python(python: str, folder: Path) -> Path:
    """A virtual environment of that interpreter which sees the packages of this one."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    packages = [*site.getsitepackages(), str(Path(aenv.__file__).parents[1])]
    (place,) = folder.glob("lib/python*/site-packages")
    (place / "shared.pth").write_text("\n".join(packages))
    return folder / "bin" / "python"


@pytest.mark.timeout(300)
def test_an_ordinary_user_has_all_of_it_as_well() -> None:
    if os.geteuid() != 0:
        pytest.skip("an ordinary user runs the suite in this very session; there is no more to try")
    python = find_python()
    need(python, "no interpreter of this version can be run by everybody; install the system's")
    assert python is not None
    folder = make_folder()
    home = folder / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    command = [str(make_python(python, folder / "venv")), "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    command += ["-p", "aenv.testing.engine_plugin", "--pyargs", "aenv.testing.engine_suite"]
    try:
        done = subprocess.run(
            [*command, "--engine", "test_local_engine:ORDINARY"],
            cwd=home,
            env={
                "PATH": os.defpath,
                "PYTHONPATH": f"{HERE}:{HERE.parent}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": str(home),
                "TMPDIR": str(home),
                "AENV_SUITE_FOLDER": str(home),
            },
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    finally:
        shutil.rmtree(folder)
