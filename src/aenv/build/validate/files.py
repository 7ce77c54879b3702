"""What changed in a folder while a project ran."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_IGNORED = {"__pycache__", ".git", ".venv", "venv", "node_modules", ".pytest_cache", ".mypy_cache", ".ruff_cache"}

Snapshot = dict[str, tuple[int, int, int]]


def snapshot(folder: Path) -> Snapshot:
    """Each file by its path below the folder, with what changes when it is written."""
    return dict(_walk(str(folder), ""))


class Change(NamedTuple):
    """A file that is not as it was; `verdict` completes the sentence."""

    path: str
    verdict: str


def changes(before: Snapshot, after: Snapshot) -> tuple[Change, ...]:
    """The files that differ, by path."""
    return tuple(
        Change(path, _verdict(path, before, after))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    )


def _verdict(path: str, before: Snapshot, after: Snapshot) -> str:
    if path not in before:
        return "was written"
    return "was changed" if path in after else "was removed"


def _walk(folder: str, below: str) -> Iterator[tuple[str, tuple[int, int, int]]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        # Removed while we look, or not ours to look into.
        return
    for entry in entries:
        path = f"{below}{entry.name}"
        try:
            if not entry.is_dir(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                yield path, (status.st_mtime_ns, status.st_size, status.st_ino)
            elif entry.name not in _IGNORED:
                yield from _walk(entry.path, f"{path}/")
        except OSError:
            continue
