"""The fork server of one prepared environment: it has imported what its sandboxes need, and turns into them on request.

    supervisor
    └── outer half   makes the namespaces, then holds nothing and waits
        └── init     pid 1 of the zygote's pid namespace; reaps, and outlives the zygote while sandboxes live
            ├── zygote, an interpreter of its own
            └── sandboxes, each pid 1 of a pid namespace of its own

It is shut in before it imports anything that is not ours: own user, mount, pid, ipc, uts and cgroup namespaces, the
environment's read-only view as its root, and no capability that forking sandboxes does not take. Messages come and go
as JSON over one socket; descriptors travel beside them.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from types import ModuleType
from typing import Any, NoReturn

from aenv.engines.local import copying, linux, plain, rootfs, seccomp, spawning
from aenv.engines.local.barefork import BareFork
from aenv.engines.local.box import Needs, Shape, announce, begin_afresh, enter
from aenv.errors import AEnvError

_LARGEST = 1 << 20
_DESCRIPTORS = 16
_ROOM = socket.CMSG_SPACE(4 * _DESCRIPTORS)
_NAME = 16
"""Bytes at the head of a request that hold the sandbox's name."""
_KEPT = frozenset(
    {
        *(linux.CAP_SYS_ADMIN, linux.CAP_SETUID, linux.CAP_SETGID, linux.CAP_SETPCAP, linux.CAP_NET_ADMIN),
        *(linux.CAP_CHOWN, linux.CAP_DAC_OVERRIDE, linux.CAP_FOWNER, linux.CAP_SYS_CHROOT),
        # Without it nobody may map root of this namespace into another: user_namespaces(7).
        linux.CAP_SETFCAP,
    }
)
_CONTROL = 3
_CLEAR_OF_ALL = 64


# Frozen modules live in the interpreter's own data, spread over pages that every sandbox would copy.
_FROZEN = ("-X", "frozen_modules=off")
FRUGAL = {"MALLOC_ARENA_MAX": "1", "LD_BIND_NOW": "1"}
"""For zygotes alone: a heap for each thread, and symbols looked up late, would cost every sandbox memory of its own."""


def main(descriptor: int, order_descriptor: int | None = None) -> NoReturn:
    """Serve the supervisor at the other end of this socket until it hangs up."""
    channel = socket.socket(fileno=descriptor)
    os.umask(0o022)
    for name in FRUGAL:
        os.environ.pop(name, None)
    try:
        if order_descriptor is None:
            order: dict[str, Any] = json.loads(channel.recv(_LARGEST))
            if order["mode"] != "process":
                _shut_in(order, channel)
        else:
            with os.fdopen(order_descriptor, "rb") as file:
                order = json.load(file)
        zygote = Zygote(order, channel)
        zygote.load()
    except BaseException as problem:  # noqa: BLE001 - told to the supervisor, whatever it is: nobody else is there
        with contextlib.suppress(OSError):
            channel.send(json.dumps({"op": "failed", **_told(problem)}).encode())
        os._exit(1)
    zygote.serve()


def _told(problem: BaseException) -> dict[str, object]:
    if isinstance(problem, AEnvError):
        return problem.to_wire()
    return {"error": f"the zygote cannot start: {type(problem).__name__}: {problem}"}


