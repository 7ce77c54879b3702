"""Who holds a TCP port on this machine, as far as the kernel tells us."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"


class Holder(NamedTuple):
    """A process that listens on a port."""

    pid: int
    command: str


def port_holder(port: int) -> Holder | None:
    """The process that listens there; None when there is none or it belongs to somebody else."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        if sockets & _open_files(process):
            return Holder(int(process.name), _command(process))
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _open_files(process: Path) -> set[str]:
    found: set[str] = set()
    try:
        for link in (process / "fd").iterdir():
            found.add(str(link.readlink()))
    except OSError:
        # Somebody else's process, or one that has just ended.
        return found
    return found


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
