"""Control groups around real processes of this machine, where the tests may make them."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from aenv.engines.local import cgroupfs
from aenv.engines.local.limits import Cgroups, Group, Limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups and these rlimits are Linux's")

MB = 1 << 20
WIDE = Limits(cpu_cores=2, memory_bytes=256 * MB, storage_bytes=MB, processes=64, open_files=256)
NOBODY = 65534
NEWUSER = 0x10000000
_numbers = itertools.count()


def new_lease() -> str:
    return f"test-{os.getpid()}-{next(_numbers)}"


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def child(work: Callable[[], int], *, group: Group | None = None) -> int:
    """A forked child that joins a group as a sandbox does, works, and exits with the answer; returns when it is in."""
    entries = group.open_entries() if group else []
    joined, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            for entry in entries:
                os.write(entry, b"0")
            os.close(joined)
            os.close(tell)
            code = work()
        finally:
            os._exit(code)
    os.close(tell)
    os.read(joined, 1)
    for descriptor in (joined, *entries):
        os.close(descriptor)
    return pid


def ending(pid: int) -> int:
    """The exit code of a child, or below zero its signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sleep() -> int:
    while True:
        signal.pause()


def fork_until_refused() -> int:
    """The errno at which no more children come; they sleep."""
    for _ in range(100):
        try:
            if os.fork() == 0:
                sleep()
        except OSError as error:
            return error.errno or 98
    return 97


def grow() -> int:
    return len(b"x" * (128 * MB)) % 2


def spin() -> int:
    while True:
        pass


def leave_root() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    found = Cgroups.find(new_lease())
    if found is None:
        pytest.skip(
            "this user may not make control groups; run as root, or try `systemd-run --user --scope -p Delegate=yes`"
        )
    yield found
    found.close()


def need(cgroups: Cgroups, controller: str) -> None:
    if controller not in cgroups.controllers:
        pytest.skip(f"the {controller} controller cannot be set here; see /proc/cgroups")


def folders_of(lease: str) -> list[str]:
    return [folder for folder in cgroupfs.engine_folders() if cgroupfs.name_of(folder) == f"aenv.{lease}"]


def test_a_process_over_its_memory_is_killed_and_counted(cgroups: Cgroups) -> None:
    need(cgroups, "memory")
    group = cgroups.make("hungry", replace(WIDE, memory_bytes=32 * MB))
    neighbour = cgroups.make("neighbour", WIDE)
    bystander = child(sleep, group=neighbour)

    assert ending(child(grow, group=group)) == -signal.SIGKILL
    assert ending(child(grow, group=neighbour)) == 0

    assert group.breaches()["oom"] >= 1
    assert neighbour.breaches()["oom"] == 0
    assert os.waitpid(bystander, os.WNOHANG) == (0, 0)
    neighbour.kill()
    assert ending(bystander) == -signal.SIGKILL


def test_a_fork_bomb_stops_at_its_limit_and_is_counted(cgroups: Cgroups) -> None:
    need(cgroups, "pids")
    group = cgroups.make("bomb", replace(WIDE, processes=6))
    neighbour = cgroups.make("neighbour", WIDE)
    bomb = child(lambda: fork_until_refused() and sleep(), group=group)

    until(lambda: group.breaches()["pids"] >= 1)

    assert group.processes() == 6
    assert ending(child(lambda: ending(child(lambda: 0)), group=neighbour)) == 0
    assert neighbour.breaches()["pids"] == 0
    group.kill()
    assert ending(bomb) == -signal.SIGKILL
    until(group.remove)


def test_a_refused_fork_says_so(cgroups: Cgroups) -> None:
    need(cgroups, "pids")

    assert ending(child(fork_until_refused, group=cgroups.make("few", replace(WIDE, processes=3)))) == errno.EAGAIN


def test_throttled_periods_are_counted(cgroups: Cgroups) -> None:
    need(cgroups, "cpu")
    group = cgroups.make("busy", replace(WIDE, cpu_cores=0.05))
    pid = child(spin, group=group)

    until(lambda: group.breaches()["cpu"] >= 1)
    until(lambda: (group.cpu_seconds() or 0) > 0)

    group.kill()
    assert ending(pid) == -signal.SIGKILL


def test_what_a_group_uses_is_told(cgroups: Cgroups) -> None:
    group = cgroups.make("used", WIDE)
    ready, tell = os.pipe()

    def work() -> int:
        block = b"x" * (16 * MB)
        os.write(tell, b"!")
        sleep()
        return len(block)

    pid = child(work, group=group)
    os.read(ready, 1)

    assert group.processes() == 1
    if "memory" in cgroups.controllers:
        assert 16 * MB <= (group.memory_bytes() or 0) < 64 * MB
    assert set(group.breaches()) == {{"memory": "oom"}.get(name, name) for name in cgroups.controllers}
    group.kill()
    assert ending(pid) == -signal.SIGKILL
    os.close(ready)
    os.close(tell)


def test_a_group_that_is_gone_tells_nothing(cgroups: Cgroups) -> None:
    group = cgroups.make("gone", WIDE)
    assert group.remove()

    assert (group.memory_bytes(), group.cpu_seconds(), group.processes(), group.breaches()) == (None, None, None, {})
    group.kill()
    assert group.remove()
    with pytest.raises(FileNotFoundError):
        group.open_entries()


