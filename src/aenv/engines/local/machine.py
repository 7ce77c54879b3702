"""What this machine allows: which kind of sandbox can be made here, tried out rather than guessed."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from aenv.engines.local import linux
from aenv.errors import EngineUnavailable

Mode = Literal["root", "user", "process"]
_SPACES = linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS | linux.CLONE_NEWCGROUP
_MACHINES = ("x86_64", "aarch64")
_ALARM_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode that sandboxes are made in, and why no stronger one."""

    mode: Mode
    obstacles: dict[str, str] = field(default_factory=dict)
    """For each stronger mode, what the machine said."""


def choose(isolation: str) -> Choice:
    """The strongest mode that works here; forks, so it must be asked in a process without threads.

    Raises EngineUnavailable when isolation is required, or asked for by name, and not to be had.
    """
    if isolation == "process":
        return Choice("process", {"namespaces": "plain processes were asked for"})
    obstacles: dict[str, str] = {}
    for mode, trial in _trials():
        problem = _try(trial)
        if problem is None:
            return Choice(mode, obstacles)
        obstacles[mode] = problem
    if isolation != "auto":
        told = "; ".join(f"{mode}: {problem}" for mode, problem in obstacles.items())
        raise EngineUnavailable(
            f"sandboxes cannot be isolated on this machine ({told})",
            hint="allow unprivileged user namespaces (sysctl user.max_user_namespaces), run as root, "
            "or set AENV_ISOLATION=process to do without",
            obstacles=obstacles,
        )
    return Choice("process", obstacles)


def _trials() -> list[tuple[Mode, Callable[[], None]]]:
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        return [("user", _refuse_machine)]
    return [("root", _try_root), ("user", _try_user)] if os.geteuid() == 0 else [("user", _try_user)]


def _refuse_machine() -> None:
    raise OSError(0, f"namespaces are used on Linux with {' or '.join(_MACHINES)}, this is {platform.platform()}")


def _try(trial: Callable[[], None]) -> str | None:
    """Run it in a process of its own; None, or what went wrong."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        signal.alarm(_ALARM_SECONDS)
        try:
            trial()
        except BaseException as problem:  # noqa: BLE001 - whatever it is, the answer is no
            os.write(tell, str(problem).encode())
            os._exit(1)
        os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as answer:
        problem_text = answer.read().decode()
    status = os.waitpid(child, 0)[1]
    return None if status == 0 else problem_text or "the trial did not come to an end"


def _try_root() -> None:
    linux.unshare(linux.CLONE_NEWNS | _SPACES)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    # Covered by a file system of our own, in a mount namespace of our own: nothing of it is left.
    linux.make_readonly(_mount_layers("/tmp"))  # noqa: S108 - see above
    linux.unshare(linux.CLONE_NEWUSER)


def _try_user() -> None:
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | _SPACES)
    linux.write_file("/proc/self/setgroups", "deny")
    linux.write_file("/proc/self/uid_map", f"0 {user} 1")
    linux.write_file("/proc/self/gid_map", f"0 {group} 1")
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    folder = _mount_layers("/tmp")  # noqa: S108 - covered by a file system of our own at once
    problem = _try(lambda: linux.mount("proc", f"{folder}/proc", "proc"))
    if problem is not None:
        raise OSError(0, problem)
    linux.make_readonly(folder)


def _mount_layers(folder: str) -> str:
    linux.mount("trial", folder, "tmpfs")
    for name in ("low", "up", "work", "proc"):
        os.mkdir(f"{folder}/{name}")  # noqa: PTH102 - a trial of system calls
    layers = f"lowerdir={folder}/low,upperdir={folder}/up,workdir={folder}/work,userxattr"
    linux.mount("overlay", f"{folder}/low", "overlay", 0, layers)
    return folder
