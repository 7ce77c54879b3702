"""The rlimits of a sandbox, on real children, which leave root where the tests have it: root is above some of them."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from aenv.engines.local.limits import Limits, rlimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these rlimits are Linux's")

MB = 1 << 20
NOBODY = 65534
NEWUSER = 0x10000000
WIDE = Limits(cpu_cores=2, memory_bytes=256 * MB, storage_bytes=MB, processes=64, open_files=256)
NOTHING: frozenset[str] = frozenset()
ALL = frozenset({"memory", "pids", "cpu"})


def ending(work: Callable[[], int]) -> int:
    """The answer of a forked child, or below zero the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def leave_root() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def under(limits: Limits, work: Callable[[], int], *, own_user_namespace: bool = False) -> int:
    """How a child ends that works under the rlimits of a machine without control groups."""
    chosen = rlimits(limits, controllers=NOTHING, own_user_namespace=own_user_namespace)

    def limited() -> int:
        leave_root()
        if own_user_namespace and ctypes.CDLL(None).unshare(NEWUSER) != 0:
            return 77
        for which, soft, hard in chosen:
            resource.setrlimit(which, (soft, hard))
        return work()

    return ending(limited)


def test_no_rlimit_is_above_what_this_process_may_set() -> None:
    huge = Limits(1, 1 << 60, 1, 1 << 30, 1 << 30, 1e9)

    for which, soft, hard in rlimits(huge, controllers=NOTHING, own_user_namespace=True):
        top = resource.getrlimit(which)[1]
        assert soft <= hard
        assert top == resource.RLIM_INFINITY or hard <= top


def test_rlimits_stand_in_for_the_groups_that_are_missing() -> None:
    def kinds(controllers: frozenset[str], *, own: bool) -> set[int]:
        return {which for which, _, _ in rlimits(WIDE, controllers=controllers, own_user_namespace=own)}

    memory = {resource.RLIMIT_AS, resource.RLIMIT_DATA}
    assert kinds(NOTHING, own=False) - kinds(ALL, own=True) == memory
    assert kinds(NOTHING, own=True) - kinds(ALL, own=True) <= memory | {resource.RLIMIT_NPROC}
    assert {resource.RLIMIT_CORE, resource.RLIMIT_NOFILE} <= kinds(ALL, own=False)
    assert resource.RLIMIT_CPU not in kinds(NOTHING, own=True)


def test_a_process_cannot_take_more_memory_than_its_rlimit() -> None:
    def take() -> int:
        try:
            return len(b"x" * (2048 * MB)) % 2
        except MemoryError:
            return 42

    assert under(replace(WIDE, memory_bytes=1024 * MB), take) == 42


def test_threads_and_programs_start_under_the_rlimits() -> None:
    def work() -> int:
        threads = [threading.Thread(target=int) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return subprocess.run(["sh", "-c", "true"], check=False).returncode

    assert under(replace(WIDE, memory_bytes=512 * MB), work) == 0


def test_no_more_files_are_open_than_the_rlimit_allows() -> None:
    def work() -> int:
        try:
            return len([os.open("/dev/null", os.O_RDONLY) for _ in range(300)]) % 2
        except OSError as error:
            return error.errno or 98

    assert under(WIDE, work) == errno.EMFILE


def test_a_process_that_has_used_its_seconds_is_ended() -> None:
    def spin() -> int:
        while True:
            pass

    assert under(replace(WIDE, cpu_seconds=0.5), spin) == -signal.SIGXCPU


def test_processes_are_counted_in_their_own_user_namespace() -> None:
    def work() -> int:
        pids: list[int] = []
        try:
            while len(pids) < 100:
                if (pid := os.fork()) == 0:
                    signal.pause()
                pids.append(pid)
        except OSError as error:
            return error.errno or 98
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        return 97

    code = under(replace(WIDE, processes=4), work, own_user_namespace=True)
    if code == 77:
        pytest.skip("this machine gives users no user namespaces; see `sysctl user.max_user_namespaces`")
    assert code == errno.EAGAIN