def test_a_process_is_put_into_a_group_from_outside(cgroups: Cgroups) -> None:
    group = cgroups.make("joined", WIDE)
    pid = child(sleep)

    group.add(pid)

    assert group.processes() == 1
    assert not group.remove()
    group.kill()
    assert ending(pid) == -signal.SIGKILL
    until(group.remove)


def test_a_process_joins_from_inside_a_user_namespace(cgroups: Cgroups) -> None:
    group = cgroups.make("inside", WIDE)
    entries = group.open_entries()

    def work() -> int:
        leave_root()
        if ctypes.CDLL(None).unshare(NEWUSER) != 0:
            return 77
        for entry in entries:
            os.write(entry, b"0")
        return 0 if group.processes() == 1 else 1

    code = ending(child(work))
    for entry in entries:
        os.close(entry)
    if code == 77:
        pytest.skip("this machine gives users no user namespaces; see `sysctl user.max_user_namespaces`")
    assert code == 0


def test_killing_ends_children_that_hide_in_sessions_of_their_own(cgroups: Cgroups) -> None:
    group = cgroups.make("family", WIDE)
    alive, held = os.pipe()

    def work() -> int:
        for _ in range(5):
            if os.fork() == 0:
                os.setsid()
                sleep()
        return sleep()

    pid = child(work, group=group)
    os.close(held)
    until(lambda: group.processes() == 6)

    group.kill()

    assert ending(pid) == -signal.SIGKILL
    assert os.read(alive, 1) == b""  # every holder of the other end is dead
    os.close(alive)
    until(group.remove)


def test_a_name_is_given_once(cgroups: Cgroups) -> None:
    group = cgroups.make("one", WIDE)

    with pytest.raises(FileExistsError):
        cgroups.make("one", WIDE)

    assert group.processes() == 0


def test_what_the_kernel_refuses_leaves_nothing_behind(cgroups: Cgroups) -> None:
    need(cgroups, "pids")

    with pytest.raises(OSError, match="Invalid argument"):
        cgroups.make("odd", replace(WIDE, processes=-5))

    assert cgroups.make("odd", WIDE).remove()


def test_closing_ends_and_removes_what_is_left() -> None:
    lease = new_lease()
    found = Cgroups.find(lease)
    if found is None:
        pytest.skip("this user may not make control groups; run as root")
    pid = child(sleep, group=found.make("left", WIDE))
    assert lease in Cgroups.leases()

    found.close()

    assert ending(pid) == -signal.SIGKILL
    assert lease not in Cgroups.leases()
    assert folders_of(lease) == []


def test_a_dead_lease_is_swept_and_a_living_one_is_not(cgroups: Cgroups) -> None:
    survivor = child(sleep, group=cgroups.make("mine", WIDE))
    lease = new_lease()
    alive, held = os.pipe()

    def engine() -> int:
        found = Cgroups.find(lease)
        assert found is not None
        for name in ("a", "b"):
            child(sleep, group=found.make(name, WIDE))
        found.make("empty", WIDE)
        return 0

    assert ending(child(engine)) == 0
    os.close(held)
    assert lease in Cgroups.leases()

    assert Cgroups.sweep(lease) == 3

    assert os.read(alive, 1) == b""
    os.close(alive)
    assert lease not in Cgroups.leases()
    assert folders_of(lease) == []
    assert Cgroups.sweep(lease) == 0
    assert os.waitpid(survivor, os.WNOHANG) == (0, 0)
    cgroups.close()
    assert ending(survivor) == -signal.SIGKILL


def test_groups_within_groups_are_swept_too(cgroups: Cgroups) -> None:
    lease = new_lease()
    found = Cgroups.find(lease)
    assert found is not None
    found.make("outer", WIDE)
    for folder in folders_of(lease):
        Path(folder, "outer", "inner").mkdir()

    assert Cgroups.sweep(lease) == 1

    assert folders_of(lease) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user; run as root")
def test_a_user_without_rights_gets_no_groups() -> None:
    lease = new_lease()

    def work() -> int:
        leave_root()
        return 0 if Cgroups.find(lease) is None and Cgroups.sweep(lease) == 0 else 1

    assert ending(child(work)) == 0


def test_groups_of_version_2_hold_count_and_end_their_processes() -> None:
    """Also where version 1 has the controllers, so that there is nothing to limit."""
    own = [tree.own for tree in cgroupfs.trees() if tree.kind == "v2"]
    lease = new_lease()
    if not own or not cgroupfs.make_folder(folder := f"{own[0]}/aenv.{lease}"):
        pytest.skip("there is no cgroup2 that this user may write; run as root")
    plain = Cgroups("v2", {"": folder})
    group = plain.make("one", WIDE)
    pid = child(spin, group=group)
    until(lambda: (group.cpu_seconds() or 0) > 0.01)

    assert group.processes() == 1
    assert not group.remove()
    group.kill()
    assert ending(pid) == -signal.SIGKILL
    until(group.remove)
    other = child(sleep, group=plain.make("two", WIDE))
    assert lease in Cgroups.leases()
    assert Cgroups.sweep(lease) == 1
    assert ending(other) == -signal.SIGKILL