def _shut_in(order: dict[str, Any], channel: socket.socket) -> NoReturn:
    """Make the namespaces, and start this module anew in them, two forks further down."""
    if order["mode"] == "root":
        _leave_as_root(order, channel)
    else:
        linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
        _map_oneself(order)
        linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        _compose(order)
    network = linux.CLONE_NEWNET if order["has_own_network"] else 0
    linux.unshare(linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP | network)
    _stay_above(order, channel)
    if order["mode"] == "root":
        linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    else:
        root = order["root"]
        linux.mount("proc", f"{root}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
        rootfs.switch(root)
    _be_init(channel)
    linux.keep_capabilities(_KEPT)
    linux.forbid_new_privileges()
    _start_anew(order, channel)


def _start_anew(order: dict[str, Any], channel: socket.socket) -> NoReturn:
    """A fresh interpreter, whose memory belongs to the new user namespace and holds nothing from outside it."""
    note = os.memfd_create("order", 0)
    os.write(note, json.dumps(order).encode())
    os.lseek(note, 0, os.SEEK_SET)
    channel.set_inheritable(True)
    command = [
        order["python"],
        "-I",
        "-B",
        *_FROZEN,
        "-m",
        "aenv.engines.local.zygote",
        str(channel.fileno()),
        str(note),
    ]
    os.execve(command[0], command, {**order["environ"], **FRUGAL})  # noqa: S606 - no shell is wanted


def _leave_as_root(order: dict[str, Any], channel: socket.socket) -> None:
    """The view is composed with root's rights, and they are given up for good by going into a user namespace."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    _compose(order)
    _mount_empty_proc(f"{order['root']}/proc")
    rootfs.switch(order["root"])
    linux.unshare(linux.CLONE_NEWUSER)
    # Only somebody outside may map more than one user.
    channel.send(b'{"op": "map"}')
    channel.recv(_LARGEST)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # A mount namespace of this user namespace; what was composed is locked in it.
    linux.unshare(linux.CLONE_NEWNS)


def _mount_empty_proc(target: str) -> None:
    """A user namespace may mount /proc only where one is fully visible; that of a dead pid namespace will do."""
    outer = os.fork()
    if outer == 0:
        linux.unshare(linux.CLONE_NEWPID)
        inner = os.fork()
        if inner == 0:
            linux.mount("proc", target, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
    if os.waitpid(outer, 0)[1]:
        raise OSError(0, "proc of a new pid namespace cannot be mounted")


def _map_oneself(order: dict[str, Any]) -> None:
    linux.write_file("/proc/self/setgroups", "deny")
    linux.write_file("/proc/self/uid_map", f"0 {order['uid']} 1")
    linux.write_file("/proc/self/gid_map", f"0 {order['gid']} 1")


def _compose(order: dict[str, Any]) -> None:
    rootfs.compose(
        order["root"],
        visible=order["visible"],
        project=order["project"],
        user=order["user"],
        nameservers=order["nameservers"],
    )


def _stay_above(order: dict[str, Any], channel: socket.socket) -> None:
    """Fork: the outer half waits here for the rest of its life, the other one goes on as pid 1."""
    wait_in, wait_out = os.pipe()
    child = os.fork()
    if child:
        channel.close()
        os.close(wait_in)
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != order["parent"]:
            os._exit(1)
        os.write(wait_out, b".")
        os._exit(_exit_code(os.waitpid(child, 0)[1]))
    os.close(wait_out)
    linux.die_with_parent(signal.SIGKILL)
    # Whoever does not hear from the outer half, or no longer, was too late to be killed with it.
    if os.read(wait_in, 1) != b"." or select.select([wait_in], [], [], 0)[0]:
        os._exit(1)
    os.close(wait_in)


def _be_init(channel: socket.socket) -> None:
    """Fork: pid 1 reaps until nothing is left below it, the other one goes on as the zygote."""
    child = os.fork()
    if not child:
        return
    channel.close()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    os._exit(0)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


class Zygote:
    """Imports, then forks."""

    def __init__(self, order: dict[str, Any], channel: socket.socket) -> None:
        self._order = order
        self._channel = channel
        self._is_boxed = order["mode"] != "process"
        self._is_forkable = self._is_boxed and order["forkable"]
        self._announcing: str | None = order["policy"] if order["announces"] else None
        self._bare_fork = BareFork()
        self._entry: ModuleType = importlib.import_module(order["entry"])
        self._prepared: object = None
        self._shape = Shape(
            user=order["user"],
            outer=order["outer"],
            has_own_network=order["has_own_network"],
            hidden=tuple(order["hidden"]),
            filter=seccomp.program(may_fork_sandbox=self._is_forkable) if self._is_boxed else b"",
        )
        self._poller = select.epoll()
        self._waiting = select.poll()
        self._waiting.register(channel, select.POLLIN)
        self._unpack = {size * 4: struct.Struct(f"={size}i").unpack for size in range(_DESCRIPTORS + 1)}
        self._makes_networks = self._is_boxed and order["has_own_network"] and not self._is_forkable
        self._network = -1
        self._own_network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC) if self._is_boxed else -1
        self._children: dict[int, int] = {}
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if self._is_boxed else -1

    def load(self) -> None:
        """Import all that sandboxes will need, and say what could not be."""
        if self._order["command"]:
            # Somebody else's program needs nothing of ours.
            self._send({"op": "ready", "notes": []})
            return
        project = rootfs.PROJECT if self._is_boxed else self._order["project"]
        self._prepared, notes = self._entry.prepare(
            project, self._order["modules"], preload=self._order["preload"], reaps=self._is_boxed
        )
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - one call, no objects
        if threads > 1:
            raise RuntimeError(f"importing left {threads - 1} threads running, which no fork would have")
        # The first fork of a process pays for all later ones.
        if (child := self._bare_fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        gc.collect()
        gc.freeze()
        if self._makes_networks:
            self._make_network()
        self._send({"op": "ready", "notes": notes})

    def serve(self) -> NoReturn:
        """Fork on request, report who ended, until the supervisor hangs up."""
        channel = self._channel.fileno()
        self._poller.register(channel, select.EPOLLIN)
        while True:
            for descriptor, _mask in self._poller.poll():
                if descriptor == channel:
                    self._receive()
                else:
                    self._reap(descriptor)

    def _receive(self) -> None:
        # As little as possible is done here: after every fork each page that is written to again is copied again.
        text, ancillary, _flags, _address = self._channel.recvmsg(_LARGEST, _ROOM)
        if not text:
            os._exit(0)
        self._fork(text, ancillary[0][2])

    def _reap(self, pidfd: int) -> None:
        self._poller.unregister(pidfd)
        os.close(pidfd)
        pid = self._children.pop(pidfd)
        status = os.waitpid(pid, 0)[1]
        self._send({"op": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(status)})

    def _fork(self, text: bytes, packed: bytes) -> None:
        descriptors = self._unpack[len(packed)](packed)
        name = text[:_NAME].rstrip()
        try:
            pid = self._split()
            if pid == 0:
                self._be_sandbox(json.loads(text[_NAME:]), list(descriptors))
            pidfd = os.pidfd_open(pid)
        except OSError as problem:
            # No processes, no memory or no namespaces are left; what was asked for is refused, and the rest goes on.
            self._send({"op": "refused", "id": name.decode(), "error": str(problem)})
        else:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, pidfd.to_bytes(4, sys.byteorder))
            self._channel.sendmsg([b'{"op":"born","id":"%s","pid":%d}' % (name, pid)], [rights])
            # A descriptor for each tells of its end; a signal would have to be undone in every sandbox.
            self._children[pidfd] = pid
            self._poller.register(pidfd, select.EPOLLIN)
        for descriptor in descriptors:
            os.close(descriptor)
        if self._makes_networks and not self._waiting.poll(0):
            self._make_network()

    def _split(self) -> int:
        """Fork, the child as the first process of a pid namespace unless it makes one itself."""
        makes_pids = self._is_boxed and not self._is_forkable
        if makes_pids:
            linux.unshare(linux.CLONE_NEWPID)
        pid = self._bare_fork()
        if pid == 0:
            return 0
        if makes_pids:
            linux.setns(self._own_pids, linux.CLONE_NEWPID)
        if self._network >= 0:
            os.close(self._network)
            self._network = -1
        return pid

    def _make_network(self) -> None:
        """A network namespace for the next sandbox, made while nobody waits for one: it takes a millisecond."""
        if self._network >= 0:
            return
        try:
            linux.unshare(linux.CLONE_NEWNET)
            linux.raise_loopback()
            self._network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            linux.setns(self._own_network, linux.CLONE_NEWNET)
        except OSError:
            # The next sandbox makes its own.
            self._makes_networks = False

    def _be_sandbox(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        told = descriptors[0]
        try:
            begin_afresh()
            folder, variables = rootfs.PROJECT, dict[str, str]()
            hints: dict[str, Any] = {"learns": not self._order["knows_modules"], "practises": request["is_spare"]}
            hints["note"] = rootfs.ENVIRON if self._is_boxed else f"{request['folder']}/{plain.PLAIN_ENVIRON}"
            if self._is_boxed:
                needs = Needs(request["hostname"], request["storage_bytes"], request["rlimits"])
                if self._is_forkable:
                    hints["copier"] = copying.Copier(self._shape, needs, self._announcing)
                kept = self._shut_in(needs, descriptors)
            else:
                control, listener, log, *entries = descriptors
                _speak_to(log)
                folder, variables = plain.enter(request, entries)
                kept = _settle(control, listener, -1)
            told = kept[0]
            if self._announcing is not None:
                announce(kept[0], opens_proxy=self._announcing == "proxy")
            if self._order["command"]:
                spawning.spawn(kept, variables, self._order["command"], hints["note"])
            self._entry.serve(kept, folder, self._prepared, variables, **hints)
        except BaseException as problem:  # noqa: BLE001 - told to the supervisor: nobody else is there
            message = {"op": "failed", "error": f"the sandbox cannot be made: {problem}", "code": "engine.box_failed"}
            with contextlib.suppress(OSError):
                _tell(told, message)
        os._exit(1)

    def _shut_in(self, needs: Needs, descriptors: list[int]) -> list[int]:
        control, listener, log, *entries = descriptors
        _speak_to(log)
        if self._is_forkable:
            box = copying.enter(self._shape, needs, entries, control)
        else:
            box = enter(self._shape, needs, entries, self._network)
        return _settle(control, listener, box)

    def _send(self, message: dict[str, Any]) -> None:
        self._channel.send(json.dumps(message).encode())


def _settle(control: int, listener: int, box: int) -> list[int]:
    """Move what the sandbox keeps to fixed places, and close all else that the zygote had open."""

    above = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _CLEAR_OF_ALL) for one in (control, listener, box) if one >= 0]
    os.closerange(_CONTROL, _CLEAR_OF_ALL)
    kept = [os.dup2(one, _CONTROL + place, inheritable=False) for place, one in enumerate(above)]
    os.closerange(_CONTROL + len(kept), 1 << 16)
    return kept


def _speak_to(log: int) -> None:
    os.dup2(log, 1)
    os.dup2(log, 2)


def _tell(control: int, message: dict[str, Any]) -> None:
    text = json.dumps(message).encode()
    os.write(control, len(text).to_bytes(4, "little") + text)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
