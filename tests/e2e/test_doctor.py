"""`aenv doctor` on real machines: this one, and this one with something taken away."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import need

from aenv.engines.local.limits import Cgroups
from aenv.engines.local.remedies import Surroundings, remedy, said

AENV = str(Path(sys.executable).with_name("aenv"))
NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount"]
REFUSED = "[Errno 1] Operation not permitted: 'unshare'"
MASKED = "[Errno 0] [Errno 1] Operation not permitted: 'mount proc on /tmp/proc'"


@pytest.fixture
def run_folder() -> Iterator[Path]:
    """A path that is short enough for sockets, with nothing there yet."""
    with tempfile.TemporaryDirectory(prefix="aenv") as folder:
        yield Path(folder) / "run"


def doctor(*arguments: str, prefix: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AENV_")}
    command = [*prefix, AENV, "doctor", *arguments]
    env = {**kept, **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)


def survey(prefix: tuple[str, ...] = (), **environ: str) -> dict[str, Any]:
    done = doctor("-o", "json", prefix=prefix, **environ)
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "code": done.returncode}


@pytest.fixture(scope="module")
def namespaces() -> None:
    """This machine gives namespaces."""
    trial = subprocess.run([*NAMESPACES, "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False)
    need(trial.returncode == 0, "this machine gives no namespaces; `aenv doctor` says what helps")


def changed(script: str) -> tuple[str, ...]:
    """A machine that is this one, but for what the script does to it as root of a namespace."""
    return (*NAMESPACES, "sh", "-ec", f'{script}\nexec "$@"', "sh")


WITHOUT_NAMESPACES = changed("echo 0 >/proc/sys/user/max_user_namespaces")


@pytest.mark.usefixtures("namespaces")
def test_where_there_are_namespaces_sandboxes_are_isolated() -> None:
    found = survey()
    assert found["code"] == 0
    assert found["isolation"]["mode"] == ("root" if os.geteuid() == 0 else "user")
    assert found["network"]["are_policies_kept"] is True
    assert found["broken"] == {}
    told = doctor().stdout
    assert told.startswith("isolated, as root\n" if os.geteuid() == 0 else "isolated, without root\n")
    assert "allowlist, no-network: kept" in told


@pytest.mark.usefixtures("namespaces")
def test_plain_processes_that_were_asked_for_are_told_with_the_way_back() -> None:
    done = doctor(AENV_ISOLATION="process")
    assert done.returncode == 1
    assert done.stdout.startswith("NOT ISOLATED: plain processes\n")
    assert "hint: unset it: sandboxes are then isolated" in done.stdout
    assert "allowlist, no-network: NOT kept" in done.stdout


@pytest.mark.usefixtures("namespaces")
def test_namespaces_that_sysctl_forbids_are_told_with_the_sysctl() -> None:
    done = doctor(prefix=WITHOUT_NAMESPACES)
    assert done.returncode == 1
    assert "mode user cannot be had: unshare: No space left on device" in done.stdout
    assert done.stdout.count("sysctl -w user.max_user_namespaces=") == 1


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("word", ["required", "namespaces"])
def test_isolation_that_is_asked_for_and_cannot_be_had_ends_with_three(word: str) -> None:
    found = survey(WITHOUT_NAMESPACES, AENV_ISOLATION=word)
    assert found["code"] == 3
    assert found["isolation"]["mode"] is None
    told = doctor(prefix=WITHOUT_NAMESPACES, AENV_ISOLATION=word).stdout
    assert told.startswith("REFUSED")
    assert f"AENV_ISOLATION={word} cannot be met" in told


@pytest.mark.usefixtures("namespaces")
def test_a_masked_proc_is_told_with_the_option_that_unmasks_it() -> None:
    ordinary = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    found = survey((*changed("mount --bind /dev/null /proc/uptime"), *ordinary))
    assert found["code"] == 1
    (note,) = [note for note in found["isolation"]["notes"] if note["about"] == "user"]
    assert note["problem"] == "mount proc on /tmp/proc: Operation not permitted"
    assert "systempaths=unconfined" in note["remedy"] or "unmask" in note["remedy"].lower()


@pytest.mark.usefixtures("namespaces")
def test_a_part_that_cannot_be_found_out_is_told_and_hides_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "many").write_text("many\n")
    prefix = changed(f"mount --bind {tmp_path}/many /proc/sys/kernel/pid_max")
    done = doctor(prefix=prefix)
    assert done.returncode == 0, done.stderr
    assert "not found out  limits: ValueError" in done.stdout
    assert "allowlist, no-network: kept" in done.stdout
    assert survey(prefix)["limits"] is None


@pytest.mark.usefixtures("namespaces")
def test_without_a_tool_for_user_networks_it_says_which_to_install(tmp_path: Path) -> None:
    found = survey(PATH=str(tmp_path))
    assert (found["code"], found["network"]["public"], found["gvisor"]) == (0, "host", None)
    (note,) = found["network"]["notes"]
    assert note["problem"] == "neither slirp4netns nor pasta is installed"
    assert "apt install slirp4netns" in note["remedy"]


@pytest.mark.usefixtures("namespaces")
def test_a_tool_that_does_not_work_is_told_apart_from_one_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "pasta").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "pasta").chmod(0o755)
    for name in ("unshare", "sh", "cat"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    (note,) = survey(PATH=str(tmp_path))["network"]["notes"]
    assert note["problem"] == "pasta did not work in a trial"


def test_what_dead_engines_left_is_counted_and_left_alone(run_folder: Path) -> None:
    for name in ("eng_dead", "eng_gone", "eng_alive"):
        (run_folder / name).mkdir(parents=True)
        (run_folder / name / "lock").touch()
    with (run_folder / "eng_alive" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert survey(AENV_RUN=str(run_folder))["engines"] == {"running": 1, "dead": 2}
        told = doctor(AENV_RUN=str(run_folder)).stdout
    assert "engines running: 1" in told
    assert "left by engines that died: 2" in told
    assert len(list(run_folder.glob("*/lock"))) == 3


def test_it_makes_no_folder_and_leaves_no_control_group(run_folder: Path) -> None:
    before = {name for name in Cgroups.leases() if name.startswith("doc_")}
    assert doctor(AENV_RUN=str(run_folder), AENV_DATA=str(run_folder)).returncode in (0, 1)
    assert not run_folder.exists()
    assert {name for name in Cgroups.leases() if name.startswith("doc_")} <= before


def test_folders_tell_what_they_take(run_folder: Path) -> None:
    run_folder.mkdir()
    (run_folder / "large").write_bytes(b"x" * 3_000_000)
    (run_folder / "again").hardlink_to(run_folder / "large")
    assert 3_000_000 <= survey(AENV_DATA=str(run_folder))["data"]["used_bytes"] < 3_200_000


def test_folders_that_will_not_do_are_told() -> None:
    found = survey(AENV_DATA="/dev/null/inside", AENV_RUN=f"/tmp/{'r' * 90}")
    assert found["data"]["notes"][0]["problem"] == "/dev/null is not a folder"
    assert "AENV_DATA" in found["data"]["notes"][0]["remedy"]
    assert "the path has 95 characters" in found["run"]["notes"][0]["problem"]


def test_a_run_folder_that_others_may_write_to_is_told(run_folder: Path) -> None:
    run_folder.mkdir()
    run_folder.chmod(0o777)
    assert "others may write to it" in survey(AENV_RUN=str(run_folder))["run"]["notes"][0]["problem"]


def test_only_settings_that_differ_from_their_default_are_shown() -> None:
    assert survey()["settings"] == []
    found = survey(AENV_SPARES="3", AENV_LOG_BYTES="1048576", AENV_TEST_URL="http://localhost")["settings"]
    assert found == [{"name": "AENV_SPARES", "value": "3", "default": "0", "source": "environment"}]
    assert "AENV_SPARES=3 from the environment; the default is 0" in doctor(AENV_SPARES="3").stdout


def test_a_wrong_setting_is_told_in_two_lines() -> None:
    for done in (doctor(AENV_ISOLATION="strict"), doctor(AENV_ENGINE="nowhere")):
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.splitlines()[1].startswith("hint: ")


def test_help_says_what_the_exit_codes_mean() -> None:
    told = " ".join(doctor("--help").stdout.split())
    assert "Exits with 0 if sandboxes are isolated, 1 if they would run as plain processes, 3 if" in told


@pytest.mark.parametrize(
    ("mode", "problem", "around", "words"),
    [
        ("user", "[Errno 28] No space left on device: 'unshare'", Surroundings(max_user_namespaces=9), "are taken"),
        ("user", REFUSED, Surroundings(apparmor_restricts=1), "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("user", REFUSED, Surroundings(unprivileged_userns_clone=0), "kernel.unprivileged_userns_clone=1"),
        ("user", REFUSED, Surroundings(runtime="docker", is_filtered=True), "seccomp=unconfined"),
        ("user", REFUSED, Surroundings(runtime="docker", is_filtered=True, apparmor_restricts=1), "seccomp=unconfined"),
        ("user", REFUSED, Surroundings(runtime="docker", apparmor_restricts=1), "apparmor_restrict"),
        ("user", REFUSED, Surroundings(is_filtered=True), "RestrictNamespaces=no"),
        ("user", REFUSED, Surroundings(), "as root"),
        ("user", MASKED, Surroundings(runtime="docker"), "systempaths=unconfined"),
        ("user", MASKED, Surroundings(runtime="podman"), "unmask=ALL"),
        ("user", MASKED, Surroundings(runtime="kubernetes"), "procMount: Unmasked"),
        ("user", MASKED, Surroundings(), "all of /proc"),
        ("user", REFUSED, Surroundings(kernel=(4, 18)), "Linux 5.12"),
        ("user", "[Errno 38] Function not implemented: 'mount_setattr /tmp'", Surroundings(), "Linux 5.12"),
        ("root", "[Errno 19] No such device: 'mount overlay on /tmp/low'", Surroundings(), "modprobe overlay"),
        ("root", REFUSED, Surroundings(runtime="docker", is_filtered=True), "CAP_SYS_ADMIN"),
        ("root", REFUSED, Surroundings(), "CAP_SYS_ADMIN"),
        (
            "user",
            "[Errno 0] namespaces are used on Linux with x86_64, this is macOS",
            Surroundings(),
            "virtual machine",
        ),
    ],
)
def test_each_refusal_has_the_sentence_that_helps(mode: str, problem: str, around: Surroundings, words: str) -> None:
    assert words in remedy(mode, problem, around)


def test_the_machines_words_are_told_without_numbers() -> None:
    assert said(MASKED) == "mount proc on /tmp/proc: Operation not permitted"
    assert said("[Errno 0] namespaces are used on Linux") == "namespaces are used on Linux"
    assert said("the trial did not come to an end") == "the trial did not come to an end"
