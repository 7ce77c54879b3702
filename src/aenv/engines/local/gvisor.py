"""Sandboxes of gVisor: their code runs on a kernel of its own, `runsc`, and never calls this machine's directly.

    supervisor
    └── outer half      makes the namespaces, then waits; whatever ends it ends all below
        └── doorkeeper  pid 1 of the pid namespace; accepts connections and hands them in
            └── runsc   with the processes that it makes: the sandbox's kernel, and the one that opens files for it
                └┄ inside, pid 1 of gVisor's kernel: the environment's server

No way in is opened for connections: gVisor cannot accept on a socket of the host, but takes over sockets that are sent
over one it has. So the doorkeeper accepts, and what is said on a connection passes nobody. Bundle and state of runsc
are in a file system of the mount namespace, and gone with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from aenv.engines.local import guest, linux
from aenv.engines.local.box import announce
from aenv.engines.local.rootfs import BOX, HOME, PROJECT, compose
from aenv.engines.local.users import OUTER_USER, SANDBOX_USER
from aenv.errors import EngineUnavailable

TRIAL_SECONDS = 30.0
_NAME = "box"
_USERS = 65536
_PLACE = "/tmp"  # noqa: S108 - covered in a mount namespace of our own: the lease's folder is closed to mapped users
_NAMESPACES = linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
# Of gVisor's kernel, not of this machine's; all but root of `runAsRoot` loses them before author code is there.
_CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
# OFILE is an older word for NOFILE, which runsc does not know.
_LIMITS = {getattr(resource, name): name for name in dir(resource) if name[:7] == "RLIMIT_" and name != "RLIMIT_OFILE"}


@dataclass(frozen=True, slots=True)
class Plan:
    """All that sandboxes of one environment have in common."""

    runsc: str
    mode: Literal["root", "user"]
    root: str
    """An empty folder to compose the view at; several may use the same at once."""
    python: str
    project: str
    visible: list[str]
    hidden: list[str]
    """Those of `visible` that are below /tmp, which every sandbox has for itself."""
    user: int
    nameservers: str
    hostname: str
    storage_bytes: int
    """Largest of each folder that is held in memory; what the sandbox's limit of memory is also counts all of them."""
    rlimits: list[tuple[int, int, int]]
    policy: str
    environ: dict[str, str]
    command: list[str]
    """What is run inside."""

    @classmethod
    def of(cls, order: Mapping[str, Any], runsc: str) -> Plan:
        """From what a zygote of the environment would be told."""
        request = order["request"]
        names = ("mode", "root", "python", "project", "visible", "hidden", "user", "nameservers", "policy")
        return cls(
            runsc=runsc,
            **{name: order[name] for name in names},
            hostname=request["hostname"],
            storage_bytes=request["storage_bytes"],
            rlimits=request["rlimits"],
            environ=order["environ"],
            command=[order["python"], "-I", "-B", "-m", guest.__name__, str(order["user"])],
        )


def find() -> str | None:
    """Where runsc is, if it works here; takes half a second."""
    try:
        return require()
    except EngineUnavailable:
        return None


def require() -> str:
    """The same, or EngineUnavailable that says what stands in the way."""
    path = shutil.which("runsc")
    if path is None:
        raise EngineUnavailable(
            "isolation 'gvisor' needs runsc, which is not in PATH",
            hint="install gVisor (Debian: `apt install runsc`), or leave `isolation` out of config.json",
        )
    if (problem := _try(path)) is not None:
        raise EngineUnavailable(
            f"isolation 'gvisor': {path} does not run here: {problem}",
            hint="it needs --overlay2 (gVisor of December 2022 or later), user namespaces and ptrace; "
            f"see what `{path} --rootless --network=none --ignore-cgroups do true` says",
        )
    return path


