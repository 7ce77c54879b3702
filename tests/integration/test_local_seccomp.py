"""The system call filter, in real children of this machine, and step by step for every machine it is written for."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from aenv.engines.local import seccomp
from aenv.errors import EngineUnavailable

ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000
EPERM, ENOSYS = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
MACHINES = ["x86_64", "aarch64"]
JUDGED = {"clone", "clone3", "ioctl", "personality", "socket", "socketpair"}
DENIED = sorted(set(seccomp.NUMBERS) - JUDGED)
DENIED_SOMEWHERE = [
    (name, machine)
    for name in DENIED
    for machine, number in zip(MACHINES, seccomp.NUMBERS[name], strict=True)
    if number is not None
]
NEWNS, NEWUSER, NEWNET = 0x20000, 0x10000000, 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
HERE = MACHINES.index(os.uname().machine) if os.uname().machine in MACHINES else None
on_this_machine = pytest.mark.skipif(HERE is None or sys.platform != "linux", reason="needs Linux on x86_64 or aarch64")


def run(program: bytes, number: int, *arguments: int, machine: str = "x86_64", word: int | None = None) -> int:
    """What the kernel's interpreter of classic BPF would answer."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("<IIQ6Q", number, seccomp.ARCHITECTURES[machine] if word is None else word, 0, *words)
    steps = list(struct.iter_unpack("=HBBI", program))
    place = accumulator = 0
    while True:
        code, yes, no, value = steps[place]
        place += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", call, value)
        elif code == 0x54:
            accumulator &= value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}[code]
            place += yes if holds else no


def number(name: str, machine: str) -> int:
    found = seccomp.NUMBERS[name][MACHINES.index(machine)]
    assert found is not None, f"there is no {name} on {machine}"
    return found


def under_filter(work: Callable[[], int], *, may_fork_sandbox: bool = False) -> int:
    """The answer of `work`, of one byte, in a forked child with the filter on; below zero the signal that ended it."""
    program = seccomp.program(may_fork_sandbox=may_fork_sandbox)
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            LIBC.prctl(38, ctypes.c_ulong(1), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
            seccomp.install(program)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def error_of(number: int, *arguments: int) -> int:
    """The errno of a system call, 0 if it works."""
    ctypes.set_errno(0)
    words = [ctypes.c_long(argument) for argument in (*arguments, *[0] * (6 - len(arguments)))]
    return ctypes.get_errno() if LIBC.syscall(ctypes.c_long(number), *words) < 0 else 0


@pytest.mark.parametrize(("name", "machine"), DENIED_SOMEWHERE)
def test_a_denied_call_is_refused_on_every_machine(name: str, machine: str) -> None:
    assert run(seccomp.program(machine), number(name, machine), machine=machine) == EPERM


@on_this_machine
@pytest.mark.parametrize("name", [name for name, machine in DENIED_SOMEWHERE if machine == os.uname().machine])
def test_the_kernel_refuses_a_denied_call(name: str) -> None:
    here = number(name, os.uname().machine)

    # All arguments are wrong on purpose: without the filter the kernel would say EFAULT, EBADF or EINVAL.
    assert under_filter(lambda: error_of(here, -1, -1, -1, -1, -1)) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_only_listed_calls_are_refused(machine: str) -> None:
    program = seccomp.program(machine)
    listed = {pair[MACHINES.index(machine)] for pair in seccomp.NUMBERS.values()}

    answers = {run(program, call, machine=machine) for call in range(seccomp.NEWEST + 1) if call not in listed}

    assert answers == {ALLOW}


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_instruction_set_end_the_process(machine: str) -> None:
    words = {*seccomp.ARCHITECTURES.values(), 0x40000003, 0x40000028, 0} - {seccomp.ARCHITECTURES[machine]}

    assert {run(seccomp.program(machine), 0, machine=machine, word=word) for word in words} == {KILL}


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_that_nobody_has_looked_at_seem_absent(machine: str) -> None:
    x32_getpid, future = 0x40000000 + 39, seccomp.NEWEST + 1
    program = seccomp.program(machine)

    assert {run(program, call, machine=machine) for call in (x32_getpid, future, 0xFFFFFFFE)} == {ENOSYS}
    assert run(program, 0xFFFFFFFF, machine=machine) == ALLOW  # a call that a tracer has answered


@pytest.mark.parametrize("machine", MACHINES)
def test_new_namespaces_are_refused_and_plain_children_are_not(machine: str) -> None:
    program, clone = seccomp.program(machine), number("clone", machine)

    for flag in (NEWNS, 0x02000000, 0x04000000, 0x08000000, NEWUSER, 0x20000000, NEWNET):
        assert run(program, clone, flag | 17, machine=machine) == EPERM
    assert run(program, clone, 0x003D0F00, machine=machine) == ALLOW  # what a thread is made with
    assert run(program, number("clone3", machine), machine=machine) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_a_sandbox_that_copies_itself_gets_namespaces_but_no_user_namespace(machine: str) -> None:
    program = seccomp.program(machine, may_fork_sandbox=True)

    for name in ("clone", "unshare"):
        assert run(program, number(name, machine), NEWNS | NEWNET, machine=machine) == ALLOW
        assert run(program, number(name, machine), NEWNS | NEWUSER, machine=machine) == EPERM
    assert {run(program, number(name, machine), machine=machine) for name in seccomp.COPYING} == {ALLOW}
    others = {name for name, where in DENIED_SOMEWHERE if where == machine} - seccomp.COPYING - {"unshare"}
    assert {run(program, number(name, machine), machine=machine) for name in others} == {EPERM}
    assert run(program, number("clone3", machine), machine=machine) == ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["socket", "socketpair"])
