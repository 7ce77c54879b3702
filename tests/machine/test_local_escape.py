"""An environment that tries to break out of its sandbox, in every mode of the local engine."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import test_local_escape_bombs as bombs
from escapetable import MODES, TABLE, UNTRIED, H, Trial, open_trial, open_worlds, pytest_generate_tests
from escapeworld import FOLDERS, NOBODY, SECRET, VARIABLE, World, new_folder, ordinary_command

__all__ = ["pytest_generate_tests"]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")

HERE = Path(__file__)
REPOSITORY = HERE.parents[2]
PAGE = REPOSITORY / "docs" / "explanation" / "isolation.md"


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[str, World]]:
    yield from open_worlds()


@pytest.fixture
def trial(request: pytest.FixtureRequest, worlds: dict[str, World]) -> Trial:
    return open_trial(request, worlds)


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file in the owner's home."""
    file = Path.home() / f".aenv-escape-{os.getpid()}.py"
    file.write_text(f"KEY = {SECRET!r}\n")
    yield file
    file.unlink()


def test_the_owners_files_and_the_repository_are_out_of_sight(trial: Trial, secret: Path) -> None:
    paths = [str(secret), str(Path.home() / ".bashrc"), str(HERE), str(REPOSITORY / "pyproject.toml")]
    trial.attempt("read", paths=paths)


def test_settings_and_passwords_of_the_host_are_out_of_sight(trial: Trial) -> None:
    names = ("shadow", "gshadow", "sudoers", "fstab", "crontab", "login.defs", "shells", "ssh", "apt", "machine-id")
    trial.attempt("read", paths=[f"/etc/{name}" for name in names])


def test_the_engines_own_folders_are_out_of_sight(trial: Trial) -> None:
    world = trial.world
    (world.settings.data / "hub.db").write_text(SECRET)
    found = [world.folder, world.settings.data, world.settings.run, *world.settings.data.rglob("*")]
    trial.judge(world.by_both("see", paths=[*map(str, found), world.neighbour.address.removeprefix("unix:")]))


def test_files_of_another_instance_are_out_of_sight(trial: Trial) -> None:
    world = trial.world
    folder = world.neighbour.address.removeprefix("unix:").removesuffix(".sock")
    folders = [f"{folder}/app", f"{folder}/tmp"] if world.mode == "process" else FOLDERS
    script = "for folder in $0 $@; do echo mine > $folder/mine; done"
    assert world.run(world.engine.exec(world.neighbour, ["sh", "-c", script, *folders])).code == 0
    trial.judge(world.by_both("read", paths=[f"{one}/mine" for one in folders]))


def test_links_lead_to_nothing_outside(trial: Trial, secret: Path) -> None:
    trial.attempt("read_through_links", paths=[str(secret), str(HERE)])


def test_a_link_in_the_project_brings_no_file_of_the_host_along(trial: Trial, secret: Path) -> None:
    world = trial.world
    project = world.folder / f"linked-{secret.name}"
    shutil.copytree(world.project, project)
    (project / "notes.txt").symlink_to(secret)
    (project / "src" / "test_settings.py").symlink_to(secret)
    handle = world.start(project=project)
    trial.judge(world.by_both("find_text", handle, folder=".", text=SECRET))
    world.stop(handle)


def test_what_one_instance_spoils_the_next_one_finds_whole(trial: Trial) -> None:
    world = trial.world
    vandal = world.start()
    folder = "/app" if world.mode != "process" else vandal.address.removeprefix("unix:").replace(".sock", "/app")
    world.by_server("spoil_project", vandal, folder=folder)
    world.stop(vandal)
    after = world.start()
    trial.judge(world.by_both("find_text", after, folder=".", text="spo" + "ilt\n"))
    seen = world.run(
        world.engine.exec(after, ["sh", "-c", "cat src/prey.txt src/linked.txt; ls . src; stat -c %a *.json"])
    )
    assert seen.stdout.startswith(b"originaloriginal")
    assert b"planted" not in seen.stdout
    assert b"neighbours.py" in seen.stdout
    assert seen.stdout.endswith(b"644\n")
    world.stop(after)


