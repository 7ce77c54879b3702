"""Control groups of version 2 on ordinary folders laid out like them, for machines whose controllers version 1 has."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import pytest

from aenv.engines.local import cgroupfs
from aenv.engines.local.limits import Cgroups, Group, Limits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")

MB = 1 << 20
ALL = frozenset({"memory", "pids", "cpu"})
MEMORY_FILES = {"memory.max", "memory.swap.max"}


def test_a_group_of_version_2_is_read_as_the_kernel_writes_it(tmp_path: Path) -> None:
    files = {
        "cgroup.procs": "41\n0\n42\n",
        "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nnr_periods 9\nnr_throttled 4\n",
        "memory.current": "1048576\n",
        "memory.events": "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n",
        "pids.current": "5\n",
        "pids.events": "max 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    group = Group("v2", dict.fromkeys(["", *ALL], str(tmp_path)))

    assert group.breaches() == {"oom": 2, "pids": 1, "cpu": 4}
    assert (group.memory_bytes(), group.cpu_seconds(), group.processes()) == (MB, 2.5, 5)
    assert Group("v2", {"": str(tmp_path)}).processes() == 2  # the process of another namespace is not ours to see


def grow_like_cgroup2(root: str) -> None:
    """From now on folders below fill themselves as those of cgroup2 do. There is no way back, so only in a child."""
    enabled: dict[str, list[str]] = {}
    names = {"cgroup.procs", "cgroup.subtree_control", "pids.max", "cpu.max", "cpu.weight", *MEMORY_FILES}

    def on_open(event: str, arguments: tuple[object, ...]) -> None:
        path = str(arguments[0]) if event == "open" else ""
        if not path.startswith(root):
            return
        for folder, _, files in os.walk(root):
            for name in names - set(files):
                os.mknod(f"{folder}/{name}", 0o644)
        if path.endswith("subtree_control"):
            text = enabled.setdefault(path, [])
            written = os.pread(control := _raw_open(path), 99, 0).decode()
            text += [written[1:]] if written.startswith("+") else []
            os.ftruncate(control, 0)
            os.pwrite(control, b"" if int(str(arguments[2])) & os.O_WRONLY else " ".join(text).encode(), 0)
            os.close(control)

    sys.addaudithook(on_open)


def _raw_open(path: str) -> int:
    """Open a file with no audit event."""
    return int(ctypes.CDLL(None).open(path.encode(), os.O_RDWR))


def test_version_2_is_told_its_limits_in_its_own_words(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    tree = cgroupfs.Tree("v2", frozenset(), str(tmp_path), str(own))

    def work() -> int:
        grow_like_cgroup2(str(tmp_path))
        (own / "cgroup.procs").read_text()
        found = Cgroups._find_v2([tree], "lease")
        if found is None or found.controllers != ALL:
            return 1
        found.make("one", Limits(0.5, 256 * MB, MB, 64, 256))
        return 0

    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    texts = {path.name: path.read_text() for path in (own / "aenv.lease" / "one").iterdir()}
    assert {name: text for name, text in texts.items() if text} == {
        "memory.max": str(256 * MB),
        "memory.swap.max": "0",
        "pids.max": "64",
        "cpu.max": "50000 100000",
        "cpu.weight": "50",
    }