def test_sockets_are_local_internet_or_route_ones(name: str, machine: str) -> None:
    program, call = seccomp.program(machine), number(name, machine)
    flags = 0o2000000 | 0o4000  # SOCK_CLOEXEC | SOCK_NONBLOCK
    allowed = [(1, 1, 0), (1, 5, 0), (2, 1 | flags, 0), (2, 2, 0), (10, 1, 0), (10, 2 | flags, 17), (16, 3, 0)]
    refused = [(2, 3, 1), (10, 3 | flags, 58), (2, 10, 3), (2, 5, 132), (16, 3, 9), (16, 3, 15), (17, 3, 0)]

    assert {run(program, call, *arguments, machine=machine) for arguments in allowed} == {ALLOW}
    assert {run(program, call, *arguments, machine=machine) for arguments in refused} == {EPERM}
    families = set(range(64)) - {1, 2, 10, 16}
    assert {run(program, call, family, 1, machine=machine) for family in families} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_nobody_types_into_the_terminal_of_another(machine: str) -> None:
    program, ioctl = seccomp.program(machine), number("ioctl", machine)

    for request in (0x5412, 0x541C, 0x5423, 0xDEAD_0000_5412):  # the kernel drops the high half as well
        assert run(program, ioctl, 0, request, machine=machine) == EPERM
    assert run(program, ioctl, 0, 0x5401, machine=machine) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_a_personality_may_be_asked_for_and_harmless_ones_set(machine: str) -> None:
    program, personality = seccomp.program(machine), number("personality", machine)

    assert {run(program, personality, kind, machine=machine) for kind in (0, 0x20008, 0xFFFFFFFF)} == {ALLOW}
    assert {run(program, personality, kind, machine=machine) for kind in (0x0400000, 0x0040000, 1)} == {EPERM}


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")],
)
def test_the_numbers_are_those_of_the_kernel_headers(machine: str, header: str) -> None:
    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip(f"there is no {path}; try `apt install linux-libc-dev`")
    defined = {
        name: int(value) for name, value in re.findall(r"define __NR(?:3264)?_(\w+)\s+(\d+)\s", path.read_text())
    }
    ours = {name: pair[MACHINES.index(machine)] for name, pair in seccomp.NUMBERS.items()}

    newer = {"open_tree_attr"} - set(defined)
    assert {name: defined.get(name) for name in ours if name not in newer} == {
        name: value for name, value in ours.items() if name not in newer
    }


def test_an_unknown_machine_is_said_to_be_unknown() -> None:
    with pytest.raises(EngineUnavailable, match="'riscv64'") as caught:
        seccomp.program("riscv64")

    assert caught.value.hint is not None


@on_this_machine
def test_the_kernel_judges_arguments_as_the_program_says() -> None:
    calls: dict[int, list[tuple[str, list[int]]]] = {
        errno.EPERM: [
            ("clone", [NEWUSER | 17]),
            ("socket", [40, 1, 0]),
            ("socket", [38, 5, 0]),
            ("socket", [17, 3, 0]),
            ("socket", [16, 3, 12]),
            ("socket", [2, 3, 1]),
            ("socket", [10, 3, 58]),
            ("ioctl", [0, 0x5412, 0]),
            ("ioctl", [0, 0x541C, 0]),
            ("personality", [0x0040000]),
        ],
        errno.ENOSYS: [("clone3", [0, 0])],
        0: [("socket", [16, 3, 0]), ("socket", [1, 1, 0]), ("socket", [2, 1, 0]), ("personality", [0xFFFFFFFF])],
    }
    for expected, same in calls.items():
        for name, arguments in same:
            here = number(name, os.uname().machine)
            assert under_filter(partial(error_of, here, *arguments)) == expected, (name, arguments)


