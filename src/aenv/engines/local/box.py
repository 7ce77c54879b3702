"""From a process forked off a zygote to a sandbox: own namespaces, own files, own limits, no rights."""

from __future__ import annotations

import os
import resource
import socket
import sys
from dataclasses import dataclass

from aenv.engines.local import linux, seccomp
from aenv.engines.local.rootfs import BOX, HOME, PROJECT

PROXY_PORT = 13128
"""On the loopback of every sandbox whose network is an allowlist."""
OWN_NETWORK = linux.CLONE_NEWNET
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
_PLAIN = linux.MS_NOSUID | linux.MS_NODEV
_FOLDERS = (("up", 0o755), ("work", 0o755), ("home", 0o755), ("run", 0o755), ("tmp", 0o1777), ("shm", 0o1777))
_LEAST_FILES, _BYTES_A_FILE = 1024, 16384
_PRIVATE_TMP = "/tmp"  # noqa: S108 - inside the sandbox, where it is its own


@dataclass(frozen=True, slots=True)
class Shape:
    """What all sandboxes of one zygote have in common."""

    user: int
    """Who code sees itself as: 0 for root, else an ordinary user."""
    outer: int
    """The same one, as the zygote's user namespace counts."""
    has_own_network: bool
    hidden: tuple[str, ...]
    """Paths that must be seen although they are below `/tmp`, which every sandbox has for itself."""
    filter: bytes


@dataclass(frozen=True, slots=True)
class Needs:
    """What one sandbox is given."""

    hostname: str
    storage_bytes: int
    rlimits: list[tuple[int, int, int]]


def enter(shape: Shape, needs: Needs, entries: list[int], network: int = -1) -> int:
    """Shut this process, the first of its pid namespace, in; returns a descriptor of its own file system.

    `network` is a network namespace that was made for it, if there is one.
    The order matters: groups first, so that everything below is charged; the user namespace last, so that all others
    belong to one in which nobody in the sandbox has any right.
    """
    for descriptor in entries:
        os.write(descriptor, b"0")
        os.close(descriptor)
    if network >= 0:
        linux.setns(network, OWN_NETWORK)
    makes_network = shape.has_own_network and network < 0
    linux.unshare(_NAMESPACES | (OWN_NETWORK if makes_network else 0))
    box = mount_files(shape, needs)
    mount_kernel(needs.hostname)
    if makes_network:
        linux.raise_loopback()
    become(shape)
    for kind, soft, hard in needs.rlimits:
        resource.setrlimit(kind, (soft, hard))
    linux.keep_capabilities()
    linux.set_dumpable(0)
    linux.forbid_new_privileges()
    seccomp.install(shape.filter)
    os.chdir(PROJECT)
    return box


def mount_files(shape: Shape, needs: Needs | None) -> int:
    """Its own files over those that all share; a descriptor of them. Without needs, they are there already."""
    # What must stay visible is looked up before /tmp is covered, in this very mount namespace.
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in shape.hidden]
    if needs is not None:
        linux.mount("box", BOX, "tmpfs", _PLAIN, sized(needs.storage_bytes))
        _make_folders(shape.outer)
    layers = f"lowerdir={PROJECT},upperdir={BOX}/up,workdir={BOX}/work,userxattr"
    linux.mount("overlay", PROJECT, "overlay", _PLAIN, layers)
    linux.mount(f"{BOX}/tmp", _PRIVATE_TMP, "", linux.MS_BIND)  # noqa: S108 - as above
    linux.mount(f"{BOX}/home", HOME, "", linux.MS_BIND)
    linux.mount(f"{BOX}/shm", "/dev/shm", "", linux.MS_BIND)  # noqa: S108 - as above
    for path, descriptor in held:
        _show_again(path, descriptor)
    return os.open(BOX, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def sized(storage_bytes: int) -> str:
    """Options of a file system for so many bytes; empty files take memory too, so their number is held as well."""
    return f"mode=755,size={storage_bytes},nr_inodes={max(_LEAST_FILES, storage_bytes // _BYTES_A_FILE)}"


def _make_folders(owner: int) -> None:
    for name, mode in _FOLDERS:
        os.mkdir(f"{BOX}/{name}", mode)  # noqa: PTH102 - strings: every allocation here is paid by every sandbox
        if owner and os.geteuid() != owner:
            os.chown(f"{BOX}/{name}", owner, owner)
    os.chmod(f"{BOX}/tmp", 0o1777)  # noqa: PTH101, S103, S108 - as above; the umask took bits
    os.chmod(f"{BOX}/shm", 0o1777)  # noqa: PTH101, S103 - as above


def mount_kernel(hostname: str) -> None:
    """What the kernel shows: processes and terminals of its own namespaces, and its name."""
    linux.mount("devpts", "/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    linux.mount("proc", "/proc", "proc", _PLAIN | linux.MS_NOEXEC)
    socket.sethostname(hostname)


def _show_again(path: str, descriptor: int) -> None:
    os.makedirs(path, exist_ok=True)  # noqa: PTH103 - as above
    os.fchdir(descriptor)
    linux.mount(".", path, "", linux.MS_BIND | linux.MS_REC)
    linux.make_readonly(path)
    os.close(descriptor)


def become(shape: Shape) -> None:
    """Take on the sandbox's user, in a user namespace that knows no other."""
    if shape.outer:
        os.setgroups([])
        os.setresgid(shape.outer, shape.outer, shape.outer)
        os.setresuid(shape.outer, shape.outer, shape.outer)
        # The change of identity made /proc/self another's.
        linux.set_dumpable(1)
    linux.unshare(linux.CLONE_NEWUSER)
    linux.write_file("/proc/self/setgroups", "deny")
    linux.write_file("/proc/self/uid_map", f"{shape.user} {shape.outer} 1")
    linux.write_file("/proc/self/gid_map", f"{shape.user} {shape.outer} 1")


def begin_afresh() -> None:
    """What no two processes may have in common, though one was forked off the other."""
    if "ssl" in sys.modules:
        # OpenSSL tells a fork by a changed pid, and the first process of every pid namespace has the same.
        sys.modules["ssl"].RAND_add(os.urandom(32), 32.0)


def announce(control: int, *, opens_proxy: bool) -> None:
    """Say that this sandbox is shut in, and hand out the socket on which its proxy is to answer."""
    text = b'{"op": "boxed"}'
    frame = len(text).to_bytes(4, "little") + text
    with socket.socket(fileno=os.dup(control)) as channel:
        if opens_proxy:
            with socket.create_server(("127.0.0.1", PROXY_PORT)) as door:
                socket.send_fds(channel, [frame], [door.fileno()])
        else:
            channel.sendall(frame)