def test_nothing_that_is_shared_can_be_written(trial: Trial) -> None:
    paths = [
        sys.prefix,
        sys.base_prefix,
        sys.executable,
        "/etc/passwd",
        "/etc/hosts",
        "/usr/bin/env",
        str(REPOSITORY / "src"),
    ]
    trial.attempt("write_shared", paths=paths)


def test_there_are_no_devices_and_none_can_be_made(trial: Trial) -> None:
    disks = [path.name for path in Path("/sys/block").iterdir()]
    trial.judge(
        trial.world.by_both("make_devices", devices=["mem", "kmsg", "port", "kvm", "fuse", "net", "mapper", *disks])
    )


def test_setuid_programs_give_no_rights(trial: Trial) -> None:
    trial.attempt("find_setuid", programs=["su", "sudo", "mount", "ping", "newuidmap", "pkexec"])


def test_processes_of_the_host_are_invisible(trial: Trial) -> None:
    with subprocess.Popen(["sleep", "600.4711"]) as stranger:
        found = trial.world.by_both("find_processes", text="600.471")
        found += trial.world.by_both("count_strangers", most=16)
        stranger.kill()
    trial.judge(found)


def test_signals_reach_nobody_outside(trial: Trial) -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        found = trial.world.by_both("reach", pids=[stranger.pid, trial.world.supervisor, os.getpid()])
        stranger.kill()
    trial.judge(found)


def test_killing_everybody_ends_nobody_outside(trial: Trial) -> None:
    world = trial.world
    with subprocess.Popen(["sleep", "600"]) as stranger:
        world.by_both("kill_everybody")
        assert stranger.poll() is None
        stranger.kill()
    assert world.by_server("own_pid", world.neighbour)
    trial.judge([] if world.by_server("own_pid") else ["the server was killed by a command"])


def test_a_command_cannot_look_into_the_server(trial: Trial) -> None:
    server = int(trial.world.by_server("own_pid")[0].split()[-1])
    trial.judge(trial.world.by_command("look_into", pid=server))


def test_variables_of_the_owner_are_out_of_sight(trial: Trial) -> None:
    world = trial.world
    with subprocess.Popen(["sleep", "600"], env={**os.environ, VARIABLE: SECRET}) as owners:
        # Half of it, so that the question is not its own answer.
        found = world.by_both("find_processes", text=SECRET[:20])
        owners.kill()
    found += world.by_server("inherit_variables", allowed=["TMPDIR", "AENV_SANDBOX_FOLDER"])
    trial.judge(found + world.by_command("inherit_variables", allowed=["AENV_SANDBOX_FOLDER"]))


def test_only_meant_descriptors_are_inherited(trial: Trial) -> None:
    trial.judge(trial.world.by_server("inherit", most=110) + trial.world.by_command("inherit", most=2))


def test_sockets_of_the_engine_and_of_others_are_out_of_reach(trial: Trial) -> None:
    world = trial.world
    paths = [str(path) for path in world.settings.run.rglob("*.sock")]
    found = world.by_both("connect", addresses=[world.neighbour.address.removeprefix("unix:"), *paths])
    trial.judge(found + world.by_both("find_unix_sockets", text=str(world.folder)))


def test_abstract_sockets_of_the_host_are_out_of_reach(trial: Trial) -> None:
    name = f"aenv-escape-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        trial.attempt("connect", addresses=[f"@{name}"])


def test_without_a_network_nothing_is_reached(trial: Trial) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = trial.world.by_both("connect_tcp", ports=[listener.getsockname()[1]])
    trial.judge(found + trial.world.by_both("find_routes"))