@on_this_machine
def test_a_call_of_a_later_kernel_seems_absent() -> None:
    assert under_filter(lambda: error_of(seccomp.NEWEST + 1)) == errno.ENOSYS


@on_this_machine
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces of all kinds; try `sudo -E`")
def test_a_sandbox_that_copies_itself_mounts_in_its_own_namespace() -> None:
    def work() -> int:
        mount, unshare = (number(name, os.uname().machine) for name in ("mount", "unshare"))
        if error_of(unshare, NEWUSER) != errno.EPERM:
            return 1
        if failed := error_of(unshare, NEWNS):
            return failed
        root = ctypes.create_string_buffer(b"/")
        private = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
        return error_of(mount, 0, ctypes.addressof(root), 0, private, 0)

    assert under_filter(work, may_fork_sandbox=True) == 0


@on_this_machine
def test_the_filter_stays_after_exec_and_cannot_be_taken_off() -> None:
    def work() -> int:
        code = "import os; status = open('/proc/self/status').read(); os._exit('Seccomp:\\t2' not in status)"
        return subprocess.run([sys.executable, "-c", code], check=False).returncode

    assert under_filter(work) == 0


@on_this_machine
def test_a_copy_of_the_bytes_installs_too() -> None:
    def work() -> int:
        seccomp.install(bytes(seccomp.program()))
        return error_of(number("chroot", os.uname().machine), -1)

    assert under_filter(work) == errno.EPERM


@on_this_machine
def test_what_the_kernel_does_not_take_is_an_error() -> None:
    def work() -> int:
        try:
            seccomp.install(b"\0" * 8)
        except OSError as error:
            return error.errno or 0
        return 0

    assert under_filter(work) == errno.EINVAL


PROGRAMS = {
    "threads": """
        from threading import Thread
        threads = [Thread(target=int) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """,
    "shell": """
        import subprocess
        assert subprocess.check_output(["sh", "-c", "echo a | cat; ls / | wc -l"])[:1] == b"a"
    """,
    "sqlite": """
        import sqlite3
        assert sqlite3.connect(":memory:").execute("select 2 + 2").fetchone() == (4,)
    """,
    "ssl": """
        import ssl
        ssl.create_default_context()
        assert len(ssl.RAND_bytes(8)) == 8
    """,
    "forked processes": """
        from multiprocessing import get_context
        with get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
    """,
    "spawned processes": """
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context
        if __name__ == "__main__":
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:
                assert pool.submit(abs, -3).result() == 3
    """,
    "shared memory": """
        from multiprocessing.shared_memory import SharedMemory
        memory = SharedMemory(create=True, size=9)
        memory.close()
        memory.unlink()
    """,
    "asyncio": """
        import asyncio
        async def main():
            await asyncio.to_thread(int)
            process = await asyncio.create_subprocess_exec("true")
            assert await process.wait() == 0
        asyncio.run(main())
    """,
    "names": """
        import socket
        socket.getaddrinfo("localhost", 80)
        socket.if_nameindex()
    """,
    "connections": """
        import socket
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        client.sendall(b"x")
        assert accepted.recv(1) == b"x"
    """,
    "terminals": """
        import os, pty
        _, terminal = pty.openpty()
        assert os.isatty(terminal)
        os.get_terminal_size(terminal)
    """,
    "files": """
        import mmap, os, tempfile
        file = tempfile.TemporaryFile()
        file.truncate(9)
        mmap.mmap(file.fileno(), 9)
        os.memfd_create("a")
    """,
}


@on_this_machine
@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_still_work(name: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAMS[name]))
    output = tmp_path / "output"

    def work() -> int:
        with output.open("wb") as log:
            return subprocess.run([sys.executable, str(script)], check=False, stdout=log, stderr=log).returncode

    assert under_filter(work) == 0, output.read_text()


@on_this_machine
def test_a_debugger_may_trace_its_own_child() -> None:
    ptrace = {"x86_64": 101, "aarch64": 117}[os.uname().machine]

    def work() -> int:
        pid = os.fork()
        if pid == 0:
            error_of(ptrace, 0)  # PTRACE_TRACEME
            os.kill(os.getpid(), 19)
            os._exit(0)
        if not os.WIFSTOPPED(os.waitpid(pid, 0)[1]):
            return 1
        failed = error_of(ptrace, 7, pid, 0, 0)  # PTRACE_CONT
        return failed or os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert under_filter(work) == 0
