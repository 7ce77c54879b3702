"""The file system of control groups, version 1 and 2: where they are mounted, and groups as folders with files in them.

What has vanished meanwhile is no error here: groups belong to processes that end when they like.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

PREFIX = "aenv."
"""How the folder of an engine begins; its lease follows."""

ASIDE = "_engine"
"""The group in its own folder to which an engine steps aside when version 2 wants the one above emptied."""

_PATIENCE = 5.0  # seconds; a process that outlives SIGKILL by so much is stuck in the kernel
_PAUSE = 0.0005  # seconds; version 1 tells nobody that a group has become empty, so it is looked at again


class Tree(NamedTuple):
    """One hierarchy of groups: where it is mounted, and where this process is in it."""

    kind: str
    controllers: frozenset[str]
    mount: str
    own: str


def trees() -> list[Tree]:
    """The hierarchies that this process sees: of version 1 those that limit or count something for us."""
    groups = []
    for line in read("/proc/self/cgroup").splitlines():
        _, words, group = line.split(":", 2)
        groups.append((frozenset(words.split(",")) - {""}, group))
    found = []
    for line in read("/proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        root, mount = left.split(" ")[3:5]
        if kind == "cgroup2":
            here = [Tree("v2", words, mount, group) for words, group in groups if not words]
        elif kind == "cgroup":
            here = [Tree("v1", words, mount, group) for words, group in groups if words & {*options.split(",")}]
        else:
            continue
        found += [tree._replace(own=f"{mount}{own}") for tree in here if (own := _below(tree.own, root)) is not None]
    return [tree for tree in found if tree.kind == "v2" or tree.controllers & {"memory", "pids", "cpu", "cpuacct"}]


def _below(group: str, root: str) -> str | None:
    """A group's path from the mount point on; None if the mount does not show it."""
    root = root.rstrip("/")
    inside = group == root or group.startswith(f"{root}/")
    return group[len(root) :].rstrip("/") if inside else None


def upwards(folder: str, last: str) -> Iterator[str]:
    """A folder and those above it, as far as the mount point."""
    yield folder
    while folder != last and folder.startswith(last):
        folder = parent_of(folder)
        yield folder


def parent_of(folder: str) -> str:
    """The folder above."""
    return folder.rpartition("/")[0]


def name_of(folder: str) -> str:
    """The last part of a path."""
    return folder.rpartition("/")[2]


def hand_down(folder: str, controllers: Sequence[str]) -> list[str]:
    """Give controllers to the groups in a folder of version 2; those that they have now."""
    path = f"{folder}/cgroup.subtree_control"
    there = read(path).split()
    for controller in controllers:
        if controller not in there:
            try_write(path, f"+{controller}")
    there = read(path).split()
    return [controller for controller in controllers if controller in there]


def step_aside(folder: str) -> None:
    """Move this process from the group above an engine's folder into the folder."""
    make_folder(f"{folder}/{ASIDE}")
    try_write(f"{folder}/{ASIDE}/cgroup.procs", "0")


def _step_back(folder: str) -> None:
    """Return an engine that stepped aside, and what it started there, to the group it came from."""
    pids = members(f"{folder}/{ASIDE}")
    if not pids:
        return
    above = parent_of(folder)
    for group in (folder, above):
        for controller in read(f"{group}/cgroup.subtree_control").split():
            try_write(f"{group}/cgroup.subtree_control", f"-{controller}")
    for pid in pids:
        try_write(f"{above}/cgroup.procs", str(pid))


def engine_folders() -> list[str]:
    """The folders of all engines, in all trees, that this process may change."""
    found, ahead = [], [tree.mount for tree in trees()]
    while ahead:
        for folder in _subfolders(ahead.pop()):
            if not name_of(folder).startswith(PREFIX):
                ahead.append(folder)
            elif os.access(folder, os.W_OK):
                found.append(folder)
    return found


def _subfolders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def clear(folders: Sequence[str]) -> int:
    """End and remove all that is in folders of an engine, and them; how many groups there were."""
    for folder in folders:
        _step_back(folder)
    groups = {name_of(path) for folder in folders for path in _subfolders(folder)} - {ASIDE}
    inmost_first = [path for folder in folders for path, _, _ in os.walk(folder, topdown=False)]
    end_all(inmost_first)
    deadline = time.monotonic() + _PATIENCE
    while not remove_folders(inmost_first) and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        end_all(inmost_first)  # a child that was about to join has joined
    return len(groups)


def end_all(groups: Sequence[str]) -> None:
    """Kill every process in some groups but this one; returns when none is left, or none that can be killed."""
    deadline = time.monotonic() + _PATIENCE
    while [group for group in groups if _signal(group)] and time.monotonic() < deadline:
        time.sleep(_PAUSE)


def _signal(group: str) -> bool:
    """Send SIGKILL to every process in one group but this one; False when there was none."""
    pids = members(group)
    others = [pid for pid in pids if pid != os.getpid()]
    if not others or (others == pids and try_write(f"{group}/cgroup.kill", "1")):
        return bool(others)
    try_write(f"{group}/pids.max", "0")  # what cannot fork cannot outrun the killing
    for pid in others:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return True


def members(group: str) -> list[int]:
    """The processes in a group, without those of other namespaces: they read as 0, which kill takes for our own."""
    return [int(pid) for pid in read(f"{group}/cgroup.procs").split() if pid != "0"]


def make_folder(folder: str) -> bool:
    """Make a folder, or take the one that is there; False where this process may not."""
    if not os.access(parent_of(folder), os.W_OK):
        return False
    try:
        os.mkdir(folder)  # noqa: PTH102 - plain strings, here and below: groups are made on the way of every start
    except OSError as error:
        return error.errno == errno.EEXIST
    return True


def make_group(group: str) -> None:
    """Make a group that is not there yet."""
    os.mkdir(group)  # noqa: PTH102 - see above


def remove_folders(folders: Sequence[str]) -> bool:
    """True when all are gone, False while a process or a group is left in one."""
    left = 0
    for folder in folders:
        try:
            os.rmdir(folder)  # noqa: PTH106 - see above
        except OSError as error:
            left += error.errno != errno.ENOENT
    return left == 0


def open_to_write(path: str) -> int:
    """A descriptor for one of a group's files, which are always there already."""
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)


def write(path: str, value: str) -> None:
    """Tell the kernel one thing; OSError if it does not like it."""
    file = open_to_write(path)
    try:
        os.write(file, value.encode())
    finally:
        os.close(file)


def try_write(path: str, value: str) -> bool:
    """Tell the kernel one thing; False if it does not like it."""
    try:
        write(path, value)
    except OSError:
        return False
    return True


def read(path: str) -> str:
    """What a file says; nothing if it, or its group, is not there."""
    parts = []
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        while part := os.read(file, 1 << 16):
            parts.append(part)
    except OSError:
        return ""
    finally:
        os.close(file)
    return b"".join(parts).decode()


def number(path: str) -> int | None:
    """The number that is all a file says."""
    text = read(path)
    return int(text) if text else None


def counter(path: str, name: str) -> int | None:
    """One number of a file with a name and a number on each line."""
    for line in read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return None