def start(plan: Plan, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start one sandbox; its end, by whatever means, is the end of all that belongs to it.

    The descriptors are those that a zygote is sent: the control socket, the listener, the log's pipe, and the entries
    of the groups; they stay the caller's. Over the control socket it says and hears what a forked sandbox does.
    SIGTERM asks the server to end.
    """
    control, listener, log, *entries = descriptors
    # A command line can be read by everybody on the machine.
    note = os.memfd_create("plan")
    kept = [note, control, listener, *entries]
    try:
        os.write(note, json.dumps(asdict(plan)).encode())
        os.lseek(note, 0, os.SEEK_SET)
        return subprocess.Popen(
            [plan.python, "-I", "-B", "-m", __name__, str(os.getpid()), *map(str, kept)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=kept,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(note)


def _try(runsc: str) -> str | None:
    """Run `true` as an environment would be run; None, or what was said instead."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for name in ("root", "project"):
            (Path(folder) / name).mkdir()
        plan = _trial(runsc, folder)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        _control, theirs = map(stack.enter_context, socket.socketpair())
        output = stack.enter_context(tempfile.TemporaryFile())
        listener.bind(f"{folder}/s")
        listener.listen()
        trial = start(plan, [theirs.fileno(), listener.fileno(), output.fileno()])
        try:
            code = trial.wait(TRIAL_SECONDS)
        except subprocess.TimeoutExpired:
            return f"a trial was not done after {TRIAL_SECONDS:g} s"
        finally:
            trial.kill()
            trial.wait()
        output.seek(0)
        return None if code == 0 else output.read().decode("utf-8", "replace").strip() or f"a trial ended with {code}"


def _trial(runsc: str, folder: str) -> Plan:
    return Plan(
        runsc=runsc,
        mode="root" if os.geteuid() == 0 else "user",
        root=f"{folder}/root",
        python=sys.executable,
        project=f"{folder}/project",
        visible=[],
        hidden=[],
        user=0,
        nameservers="",
        hostname="trial",
        storage_bytes=1 << 20,
        rlimits=[],
        policy="none",
        environ={"PATH": "/usr/bin:/bin"},
        command=["/usr/bin/env", "true"],
    )


def _outside(plan: Plan, parent: int, control: int, listener: int, entries: Sequence[int]) -> NoReturn:
    for descriptor in entries:
        os.write(descriptor, b"0")
        os.close(descriptor)
    os.umask(0o022)
    if plan.mode == "root":
        _enter_as_root(plan)
    else:
        _enter_as_user(plan)
    linux.unshare(_NAMESPACES | (linux.CLONE_NEWNET if plan.policy != "host" else 0))
    _stay_above(parent, [control, listener])
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    if plan.policy != "host":
        linux.raise_loopback()
    door, theirs = socket.socketpair()
    if plan.policy in ("proxy", "usernet"):
        announce(control, opens_proxy=plan.policy == "proxy")
    with theirs:
        process = subprocess.Popen(_run(plan), stdin=theirs.fileno())
    signal.signal(signal.SIGTERM, lambda number, frame: _ask_to_end(plan))
    socket.send_fds(door, [b"."], [control])
    os.close(control)
    _keep_door(socket.socket(fileno=listener), door, process)
    os._exit(_exit_code(process.wait()))


def _enter_as_root(plan: Plan) -> None:
    """The view is composed with root's rights, and they are given up for good by going into a user namespace."""
    first = OUTER_USER - SANDBOX_USER
    linux.unshare(linux.CLONE_NEWNS)
    _compose(plan, owner=first)
    here, told = os.getpid(), os.pipe()
    if (mapper := os.fork()) == 0:
        # Only somebody outside may map more than one user.
        os.read(told[0], 1)
        for kind in ("uid", "gid"):
            linux.write_file(f"/proc/{here}/{kind}_map", f"0 {first} {_USERS}")
        os._exit(0)
    linux.unshare(linux.CLONE_NEWUSER)
    os.write(told[1], b".")
    if os.waitpid(mapper, 0)[1]:
        raise OSError(0, "the users of a sandbox cannot be mapped")
    for descriptor in told:
        os.close(descriptor)
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # The change of identity made /proc/self another's.
    linux.set_dumpable(1)
    linux.unshare(linux.CLONE_NEWNS)


def _enter_as_user(plan: Plan) -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    linux.write_file("/proc/self/setgroups", "deny")
    linux.write_file("/proc/self/uid_map", f"0 {user} 1")
    linux.write_file("/proc/self/gid_map", f"0 {group} 1")
    _compose(plan, owner=0)


def _compose(plan: Plan, *, owner: int) -> None:
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("gvisor", plan.root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=8m")
    for name in ("view", "bundle", "state"):
        os.mkdir(f"{plan.root}/{name}", 0o755)  # noqa: PTH102 - strings, as in what it calls
        os.chown(f"{plan.root}/{name}", owner, owner)
    compose(
        f"{plan.root}/view",
        visible=plan.visible,
        project=plan.project,
        user=plan.user,
        nameservers=plan.nameservers,
    )
    # runsc remounts it with this flag alone, and may not take off others that somebody outside has set.
    linux.mount("", f"{plan.root}/view", "", linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY)
    linux.mount(plan.root, _PLACE, "", linux.MS_BIND | linux.MS_REC)


def _stay_above(parent: int, descriptors: list[int]) -> None:
    """Fork: the outer half waits here for the rest of its life, the other one goes on as pid 1."""
    wait_in, wait_out = os.pipe()
    child = os.fork()
    if child:
        for descriptor in [*descriptors, wait_in]:
            os.close(descriptor)
        signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.write(wait_out, b".")
        os._exit(_exit_code(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    os.close(wait_out)
    linux.die_with_parent(signal.SIGKILL)
    # Whoever does not hear from the outer half was too late to be killed with it.
    if os.read(wait_in, 1) != b".":
        os._exit(1)
    os.close(wait_in)


def _ask_to_end(plan: Plan) -> None:
    """Have the server inside get SIGTERM: runsc would keep it for itself, and leave the sandbox without an end."""
    with contextlib.suppress(OSError):
        subprocess.Popen([*_runsc(plan), "kill", _NAME, "TERM"], stdin=subprocess.DEVNULL)


def _runsc(plan: Plan) -> list[str]:
    return [plan.runsc, f"--root={_PLACE}/state", *(["--rootless"] if plan.mode == "user" else [])]


def _run(plan: Plan) -> list[str]:
    """Write the bundle; what to run for it."""
    Path(f"{_PLACE}/bundle/config.json").write_text(json.dumps(_bundle(plan)), "utf-8")
    return [
        *_runsc(plan),
        # Our own groups hold the whole tree.
        "--ignore-cgroups",
        # A network of gVisor's own needs rights that an ordinary user's namespace does not give.
        f"--network={'none' if plan.policy == 'none' else 'host'}",
        # What is written stays in the sandbox's memory, whoever may write where.
        "--overlay2=all:memory",
        *("run", f"--bundle={_PLACE}/bundle", _NAME),
    ]


def _bundle(plan: Plan) -> dict[str, Any]:
    """config.json: https://github.com/opencontainers/runtime-spec/blob/main/config.md."""
    view, size = f"{_PLACE}/view", f"size={plan.storage_bytes}"
    private = {"/tmp": "mode=1777", "/dev/shm": "mode=1777", HOME: "mode=755", BOX: "mode=755"}  # noqa: S108 - inside
    kinds = ("bounding", "effective", "permitted")
    # Named here, the network would be a further one, that nobody has connected.
    apart = ("pid", "ipc", "uts", "mount", *(("network",) if plan.policy == "none" else ()))
    return {
        "ociVersion": "1.0.2",
        "hostname": plan.hostname,
        "root": {"path": view, "readonly": True},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": plan.command,
            "env": [f"{name}={value}" for name, value in plan.environ.items()],
            "cwd": PROJECT,
            "capabilities": dict.fromkeys(kinds, _CAPABILITIES),
            "noNewPrivileges": True,
            "rlimits": [{"type": _LIMITS[kind], "soft": soft, "hard": hard} for kind, soft, hard in plan.rlimits],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *({"destination": to, "type": "tmpfs", "options": [mode, size]} for to, mode in private.items()),
            {"destination": PROJECT, "type": "bind", "source": view + PROJECT, "options": ["rw"]},
            *({"destination": at, "type": "bind", "source": view + at, "options": ["ro"]} for at in plan.hidden),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in apart]},
    }


def _keep_door(listener: socket.socket, door: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Hand every connection in, until runsc ends."""
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    ended = os.pidfd_open(process.pid)
    poller.register(ended, select.POLLIN)
    while True:
        if any(descriptor == ended for descriptor, _mask in poller.poll()):
            return
        # Who hung up again, or came as the sandbox ended, or finds no room, is let go: the next one is not its fault.
        with contextlib.suppress(OSError):
            client, _address = listener.accept()
            with client:
                socket.send_fds(door, [b"."], [client.fileno()])


def _exit_code(code: int) -> int:
    return code if code >= 0 else 128 - code


def main(parent: int, note: int, control: int, listener: int, *entries: int) -> NoReturn:
    """What `start` runs."""
    with os.fdopen(note, "rb") as file:
        plan = Plan(**json.load(file))
    _outside(plan, parent, control, listener, entries)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
