"""Noticing that an author saved a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_IGNORED = {"__pycache__", "node_modules", "venv", "site-packages", "dist"}
_ENDINGS = (".py", ".toml", ".yaml", ".yml", ".md")

Snapshot = dict[str, tuple[int, int]]


def snapshot(folder: Path) -> Snapshot:
    """Each file that the environment is made of, with its time of change and size.

    What else lies in the folder may be written by the environment itself, and must not start it again.
    """
    found = dict(_walk(str(folder / "src" if (folder / "src").is_dir() else folder)))
    for name in ("config.json", "requirements.txt"):
        try:
            status = (folder / name).stat()
        except OSError:
            continue
        found[str(folder / name)] = (status.st_mtime_ns, status.st_size)
    return found


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """The files that are new, gone or different."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _walk(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _IGNORED:
            continue
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            elif entry.name.endswith(_ENDINGS):
                status = entry.stat()
                yield entry.path, (status.st_mtime_ns, status.st_size)
        except OSError:
            # An editor renames its temporary file away while we look.
            continue
