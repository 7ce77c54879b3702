"""The read-only view that all sandboxes of an environment share: system, interpreter, packages, project, no more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from aenv.engines.local import linux

PROJECT = "/app"
"""Where a sandbox finds the environment's files; the images of container engines use the same."""
HOME = "/home/agent"
BOX = "/.box"
"""The sandbox's own file system; what it writes, wherever, is kept there."""

ENVIRON = f"{BOX}/run/.environ"
"""Where an instance notes its variables, for commands that are run beside it."""

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC_FOLDERS = ("alternatives", "ca-certificates", "fonts", "ld.so.conf.d", "pki", "ssl/certs", "terminfo")
_ETC_FILES = (
    *("ld.so.cache", "ld.so.conf", "localtime", "timezone", "mime.types", "protocols", "services", "os-release"),
    *("ssl/openssl.cnf", "bash.bashrc", "profile", "inputrc", "gai.conf", "debian_version", "ca-certificates.conf"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {
    "dev/fd": "/proc/self/fd",
    "dev/stdin": "/proc/self/fd/0",
    "dev/stdout": "/proc/self/fd/1",
    "dev/stderr": "/proc/self/fd/2",
    "dev/ptmx": "pts/ptmx",
    "run": f"{BOX}/run",
    "var/run": "/run",
    "var/tmp": "/tmp",  # noqa: S108 - inside the sandbox, where it is its own
}
_FOLDERS = ("proc", "sys", "tmp", "root", "opt", "mnt", "var/lib", "dev/pts", "dev/shm", HOME[1:], BOX[1:], PROJECT[1:])


def compose(root: str, *, visible: Iterable[str], project: str, user: int, nameservers: str) -> None:
    """Build the view at `root`, in a mount namespace of our own; nobody can write to it afterwards.

    `visible` are paths that appear where they are on the host. `/proc` stays empty: the caller mounts the one that fits
    its pid namespace.
    """
    linux.mount("aenv", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755,size=8m")
    for name in _FOLDERS:
        os.makedirs(f"{root}/{name}", exist_ok=True)  # noqa: PTH103 - strings all the way: this runs before imports
    for name in _SYSTEM:
        _show_system(root, name)
    _compose_etc(root, user, nameservers)
    for path in outermost(visible):
        _show(root, path)
    linux.mount(project, root + PROJECT, "", linux.MS_BIND | linux.MS_REC)
    for link, target in _LINKS.items():
        # Something that must be seen may lie there.
        if not os.path.lexists(f"{root}/{link}"):
            os.symlink(target, f"{root}/{link}")  # noqa: PTH211 - as above
    for name in _DEVICES:
        _touch(f"{root}/dev/{name}")
    linux.make_readonly(root)
    for name in _DEVICES:
        linux.mount(f"/dev/{name}", f"{root}/dev/{name}", "", linux.MS_BIND)
        linux.make_readonly(f"{root}/dev/{name}", devices=True, writable=True)


def outermost(paths: Iterable[str]) -> list[str]:
    """The paths that are in none of the others, nor in what every sandbox sees."""
    shown = ["/usr"]
    for path in sorted({os.path.normpath(path) for path in paths}, key=len):
        if not any(path == other or path.startswith(f"{other}/") for other in shown):
            shown.append(path)
    return shown[1:]


def switch(root: str) -> None:
    """Make `root` the only thing that this mount namespace holds."""
    os.chdir(root)
    # The old root lands on top of the new one, and is taken off from there: no folder has to be there to hold it.
    linux.pivot_root(".", ".")
    linux.unmount(".")
    os.chdir("/")


def _show_system(root: str, name: str) -> None:
    source = f"/{name}"
    if os.path.islink(source):  # noqa: PTH114 - as above
        os.symlink(os.readlink(source), f"{root}/{name}")  # noqa: PTH115, PTH211 - as above
    elif os.path.isdir(source):  # noqa: PTH112 - as above
        _show(root, source)


def _show(root: str, path: str) -> None:
    target = root + path
    if os.path.isdir(path):  # noqa: PTH112 - as above
        os.makedirs(target, exist_ok=True)  # noqa: PTH103 - as above
    elif os.path.exists(path):  # noqa: PTH110 - as above
        os.makedirs(os.path.dirname(target), exist_ok=True)  # noqa: PTH103, PTH120 - as above
        _touch(target)
    else:
        return
    linux.mount(path, target, "", linux.MS_BIND | linux.MS_REC)


def _compose_etc(root: str, user: int, nameservers: str) -> None:
    etc = f"{root}/etc"
    os.makedirs(f"{etc}/ssl", exist_ok=True)  # noqa: PTH103 - as above
    for name in _ETC_FOLDERS:
        _show(root, f"/etc/{name}")
    for name in _ETC_FILES:
        if os.access(f"/etc/{name}", os.R_OK) and os.path.isfile(f"/etc/{name}"):  # noqa: PTH113 - as above
            shutil.copyfile(f"/etc/{name}", f"{etc}/{name}")
    agent = f"agent:x:{user}:{user}:agent:{HOME}:/bin/sh\n" if user else ""
    home = "/root" if user else HOME
    texts = {
        "passwd": f"root:x:0:0:root:{home}:/bin/sh\n{agent}nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
        "group": f"root:x:0:\n{f'agent:x:{user}:{chr(10)}' if user else ''}nogroup:x:65534:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost ip6-localhost\n",
        "hostname": "aenv\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
        "resolv.conf": nameservers,
    }
    for name, text in texts.items():
        with open(f"{etc}/{name}", "w", encoding="utf-8") as file:  # noqa: PTH123 - as above
            file.write(text)


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
