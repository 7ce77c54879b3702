"""What sandboxes leave behind on this machine: processes, mounts, control groups, files.

An engine that works on other machines leaves no traces here; for those, `Engine.list` is all that the suite sees.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_GROUPS = Path("/sys/fs/cgroup")
_OURS = "aenv"
# What the kernel keeps of a process's name.
_COMM = 15


def find_traces(ids: Sequence[str], folders: Iterable[Path]) -> list[str]:
    """Everything that carries one of these instance ids, in a sentence each."""
    if not ids:
        return []
    return [
        *_marked_processes(ids),
        *(f"mount {line}" for line in _mounts() if _names(line, ids)),
        *(f"control group {group}" for group in _groups() if _names(group.name, ids)),
        *(f"file {file}" for file in _files(folders) if _names(str(file), ids)),
    ]


@dataclass(frozen=True)
class Footprint:
    """What there is on the machine at a moment that an engine could have made."""

    processes: frozenset[tuple[int, str]]
    mounts: frozenset[str]
    groups: frozenset[Path]
    files: frozenset[Path]

    @classmethod
    def take(cls, folders: Sequence[Path]) -> Footprint:
        """As it is now; `folders` are the engine's own."""
        words = [_OURS, *map(str, folders)]
        return cls(
            processes=frozenset(_descendants(os.getpid())),
            mounts=frozenset(line for line in _mounts() if any(word in line for word in words)),
            groups=frozenset(group for group in _groups() if _OURS in group.name and not _is_inhabited(group)),
            files=frozenset(_files(folders)),
        )

    def list_new(self, before: Footprint, names: Collection[str] = ()) -> list[str]:
        """What is here and was not before, in a sentence each.

        With `names`, only control groups that are named after one of them: other engines live on this machine too. For
        the same reason, no process below one that was there before.
        """
        known = {pid for pid, _ in before.processes}
        begun = [pid for pid, _ in sorted(self.processes - before.processes) if not known & set(_ancestors(pid))]
        groups = [group for group in self.groups - before.groups if not names or _names(str(group), names)]
        return [
            *(f"process {pid} {_command(pid)}" for pid in begun),
            *(f"mount {line}" for line in sorted(self.mounts - before.mounts)),
            *(f"control group {group}" for group in sorted(groups)),
            *(f"file {file}" for file in sorted(self.files - before.files)),
        ]


def _names(text: str, ids: Collection[str]) -> bool:
    return any(id in text for id in ids)


def _marked_processes(ids: Sequence[str]) -> Iterator[str]:
    marks = [id.encode() for id in ids]
    names = {id[-_COMM:] for id in ids}
    for pid in _pids():
        known = _read(pid, "cmdline") + _read(pid, "environ")
        is_marked = any(mark in known for mark in marks) or _read(pid, "comm").decode("latin-1").strip() in names
        if is_marked and _state(pid) != "Z":
            yield f"process {pid} {_command(pid)}"


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()] if _PROC.is_dir() else []


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        # It ended, or it is somebody else's.
        return b""


def _status(pid: int) -> list[str]:
    """The fields of `stat` after the name, which may itself hold spaces: state, parent, …"""
    return _read(pid, "stat").decode("latin-1").rpartition(")")[2].split()


def _state(pid: int) -> str:
    return next(iter(_status(pid)), "Z")


def _command(pid: int) -> str:
    command = _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return command[:200] or _read(pid, "comm").decode("utf-8", "replace").strip()


def _ancestors(pid: int) -> Iterator[int]:
    while len(fields := _status(pid)) > 1 and (pid := int(fields[1])) > 0:
        yield pid


def _descendants(root: int) -> set[tuple[int, str]]:
    """Processes below this one, each with its birth time, for a pid can be used again."""
    below: dict[int, list[tuple[int, str]]] = {}
    for pid in _pids():
        if len(fields := _status(pid)) > 19:
            below.setdefault(int(fields[1]), []).append((pid, fields[19]))
    found: set[tuple[int, str]] = set()
    waiting = [root]
    while waiting:
        children = below.get(waiting.pop(), [])
        found.update(children)
        waiting += [pid for pid, _ in children]
    return found


def _mounts() -> list[str]:
    try:
        return (_PROC / "self" / "mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _groups() -> Iterator[Path]:
    for folder, names, _ in os.walk(_GROUPS):
        yield from (Path(folder) / name for name in names)


def _is_inhabited(group: Path) -> bool:
    """Whether a process is in it or below: then somebody's engine, perhaps another one, still uses it."""
    for folder, _, _ in os.walk(group):
        try:
            if (Path(folder) / "cgroup.procs").read_text():
                return True
        except OSError:
            # It went away while we looked.
            continue
    return False


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for place, names, files in os.walk(folder):
            yield from (Path(place) / name for name in (*names, *files))
