"""The system calls a sandbox may not make, as a program for the kernel's filter; by hand, so that no library is needed.

A deny-list: the namespaces, the dropped capabilities and the user id hold the sandbox, and this narrows what of the
kernel it can reach. See https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import NamedTuple

from aenv.errors import EngineUnavailable

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The word by which the kernel tells each machine's native calls from those of another instruction set."""

NEWEST = 469
"""The last call that was looked at (file_setattr, Linux 6.17), on both machines; later ones are answered as absent."""

NUMBERS: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
"""Every call that is not simply allowed: its number on x86_64 and on aarch64, None where there is no such call."""

COPYING = frozenset(
    {
        *("mount", "umount2", "pivot_root", "mount_setattr", "open_tree", "move_mount"),
        *("fsopen", "fsconfig", "fsmount", "setns", "sethostname"),
    }
)
"""What a sandbox needs on top when it makes copies of itself; unshare and clone too, but for user namespaces."""

# Calls that are judged by their arguments, or answered with something else than EPERM.
_JUDGED = {
    "clone": "spaces",
    "clone3": "absent",  # its flags are in memory, where no filter looks; glibc falls back to clone
    "ioctl": "ioctl",
    "personality": "personality",
    "socket": "socket",
    "socketpair": "socket",
}

_CLONE_NEWUSER = 0x10000000
_CLONE_NEW_ANY = 0x7E020000  # without NEWTIME, whose bit is part of the exit signal in clone
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_NETLINK_ROUTE = 0
_SOCK_STREAM, _SOCK_DGRAM, _SOCK_TYPE_MASK = 1, 2, 0xF
_NO_CALL = 0xFFFFFFFF

_LOAD, _AND, _RETURN, _EQUAL, _AT_LEAST, _ANY_BIT = 0x20, 0x54, 0x06, 0x15, 0x35, 0x45
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
# struct seccomp_data: the number, the architecture, the instruction pointer, six arguments of 64 bits, low half first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_PR_SET_SECCOMP = 22


class _Step(NamedTuple):
    """One instruction; a jump goes on at a label, or at the next instruction where it names none."""

    code: int
    value: int
    yes: str = ""
    no: str = ""