def test_a_public_environment_does_not_reach_the_hosts_loopback(trial: Trial) -> None:
    world = trial.world
    handle = world.start({"network": "public"})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = world.by_both("connect_tcp", handle, ports=[listener.getsockname()[1]])
    routes = world.by_both("find_routes", handle)
    world.stop(handle)
    is_own = any("tap0" in route for route in routes)
    trial.judge(found if world.mode == "process" or is_own else [])


def test_shared_memory_of_the_host_is_out_of_sight(trial: Trial) -> None:
    libc, key, create = ctypes.CDLL(None), 0x41450000 + os.getpid() % 65536, 0o1600
    segment, queue = libc.shmget(key, 4096, create), libc.msgget(key, create)
    try:
        trial.attempt("use_shared_memory", key=key)
    finally:
        libc.shmctl(segment, 0, None)
        libc.msgctl(queue, 0, None)


def test_mounts_and_roots_cannot_be_changed(trial: Trial) -> None:
    trial.attempt("change_mounts")


def test_no_namespace_can_be_made_or_entered(trial: Trial) -> None:
    trial.attempt("make_namespaces")


def test_there_is_no_capability_and_the_filter_is_on(trial: Trial) -> None:
    trial.attempt("have_rights")


def test_nobody_can_become_another_user(trial: Trial) -> None:
    trial.attempt("be_somebody")


def test_settings_of_the_kernel_cannot_be_written(trial: Trial) -> None:
    trial.attempt("write_settings")


def test_the_clock_and_the_hosts_names_cannot_be_changed(trial: Trial) -> None:
    trial.attempt("change_machine")


def test_raw_and_foreign_sockets_are_refused(trial: Trial) -> None:
    trial.attempt("open_sockets")


def test_keyrings_are_out_of_reach(trial: Trial) -> None:
    trial.attempt("use_keyrings")


def test_risky_parts_of_the_kernel_are_out_of_reach(trial: Trial) -> None:
    trial.attempt("use_risky_calls")


def test_nobody_types_into_a_terminal(trial: Trial) -> None:
    trial.attempt("push_input")


def test_a_crash_leaves_no_core_dump(trial: Trial) -> None:
    trial.attempt("dump_core")


def test_control_groups_are_out_of_reach(trial: Trial) -> None:
    groups = [str(path) for path in Path("/sys/fs/cgroup").glob("**/cgroup.procs")]
    trial.attempt("join_group", groups=groups[:50])


def test_two_instances_draw_different_numbers(trial: Trial) -> None:
    world = trial.world
    handles = [world.start() for _ in range(3)]
    drawn = [number for handle in handles for number in world.by_server("draw", handle)]
    trial.judge([number for number in drawn if drawn.count(number) > 1])


@pytest.mark.timeout(600)
def test_an_ordinary_user_has_the_same_walls() -> None:
    if os.geteuid() or "user" in MODES:
        pytest.skip("this very session tries what an ordinary user has; run it as root to have both")
    folder = new_folder()
    command = [*ordinary_command(folder), "-m", "pytest", str(HERE), bombs.__file__, "-p", "no:cacheprovider"]
    os.chown(folder, NOBODY, NOBODY)
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, "--rootdir", str(REPOSITORY)],
            cwd=folder,
            env={**variables, "AENV_ESCAPE_MODES": "user"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
    finally:
        shutil.rmtree(folder)


def test_the_page_says_what_the_tests_hold() -> None:
    rows = re.findall(
        r"^\| .+ \| (\S[^|]*) \| (\S[^|]*) \| (\S[^|]*) \| `test_(\w+)` \|$", PAGE.read_text(), re.MULTILINE
    )
    told = {name: tuple(cell.partition(":")[0].strip() for cell in cells) for *cells, name in rows}
    assert told == TABLE
    assert not [name for name in TABLE if f"test_{name}" not in {*globals(), *vars(bombs)}], "a row without a test"
    assert not [name for name, (*_, plain) in TABLE.items() if plain == H and name in UNTRIED], (
        "holds, but is not tried"
    )
