"""The kernel calls that Python 3.11 has no name for, each as thin as it can be."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_MOVE = 8192
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_SECURE_NOROOT = 0b11  # and locked
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_LAST_CAPABILITY = 40

CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_SETGID, CAP_SETUID, CAP_SETPCAP = 0, 1, 3, 6, 7, 8
CAP_NET_ADMIN, CAP_SYS_CHROOT, CAP_SYS_ADMIN, CAP_SETFCAP = 12, 18, 21, 31

# The same number on every machine that has it: https://docs.kernel.org/process/adding-syscalls.html
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_CAPABILITY_VERSION_3 = 0x20080522

_SIOCSIFFLAGS, _IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x8914, 1, 8, 64
_LOOPBACK_UP = struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_LOOPBACK | _IFF_RUNNING)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def _number(table: dict[str, int]) -> int:
    return table[platform.machine()]


def unshare(flags: int) -> None:
    """Leave the namespaces named by the flags for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def setns(descriptor: int, flags: int) -> None:
    """Enter a namespace, or all of a process's namespaces that the flags name when the descriptor is a pidfd."""
    _checked(_libc.setns(descriptor, flags), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode())
    _checked(result, f"mount {kind or source} on {target}")


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    """umount2(2)."""
    _checked(_libc.umount2(target.encode(), flags), f"unmount {target}")


def pivot_root(new: str, old: str) -> None:
    """pivot_root(2)."""
    _checked(_libc.syscall(_number(_PIVOT_ROOT), new.encode(), old.encode()), f"pivot_root {new}")


def make_readonly(path: str, *, devices: bool = False, writable: bool = False) -> None:
    """Take writing, setuid programs and, unless told otherwise, devices from a mount and all below it.

    Adding flags is always allowed, also for mounts of another user namespace, whose own flags are locked.
    """
    wanted = _ATTR_NOSUID | (0 if devices else _ATTR_NODEV) | (0 if writable else _ATTR_RDONLY)
    attributes = struct.pack("<QQQQ", wanted, 0, 0, 0)
    result = _libc.syscall(
        _MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, ctypes.c_size_t(len(attributes))
    )
    _checked(result, f"mount_setattr {path}")


def die_with_parent(number: int) -> None:
    """Have the kernel send this signal when the parent ends; to be asked for anew after every change of identity."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl(PDEATHSIG)")


def set_dumpable(value: int) -> None:
    """Whether processes of the same user may look into this one: its memory, descriptors and environment."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, value, 0, 0, 0), "prctl(DUMPABLE)")


def become_subreaper() -> None:
    """Orphans below this process become its children."""
    _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(CHILD_SUBREAPER)")


def forbid_new_privileges() -> None:
    """No program that this process starts gets more rights than it has."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(NO_NEW_PRIVS)")


def keep_capabilities(kept: frozenset[int] = frozenset()) -> None:
    """Give up every capability but these, for good."""
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(CAP_AMBIENT)")
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in kept:
            # An older kernel knows fewer, and says so; there is nothing to give up then.
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    bits = sum(1 << capability for capability in kept)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.syscall(_number(_CAPSET), header, struct.pack("<6I", low, low, 0, high, high, 0)), "capset")


def lock_out_root() -> None:
    """User 0 is an ordinary user from here on: it gets no capability for being 0, in programs it starts either."""
    _checked(_libc.prctl(_PR_SET_SECUREBITS, _SECURE_NOROOT, 0, 0, 0), "prctl(SECUREBITS)")


def raise_loopback() -> None:
    """Bring up `lo` of this network namespace."""
    probe = _checked(_libc.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0), "socket")
    _checked(_libc.ioctl(probe, _SIOCSIFFLAGS, _LOOPBACK_UP), "lo")
    os.close(probe)


def write_file(path: str, text: str) -> None:
    """One write, as the kernel's control files want it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
