"""Sandboxes that can be copied while they live: how one is made, and how its copy becomes a sandbox of its own.

    outer half       (the first sandbox of a family only)
    └── init         pid 1; reaps, says how the server ended, and outlives it while copies live below
        ├── server   the instance
        └── init     pid 1 of a copy, in a pid namespace below its source's
            └── server

A process cannot be put into a pid namespace from outside, so a copy makes its own, below that of its source, and its
source's server must keep the right to do so: CAP_SYS_ADMIN over the sandbox's own namespaces, in a user namespace that
holds nothing else. Programs that it starts do not get it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import stat
from collections.abc import Callable
from typing import Any, NoReturn

from aenv.engines.local import linux, seccomp
from aenv.engines.local.box import OWN_NETWORK, Needs, Shape, announce, become, mount_files, mount_kernel, sized
from aenv.engines.local.rootfs import BOX, HOME, PROJECT

KEPT = frozenset(
    {linux.CAP_SYS_ADMIN, linux.CAP_SYS_CHROOT, linux.CAP_NET_ADMIN, linux.CAP_DAC_OVERRIDE, linux.CAP_FOWNER}
)
_SPACES = linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP | linux.CLONE_NEWPID
_FILES = ("up", "home", "run", "tmp", "shm")
_NEXT = "/mnt"
_AT_ONCE = 1 << 30


def enter(shape: Shape, needs: Needs, entries: list[int], control: int) -> int:
    """Shut this process in, as one that may be copied; returns, two forks further down, in the server to be.

    The first half of `entries` is for the processes around it, which belong to no instance alone.
    """
    around, own = entries[: len(entries) // 2], entries[len(entries) // 2 :]
    _join(around)
    become(shape)
    linux.unshare(_SPACES | (OWN_NETWORK if shape.has_own_network else 0))
    if (child := os.fork()) > 0:
        _wait_for(child)
    # Above it are processes of its own; above a copy is a source that it may outlive.
    linux.die_with_parent(signal.SIGKILL)
    _be_init(control)
    _join(own)
    box = mount_files(shape, needs)
    mount_kernel(needs.hostname)
    if shape.has_own_network:
        linux.raise_loopback()
    _give_up_rights(needs)
    seccomp.install(shape.filter)
    os.chdir(PROJECT)
    return box


def _join(entries: list[int]) -> None:
    for descriptor in entries:
        os.write(descriptor, b"0")


def _wait_for(child: int) -> NoReturn:
    """The outer half: ends with the sandbox, and the sandbox with it."""
    os.closerange(3, 1 << 16)
    linux.keep_capabilities()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _be_init(control: int) -> None:
    """Fork: pid 1 stays here, the server goes on."""
    server = os.fork()
    if server == 0:
        return
    own = os.dup2(control, 3) if control != 3 else control
    os.closerange(4, 1 << 16)
    linux.keep_capabilities()
    code = 0
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == server:
                code = os.waitstatus_to_exitcode(status)
                _tell(own, {"op": "over", "code": code})
                # Whoever listens there must see its end, though copies keep this process alive.
                os.close(own)
    os._exit(code if code >= 0 else 128 - code)


def _give_up_rights(needs: Needs) -> None:
    for kind, soft, hard in needs.rlimits:
        resource.setrlimit(kind, (soft, hard))
    # No program started from here is given rights for being root's.
    linux.lock_out_root()
    linux.keep_capabilities(KEPT)
    linux.set_dumpable(0)
    linux.forbid_new_privileges()


class Copier:
    """What a server needs to become another sandbox, handed to it by its zygote."""

    def __init__(self, shape: Shape, needs: Needs, announcing: str | None) -> None:
        self._shape = shape
        self._needs = needs
        self._announcing = announcing

    def enter(self, descriptors: list[int], settled: Callable[[], None]) -> tuple[int, int]:
        """In a fork of the server: be a sandbox of its own. Returns, two forks further down, control and listener.

        `settled` is called when the source may go on changing its files.
        """
        control, listener, log, *entries = descriptors
        around, own = entries[: len(entries) // 2], entries[len(entries) // 2 :]
        _join(around)
        linux.unshare(_SPACES | (OWN_NETWORK if self._shape.has_own_network else 0))
        box = self._copy_files()
        settled()
        os.dup2(log, 1)
        os.dup2(log, 2)
        if (child := os.fork()) > 0:
            _announce(control, child, box)
        _be_init(control)
        _join(own)
        mount_kernel(self._needs.hostname)
        if self._shape.has_own_network:
            linux.raise_loopback()
        os.chdir(PROJECT)
        for descriptor in (log, box, *entries):
            os.close(descriptor)
        if self._announcing is not None:
            announce(control, opens_proxy=self._announcing == "proxy")
        return control, listener

    def _copy_files(self) -> int:
        """A file system of its own with all that the source's holds, in place of the source's."""
        size = self._needs.storage_bytes
        linux.mount("box", _NEXT, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, sized(size))
        for name in _FILES:
            _copy(f"{BOX}/{name}", f"{_NEXT}/{name}")
        os.mkdir(f"{_NEXT}/work", 0o755)  # noqa: PTH102 - system calls, next to each other
        for target in (PROJECT, "/tmp", HOME, "/dev/shm", BOX):  # noqa: S108 - the sandbox's own
            linux.unmount(target)
        linux.mount(_NEXT, BOX, "", linux.MS_MOVE)
        return mount_files(self._shape, None)


def _announce(control: int, child: int, box: int) -> NoReturn:
    """Hand the copy's first process out, and leave it to its source's init."""
    text = json.dumps({"op": "born"}).encode()
    with socket.socket(fileno=control) as channel:
        socket.send_fds(channel, [len(text).to_bytes(4, "little") + text], [os.pidfd_open(child), box])
    os._exit(0)


def _tell(control: int, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    with contextlib.suppress(OSError):
        os.write(control, len(text).to_bytes(4, "little") + text)


def _copy(source: str, target: str) -> None:
    """A folder with all in it: kinds, modes, times, extended attributes; hard links become files of their own."""
    os.mkdir(target)  # noqa: PTH102 - as above
    with os.scandir(source) as entries:
        for entry in entries:
            _copy_entry(entry.path, f"{target}/{entry.name}", entry.stat(follow_symlinks=False))
    _dress(source, target, os.stat(source))  # noqa: PTH116 - as above


def _copy_entry(source: str, target: str, found: os.stat_result) -> None:
    mode = found.st_mode
    if stat.S_ISDIR(mode):
        _copy(source, target)
        return
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)  # noqa: PTH115, PTH211 - as above
        return
    if stat.S_ISREG(mode):
        _copy_content(source, target, found.st_size)
    elif stat.S_ISSOCK(mode):
        # Whoever listened there is the source's.
        return
    else:
        # Pipes, and the marks by which an overlay remembers what was deleted.
        os.mknod(target, mode, found.st_rdev)
    _dress(source, target, found)


def _copy_content(source: str, target: str, size: int) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        offset = 0
        while offset < size and (sent := os.sendfile(writer, reader, offset, min(size - offset, _AT_ONCE))):
            offset += sent
    finally:
        os.close(reader)
        os.close(writer)


def _dress(source: str, target: str, found: os.stat_result) -> None:
    with contextlib.suppress(OSError):
        for name in os.listxattr(source, follow_symlinks=False):
            os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
    os.chmod(target, stat.S_IMODE(found.st_mode))  # noqa: PTH101 - as above
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
