"""What to do when the machine refuses namespaces, told from its words and its settings."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from aenv.engines.local import cgroupfs

Runtime = Literal["docker", "podman", "kubernetes"]

_ERROR = re.compile(r"(?:\[Errno \d+\] )*(.*?)(?:: '(.*)')?", re.DOTALL)
_OLDEST = (5, 12)
_FILTERED = "2"
_CAP_SYS_ADMIN = 1 << 21

_OPTIONS: dict[Runtime, str] = {
    "docker": "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined`",
    "podman": "start the container with `--security-opt seccomp=unconfined --security-opt unmask=ALL`",
    "kubernetes": "give the pod `hostUsers: false`, and in the container's securityContext `procMount: Unmasked`, "
    "`seccompProfile: {type: Unconfined}` and `appArmorProfile: {type: Unconfined}`",
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of a machine decides whether namespaces can be had."""

    kernel: tuple[int, int] = (6, 1)
    runtime: Runtime | None = None
    """The container runtime around this process."""
    is_filtered: bool = False
    """Whether a seccomp filter is around this process."""
    has_admin: bool = False
    """Whether this process holds CAP_SYS_ADMIN."""
    max_user_namespaces: int | None = None
    unprivileged_userns_clone: int | None = None
    apparmor_restricts: int | None = None

    @classmethod
    def look(cls, environ: Mapping[str, str]) -> Surroundings:
        """Those of this process."""
        status = dict(line.split(":\t", 1) for line in cgroupfs.read("/proc/self/status").splitlines() if ":\t" in line)
        release = re.match(r"(\d+)\.(\d+)", platform.release())
        return cls(
            kernel=(int(release[1]), int(release[2])) if release else (0, 0),
            runtime=_runtime(environ),
            is_filtered=status.get("Seccomp") == _FILTERED,
            has_admin=bool(int(status.get("CapEff", "0"), 16) & _CAP_SYS_ADMIN),
            max_user_namespaces=cgroupfs.number("/proc/sys/user/max_user_namespaces"),
            unprivileged_userns_clone=cgroupfs.number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts=cgroupfs.number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        )


def said(problem: str) -> str:
    """What the machine said, with what was tried before what came of it."""
    match = _ERROR.fullmatch(problem)
    return f"{match[2]}: {match[1]}" if match is not None and match[2] else problem.removeprefix("[Errno 0] ")


def remedy(mode: str, problem: str, around: Surroundings) -> str:
    """The sentence that makes a mode work which the machine refused with these words."""
    for fits, sentence in _RULES:
        if fits(mode, problem, around):
            return sentence
    if around.runtime is not None and _is_refusal(problem) and _is_walled(problem, around):
        return _OPTIONS[around.runtime]
    return _last(mode, problem, around)


def _last(mode: str, problem: str, around: Surroundings) -> str:
    if "mount proc" in problem:
        return (
            "something covers parts of /proc, as in containers: start it with all of /proc (Docker: `--security-opt "
            "systempaths=unconfined`, Podman: `--security-opt unmask=ALL`, Kubernetes: `procMount: Unmasked`)"
        )
    if around.is_filtered and _is_refusal(problem):
        return (
            "a seccomp filter is around this process: in a systemd unit set RestrictNamespaces=no, in a "
            "container choose seccomp=unconfined"
        )
    if mode == "root":
        return "see `dmesg`" if around.has_admin else "give this process CAP_SYS_ADMIN"
    return "run aenv as root, or ask whoever runs this machine to allow unprivileged user namespaces"


def _is_refusal(problem: str) -> bool:
    return "Operation not permitted" in problem or "Permission denied" in problem


def _is_used_up(problem: str) -> bool:
    return "No space left on device: 'unshare'" in problem


def _is_walled(problem: str, around: Surroundings) -> bool:
    """Whether the refusal comes from the container rather than from the kernel's own settings."""
    return around.runtime is not None and (around.is_filtered or "mount" in problem)


# The first that fits.
_RULES: tuple[tuple[Callable[[str, str, Surroundings], bool], str], ...] = (
    (
        lambda mode, problem, around: "used on Linux" in problem,
        "use Linux on x86_64 or aarch64; a virtual machine will do",
    ),
    (
        lambda mode, problem, around: around.kernel < _OLDEST or "Function not implemented" in problem,
        "use Linux 5.12 or newer",
    ),
    (
        lambda mode, problem, around: "No such device" in problem,
        "load the file system: `sudo modprobe overlay`",
    ),
    (
        lambda mode, problem, around: _is_used_up(problem) and around.max_user_namespaces == 0,
        "allow them: `sudo sysctl -w user.max_user_namespaces=15000`, and in a file of /etc/sysctl.d to keep it",
    ),
    (
        lambda mode, problem, around: _is_used_up(problem),
        "all namespaces are taken: raise the user.max_*_namespaces of sysctl, or end what holds them",
    ),
    (
        lambda mode, problem, around: mode == "root" and around.runtime is not None and not around.has_admin,
        "the container's root lacks CAP_SYS_ADMIN: start it with `--privileged`; isolation without root needs less",
    ),
    (
        lambda mode, problem, around: (
            around.apparmor_restricts == 1 and _is_refusal(problem) and not _is_walled(problem, around)
        ),
        (
            "AppArmor keeps them from ordinary programs: `sudo sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0`, or a profile for this Python with `userns,`"
        ),
    ),
    (
        lambda mode, problem, around: (
            around.unprivileged_userns_clone == 0 and _is_refusal(problem) and not _is_walled(problem, around)
        ),
        "allow them: `sudo sysctl -w kernel.unprivileged_userns_clone=1`",
    ),
)


def _runtime(environ: Mapping[str, str]) -> Runtime | None:
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if os.path.exists("/run/.containerenv"):  # noqa: PTH110 - a mark, not a file to use
        return "podman"
    return "docker" if os.path.exists("/.dockerenv") else None  # noqa: PTH110 - as above
