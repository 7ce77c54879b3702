"""What a sandbox may use: control groups of either version where this process may make them, and rlimits everywhere."""

from __future__ import annotations

import errno
import math
import os
import re
import resource
from dataclasses import dataclass

from aenv.engines.local import cgroupfs

_PERIOD = 100_000  # microseconds, the kernel's own default
_RESERVED = 4 << 30  # address space of stacks, arenas and libraries that is taken but hardly touched

# The file without which a controller sets no limit.
_KEYS = {
    "v1": {"memory": "memory.limit_in_bytes", "pids": "pids.max", "cpu": "cpu.cfs_quota_us"},
    "v2": {"memory": "memory.max", "pids": "pids.max", "cpu": "cpu.max"},
}
_SWAP = {"v1": "memory.memsw.limit_in_bytes", "v2": "memory.swap.max"}
_USED = {"v1": "memory.usage_in_bytes", "v2": "memory.current"}
_KILLED = {"v1": "memory.oom_control", "v2": "memory.events"}
# In version 1 `tasks` moves one thread, all that a fresh child has, and spares it a lock over the whole machine.
_ENTRY = {"v1": "tasks", "v2": "cgroup.procs"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use."""

    cpu_cores: float
    memory_bytes: int
    storage_bytes: int
    processes: int
    open_files: int
    cpu_seconds: float | None = None


class Group:
    """The control group of one sandbox: a folder in every tree that limits it or counts for it."""

    __slots__ = ("_at", "_kind", "_paths")

    def __init__(self, kind: str, at: dict[str, str]) -> None:
        self._kind = kind
        self._at = at
        self._paths = tuple(dict.fromkeys(at.values()))

    def open_entries(self) -> list[int]:
        """Descriptors; a process with one thread that writes b"0" to each is in the group.

        The kernel asks for the rights of who opened them, so they work in a user namespace too.
        """
        entries: list[int] = []
        try:
            entries.extend(cgroupfs.open_to_write(f"{path}/{_ENTRY[self._kind]}") for path in self._paths)
        except OSError:
            for entry in entries:
                os.close(entry)
            raise
        return entries

    def add(self, pid: int) -> None:
        """Put a process with all its threads into the group; OSError if either is gone."""
        for path in self._paths:
            cgroupfs.write(f"{path}/cgroup.procs", str(pid))

    def memory_bytes(self) -> int | None:
        """Memory in use, with the file cache and the temporary files that the group has filled."""
        return cgroupfs.number(self._file("memory", _USED[self._kind]))

    def cpu_seconds(self) -> float | None:
        """Processor time of every process that is or was in the group."""
        if self._kind == "v2":
            used = cgroupfs.counter(f"{self._paths[0]}/cpu.stat", "usage_usec")
            return None if used is None else used / 1e6
        used = cgroupfs.number(self._file("cpuacct", "cpuacct.usage"))
        return None if used is None else used / 1e9

    def processes(self) -> int | None:
        """Processes and threads, as the limit counts them; where there is no such limit, processes alone."""
        if "pids" in self._at:
            return cgroupfs.number(self._file("pids", "pids.current"))
        return len(cgroupfs.members(self._paths[0])) if os.access(self._paths[0], os.F_OK) else None

    def breaches(self) -> dict[str, int]:
        """How often each limit held: `oom` kills, refused forks (`pids`), throttled periods (`cpu`)."""
        counters = {
            "oom": cgroupfs.counter(self._file("memory", _KILLED[self._kind]), "oom_kill"),
            "pids": cgroupfs.counter(self._file("pids", "pids.events"), "max"),
            "cpu": cgroupfs.counter(self._file("cpu", "cpu.stat"), "nr_throttled"),
        }
        return {name: count for name, count in counters.items() if count is not None}

    def kill(self) -> None:
        """End every process in it; returns when none is left, but for those that the kernel itself holds on to."""
        cgroupfs.end_all(self._paths)

    def remove(self) -> bool:
        """True when it is gone, False while a process is left in it."""
        return cgroupfs.remove_folders(self._paths)

    def _file(self, controller: str, name: str) -> str:
        """Where a controller's file is; nowhere without the controller."""
        return f"{self._at[controller]}/{name}" if controller in self._at else ""


class Cgroups:
    """The control groups of one engine: in each tree it may write a folder `aenv.<lease>`, and in that the groups."""

    def __init__(self, kind: str, folders: dict[str, str]) -> None:
        self.kind = kind
        self.controllers = frozenset(
            name for name, key in _KEYS[kind].items() if name in folders and _may_write(f"{folders[name]}/{key}")
        )
        self._folders = folders
        self._roots = tuple(dict.fromkeys(folders.values()))
        # Kernels without swap, or without an account of it, have no such file.
        self._swaps = "memory" in folders and _may_write(f"{folders['memory']}/{_SWAP[kind]}")

    @classmethod
    def find(cls, lease: str) -> Cgroups | None:
        """What this process may write, with folders made for the lease; None when that is nothing."""
        trees = cgroupfs.trees()
        return cls._find_v1(trees, lease) or cls._find_v2(trees, lease)

    @classmethod
    def _find_v1(cls, trees: list[cgroupfs.Tree], lease: str) -> Cgroups | None:
        folders: dict[str, str] = {}
        for tree in trees:
            folder = f"{tree.own}/{cgroupfs.PREFIX}{lease}"
            if tree.kind == "v1" and cgroupfs.make_folder(folder):
                folders |= dict.fromkeys(tree.controllers, folder)
        return cls._if_useful("v1", folders)

    @classmethod
    def _find_v2(cls, trees: list[cgroupfs.Tree], lease: str) -> Cgroups | None:
        for tree in trees:
            if tree.kind == "v2":
                for parent in cgroupfs.upwards(tree.own, tree.mount):
                    if found := cls._find_below(parent, lease, is_own=parent == tree.own):
                        return found
        return None

    @classmethod
    def _find_below(cls, parent: str, lease: str, *, is_own: bool) -> Cgroups | None:
        """Groups of version 2 in one parent, which has to hand its controllers down first."""
        folder = f"{parent}/{cgroupfs.PREFIX}{lease}"
        if not _may_write(f"{parent}/cgroup.procs") or not cgroupfs.make_folder(folder):
            return None
        wanted = tuple(_KEYS["v2"])
        # A group that hands controllers down holds no process itself; this one can step aside if it is alone there.
        if not cgroupfs.hand_down(parent, wanted) and is_own and cgroupfs.members(parent) == [os.getpid()]:
            cgroupfs.step_aside(folder)
            cgroupfs.hand_down(parent, wanted)
        return cls._if_useful("v2", dict.fromkeys(("", *cgroupfs.hand_down(folder, wanted)), folder))

    @classmethod
    def _if_useful(cls, kind: str, folders: dict[str, str]) -> Cgroups | None:
        found = cls(kind, folders)
        if found.controllers:
            return found
        found.close()
        return None

    def make(self, name: str, limits: Limits) -> Group:
        """A new group with its limits set; OSError, with nothing left behind, if there is one or the kernel refuses."""
        made: list[str] = []
        try:
            for root in self._roots:
                cgroupfs.make_group(f"{root}/{name}")
                made.append(f"{root}/{name}")
            for controller, file, value in self._settings(limits):
                if controller in self.controllers:
                    _set(f"{self._folders[controller]}/{name}/{file}", value)
        except OSError:
            cgroupfs.remove_folders(made)
            raise
        return Group(self.kind, {controller: f"{folder}/{name}" for controller, folder in self._folders.items()})

    def _settings(self, limits: Limits) -> list[tuple[str, str, str]]:
        """Controller, file and value, in order: memory with swap may not be less than memory."""
        memory, swap, cores = str(limits.memory_bytes), _SWAP[self.kind], limits.cpu_cores
        quota = max(1000, round(cores * _PERIOD))
        settings = [("pids", "pids.max", str(limits.processes)), ("memory", _KEYS[self.kind]["memory"], memory)]
        if self._swaps:
            settings.append(("memory", swap, memory if self.kind == "v1" else "0"))
        if self.kind == "v1":
            settings.append(("cpu", "cpu.cfs_quota_us", str(quota)))
            settings.append(("cpu", "cpu.shares", str(max(2, round(cores * 1024)))))
        else:
            settings.append(("cpu", "cpu.max", f"{quota} {_PERIOD}"))
            settings.append(("cpu", "cpu.weight", str(min(10_000, max(1, round(cores * 100))))))
        return settings

    def close(self) -> None:
        """Remove the engine's folders, and first whatever is left in them."""
        cgroupfs.clear(self._roots)

    @staticmethod
    def leases() -> list[str]:
        """The leases for which this machine has folders that this process may remove."""
        names = {cgroupfs.name_of(folder) for folder in cgroupfs.engine_folders()}
        return sorted(name.removeprefix(cgroupfs.PREFIX) for name in names)

    @staticmethod
    def sweep(lease: str) -> int:
        """End every process in every group of a dead lease and remove its folders; how many groups there were."""
        name = f"{cgroupfs.PREFIX}{lease}"
        return cgroupfs.clear([folder for folder in cgroupfs.engine_folders() if cgroupfs.name_of(folder) == name])


def rlimits(limits: Limits, *, controllers: frozenset[str], own_user_namespace: bool) -> list[tuple[int, int, int]]:
    """(resource, soft, hard) for every rlimit to set in a sandbox; none is above what this process may set."""
    wanted = [
        (resource.RLIMIT_CORE, 1, 1),  # 0 would still start a program that core dumps are piped to
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        (resource.RLIMIT_MEMLOCK, 64 << 10, 64 << 10),
        (resource.RLIMIT_MSGQUEUE, 819_200, 819_200),  # the kernel's default, which all sandboxes of one user share
        (resource.RLIMIT_SIGPENDING, 4096, 4096),
        (resource.RLIMIT_RTPRIO, 0, 0),  # real-time processes know no quota
    ]
    if "memory" not in controllers:
        # DATA holds what a process fills. AS only closes the way around it, shared memory, so it can be generous.
        space = limits.memory_bytes + _RESERVED
        wanted += [(resource.RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes), (resource.RLIMIT_AS, space, space)]
    if "pids" not in controllers and own_user_namespace and _counts_per_namespace():
        wanted.append((resource.RLIMIT_NPROC, limits.processes, limits.processes))
    if limits.cpu_seconds is not None:
        seconds = max(1, math.ceil(limits.cpu_seconds))
        wanted.append((resource.RLIMIT_CPU, seconds, seconds + 1))  # SIGXCPU, and a second later SIGKILL
    return [(which, _at_most(which, soft), _at_most(which, hard)) for which, soft, hard in wanted]


def _at_most(which: int, value: int) -> int:
    _, hard = resource.getrlimit(which)
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def _counts_per_namespace() -> bool:
    """Before Linux 5.14 a user's processes were counted together, whatever namespace they were in."""
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return version is not None and (int(version[1]), int(version[2])) >= (5, 14)


def _may_write(path: str) -> bool:
    return os.access(path, os.W_OK)


def _set(path: str, value: str) -> None:
    try:
        cgroupfs.write(path, value)
    except OSError as error:
        # An ancestor with a tighter quota refuses a wider one in version 1, and its own holds then.
        if error.errno != errno.EINVAL or not path.endswith("cpu.cfs_quota_us"):
            raise