class _Layout(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


class Filter(bytes):
    """An array of struct sock_filter, with what the kernel is called with.

    Laid out before the fork: every page that a child touches first costs it as much as ten calls.
    """

    def __init__(self, _steps: bytes) -> None:
        self.layout = _Layout(len(self) // 8, bytes(self))
        self.pointer = ctypes.byref(self.layout)


# Looked up once, before any fork. There is none outside Linux, where nothing is installed either.
_prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
_MODE = ctypes.c_ulong(2)  # SECCOMP_MODE_FILTER


def program(machine: str | None = None, *, may_fork_sandbox: bool = False) -> Filter:
    """The filter for a machine, this one if not said; `may_fork_sandbox` is for a sandbox that makes copies of itself.

    Raises EngineUnavailable for a machine whose call numbers are not known.
    """
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        raise EngineUnavailable(
            f"there is no system call filter for the machine {machine!r}",
            hint="run on x86_64 or aarch64, or set AENV_ISOLATION=process if all code is trusted",
        )
    verdicts = _verdicts(machine, may_fork_sandbox=may_fork_sandbox)
    lines = [
        _Step(_LOAD, _ARCHITECTURE),
        _Step(_EQUAL, ARCHITECTURES[machine], "", "kill"),
        _Step(_LOAD, _NUMBER),
        *_search(_ranges(verdicts)),
        *_rules(_CLONE_NEWUSER if may_fork_sandbox else _CLONE_NEW_ANY),
    ]
    return Filter(_assemble(lines))


def install(program: bytes) -> None:
    """Put the calling thread, and all it starts, under the filter for good; OSError if the kernel refuses.

    Cheap for what `program` returned, dearer for a copy of its bytes. The caller has set PR_SET_NO_NEW_PRIVS before,
    without which the kernel takes filters from root only.
    """
    if _prctl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    ready = program if isinstance(program, Filter) else Filter(program)
    if _prctl(_PR_SET_SECCOMP, _MODE, ready.pointer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_SECCOMP): {os.strerror(number)}")


def _verdicts(machine: str, *, may_fork_sandbox: bool) -> dict[int, str]:
    """The label at which each call that is not simply allowed is judged."""
    column = list(ARCHITECTURES).index(machine)
    labels = {name: _JUDGED.get(name, "deny") for name in NUMBERS}
    if may_fork_sandbox:
        labels |= dict.fromkeys(COPYING, "allow") | {"unshare": "spaces"}
    return {number: label for name, label in labels.items() if (number := NUMBERS[name][column]) is not None}


def _ranges(verdicts: dict[int, str]) -> list[tuple[int, str]]:
    """The first number of each run of calls with the same verdict, and that verdict."""
    ranges = [(0, "allow")]
    for number in range(NEWEST + 1):
        label = verdicts.get(number, "allow")
        if label != ranges[-1][1]:
            ranges.append((number, label))
    # What lies above holds the calls of the x32 mode too. The last number is what a tracer leaves of a call it answers.
    return [*ranges, (NEWEST + 1, "absent"), (_NO_CALL, "allow")]


def _search(ranges: list[tuple[int, str]]) -> list[_Step | str]:
    """A balanced tree of comparisons that ends at the verdict of the range with the loaded number."""
    middle = len(ranges) // 2
    left, below = _half(ranges[:middle])
    right, above = _half(ranges[middle:])
    return [_Step(_AT_LEAST, ranges[middle][0], above, below), *left, *right]


def _half(ranges: list[tuple[int, str]]) -> tuple[list[_Step | str], str]:
    """The steps for some of the ranges, and the label that leads there: no steps for a single one, only its verdict."""
    start, verdict = ranges[0]
    if len(ranges) == 1:
        return [], verdict
    label = f"{start} to {ranges[-1][0]}"
    return [label, *_search(ranges)], label


def _rules(spaces: int) -> list[_Step | str]:
    """The judgements by arguments, and the answers; the kernel uses the low halves of these arguments, so they do."""
    return [
        "ioctl",
        _Step(_LOAD, _argument(1)),
        *(_Step(_EQUAL, request, "deny") for request in (_TIOCSTI, _TIOCLINUX)),
        _Step(_EQUAL, _TIOCSETD, "deny", "allow"),
        "spaces",
        _Step(_LOAD, _argument(0)),
        _Step(_ANY_BIT, spaces, "deny", "allow"),
        "socket",
        _Step(_LOAD, _argument(0)),
        _Step(_EQUAL, _AF_UNIX, "allow"),
        _Step(_EQUAL, _AF_INET, "internet"),
        _Step(_EQUAL, _AF_INET6, "internet"),
        _Step(_EQUAL, _AF_NETLINK, "", "deny"),
        _Step(_LOAD, _argument(2)),
        _Step(_EQUAL, _NETLINK_ROUTE, "allow", "deny"),
        "internet",  # neither raw ones nor SOCK_PACKET, which the kernel turns into AF_PACKET
        _Step(_LOAD, _argument(1)),
        _Step(_AND, _SOCK_TYPE_MASK),
        _Step(_EQUAL, _SOCK_STREAM, "allow"),
        _Step(_EQUAL, _SOCK_DGRAM, "allow", "deny"),
        "personality",  # those that no protection is lost by, and the question for the present one
        _Step(_LOAD, _argument(0)),
        *(_Step(_EQUAL, kind, "allow") for kind in (0, 0x20008)),
        _Step(_EQUAL, 0xFFFFFFFF, "allow", "deny"),
        "allow",
        _Step(_RETURN, _ALLOW),
        "deny",
        _Step(_RETURN, _ERRNO | errno.EPERM),
        "absent",
        _Step(_RETURN, _ERRNO | errno.ENOSYS),
        "kill",
        _Step(_RETURN, _KILL_PROCESS),
    ]


def _argument(index: int) -> int:
    return _ARGUMENTS + 8 * index


def _assemble(lines: list[_Step | str]) -> bytes:
    """Steps and labels as an array of struct sock_filter; jumps only go forward, and by at most 255 steps."""
    places: dict[str, int] = {}
    steps: list[_Step] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(steps)
        else:
            steps.append(line)
    packed = []
    for here, step in enumerate(steps, start=1):
        yes, no = (places[label] - here if label else 0 for label in (step.yes, step.no))
        packed.append(struct.pack("=HBBI", step.code, yes, no, step.value))
    return b"".join(packed)
