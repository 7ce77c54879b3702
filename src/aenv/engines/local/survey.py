"""What this machine gives the local engine, and what would make it give more: `python -I -m aenv.engines.local.survey`.

It tries and looks, and leaves nothing behind. It needs a process of its own, because trying forks.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR
from typing import Literal, TypedDict, TypeVar, get_args

from aenv._util.ids import new_id
from aenv.engines.local import cgroupfs, usernet
from aenv.engines.local.leases import LONGEST
from aenv.engines.local.limits import Cgroups
from aenv.engines.local.machine import Mode, choose
from aenv.engines.local.remedies import Surroundings, remedy, said
from aenv.errors import EngineUnavailable
from aenv.settings import EngineSettings

T = TypeVar("T")

MEANINGS: dict[Mode | None, str] = {
    "root": "isolated, as root",
    "user": "isolated, without root",
    "process": "NOT ISOLATED: plain processes",
    None: "REFUSED: isolation is asked for and cannot be had",
}
DESCRIPTORS = 4
"""What an instance takes of the supervisor's open files."""

_CONTROLLERS = ("memory", "pids", "cpu")
_FEW_INSTANCES = 1000
_COUNTING_SECONDS = 0.3
_PREFIX = "AENV_"


class Note(TypedDict):
    """Something that could be better, and what makes it so."""

    about: str
    problem: str
    remedy: str


class Isolation(TypedDict):
    """How sandboxes are kept apart; `mode` is None when what was asked for cannot be had."""

    engine: Literal["local"]
    asked: str
    mode: Mode | None
    is_isolated: bool
    meaning: str
    notes: list[Note]


class Allowance(TypedDict):
    """What limits sandboxes, and how many there can be."""

    cgroups: str | None
    controllers: list[str]
    open_files: int | None
    instances: int | None
    pid_max: int | None
    memory_available_bytes: int | None
    notes: list[Note]


class Network(TypedDict):
    """What `public` gives, and whether `allowlist` and `no-network` hold."""

    public: Literal["private", "host"]
    tool: str | None
    are_policies_kept: bool
    notes: list[Note]


class Runtime(TypedDict):
    """What sandboxes run on."""

    executable: str
    version: str
    installer: Literal["uv", "pip"] | None
    notes: list[Note]


class Folder(TypedDict):
    """A folder of ours; `is_counted` is False when there was more on the disk than could be counted in time."""

    path: str
    exists: bool
    used_bytes: int
    is_counted: bool
    free_bytes: int
    notes: list[Note]


class Engines(TypedDict):
    """Who holds, or held, a folder in the run folder."""

    running: int
    dead: int


class Setting(TypedDict):
    """A setting that is not at its default."""

    name: str
    value: str
    default: str
    source: Literal["environment"]


class Survey(TypedDict):
    """All of it; a part that could not be found out is None, and `broken` says why."""

    isolation: Isolation | None
    limits: Allowance | None
    network: Network | None
    gvisor: str | None
    python: Runtime | None
    data: Folder | None
    run: Folder | None
    engines: Engines | None
    settings: list[Setting]
    broken: dict[str, str]


def survey(environ: Mapping[str, str]) -> Survey:
    """Ask the machine; ConfigError if a setting is wrong, and nothing else, whatever the machine says."""
    settings = EngineSettings.load(environ)
    broken: dict[str, str] = {}

    def ask(part: str, probe: Callable[[], T]) -> T | None:
        try:
            return probe()
        except Exception as problem:  # noqa: BLE001 - the boundary: one part that breaks must not hide the others
            broken[part] = f"{type(problem).__name__}: {problem}"
            return None

    # Before any part that might have started threads.
    isolation = ask("isolation", lambda: _isolation(settings.isolation, Surroundings.look(environ)))
    is_isolated = isolation is not None and isolation["is_isolated"]
    return {
        "isolation": isolation,
        "limits": ask("limits", _limits),
        "network": ask("network", lambda: _network(settings.public_network, is_isolated=is_isolated)),
        "gvisor": shutil.which("runsc"),
        "python": ask("python", lambda: _python(settings.python)),
        "data": ask("data", lambda: _folder("AENV_DATA", settings.data, _obstacle(settings.data))),
        "run": ask("run", lambda: _folder("AENV_RUN", settings.run, _run_obstacle(settings.run))),
        "engines": ask("engines", lambda: _engines(settings.run)),
        "settings": list(_changed(environ)),
        "broken": broken,
    }


def _isolation(asked: str, around: Surroundings) -> Isolation:
    best = choose("auto")
    mode = best.mode if asked == "auto" else _mode(asked)
    notes: list[Note] = []
    if asked == "process":
        gained = f": sandboxes are then {MEANINGS[best.mode]}" if best.mode != "process" else ""
        problem = "AENV_ISOLATION=process asks for plain processes"
        notes.append({"about": "setting", "problem": problem, "remedy": f"unset it{gained}"})
    if os.geteuid() != 0:
        advice = "run aenv as root: sandboxes then have a user of their own, and control groups limit them"
        notes.append({"about": "root", "problem": f"this is user {os.geteuid()}", "remedy": advice})
    notes += [
        {"about": name, "problem": said(problem), "remedy": remedy(name, problem, around)}
        for name, problem in best.obstacles.items()
    ]
    is_isolated = mode in ("root", "user")
    meaning = MEANINGS[mode]
    return {
        "engine": "local", "asked": asked, "mode": mode, "is_isolated": is_isolated, "meaning": meaning, "notes": notes,
    }  # fmt: skip


def _mode(asked: str) -> Mode | None:
    try:
        return choose(asked).mode
    except EngineUnavailable:
        return None


def _limits() -> Allowance:
    # Whether groups can be made is known when some were; the engine asks the same way.
    found = Cgroups.find(new_id("doc")[:12])
    if found is not None:
        found.close()
    held = [name for name in _CONTROLLERS if found is not None and name in found.controllers]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = None if hard == resource.RLIM_INFINITY else hard
    instances = None if open_files is None else open_files // DESCRIPTORS
    return {
        "cgroups": found.kind if found is not None else None,
        "controllers": held,
        "open_files": open_files,
        "instances": instances,
        "pid_max": cgroupfs.number("/proc/sys/kernel/pid_max"),
        "memory_available_bytes": _memory_available(),
        "notes": [*_group_notes(held), *_file_notes(instances)],
    }


def _group_notes(held: list[str]) -> Iterator[Note]:
    missing = [name for name in _CONTROLLERS if name not in held]
    if not missing:
        return
    problem = f"no control groups for {', '.join(missing)}" if held else "no control groups can be made"
    offered = {word for tree in cgroupfs.trees() for word in cgroupfs.read(f"{tree.mount}/cgroup.controllers").split()}
    if os.geteuid() == 0:
        advice = "let this container write to /sys/fs/cgroup, for example with `docker run --privileged`"
    elif offered.isdisjoint(missing):
        advice = "run as root: this machine has control groups of version 1, which cannot be delegated"
    elif held:
        advice = f"delegate them: `systemctl edit user@.service`, there [Service] Delegate={' '.join(_CONTROLLERS)}"
    else:
        advice = "run as root, or `systemd-run --user --scope -p Delegate=yes aenv ...`"
    yield {"about": "cgroups", "problem": problem, "remedy": advice}


def _file_notes(instances: int | None) -> Iterator[Note]:
    if instances is not None and instances < _FEW_INSTANCES:
        advice = (
            "raise the hard limit: LimitNOFILE= in a systemd unit, `docker run --ulimit nofile=65536`, or limits.conf"
        )
        yield {"about": "open_files", "problem": f"only about {instances} instances at once", "remedy": advice}


def _memory_available() -> int | None:
    """What the kernel would give without swapping, or what the groups around this process leave of that."""
    kib = cgroupfs.read("/proc/meminfo").partition("MemAvailable:")[2].split()[:1]
    bounds = [int(word) * 1024 for word in kib]
    files = {"v1": ("memory.limit_in_bytes", "memory.usage_in_bytes"), "v2": ("memory.max", "memory.current")}
    for tree in cgroupfs.trees():
        for group in cgroupfs.upwards(tree.own, tree.mount):
            most, used = (cgroupfs.read(f"{group}/{name}").strip() for name in files[tree.kind])
            if most.isdigit() and used.isdigit():
                bounds.append(max(0, int(most) - int(used)))
    return min(bounds, default=None)


def _network(wanted: Literal["private", "host"], *, is_isolated: bool) -> Network:
    tool = usernet.find() if is_isolated and wanted == "private" else None
    notes: list[Note] = []
    if is_isolated and wanted == "host":
        problem = "AENV_PUBLIC_NETWORK=host asks for the host's network"
        notes.append({"about": "setting", "problem": problem, "remedy": "unset it to close the host's loopback"})
    elif is_isolated and tool is None:
        notes.append(_tool_note())
    return {
        "public": "host" if tool is None else "private",
        "tool": None if tool is None else tool.path,
        "are_policies_kept": is_isolated,
        "notes": notes,
    }


def _tool_note() -> Note:
    there = [tool for tool in get_args(usernet.Tool) if shutil.which(tool)]
    if not there:
        advice = "`apt install slirp4netns` (or pasta) closes the host's loopback"
        return {"about": "tool", "problem": "neither slirp4netns nor pasta is installed", "remedy": advice}
    advice = "try it by hand: `unshare --user --map-root-user --net` gives it a namespace"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        advice = "it needs /dev/net/tun, which this user cannot open: `docker run --device /dev/net/tun`"
    return {"about": "tool", "problem": f"{' and '.join(there)} did not work in a trial", "remedy": advice}


def _python(executable: str) -> Runtime:
    installer: Literal["uv", "pip"] | None = None
    if shutil.which("uv") or find_spec("uv"):
        installer = "uv"
    elif find_spec("pip") or find_spec("ensurepip"):
        installer = "pip"
    notes: list[Note] = []
    if installer is None or not find_spec("venv"):
        problem = "no installer for requirements.txt" if installer is None else "the module venv is missing"
        notes.append(
            {"about": "requirements", "problem": problem, "remedy": "`apt install python3-venv`, or install uv"}
        )
    version = platform.python_version()
    return {"executable": executable, "version": version, "installer": installer, "notes": notes}


def _folder(variable: str, path: Path, obstacle: str | None) -> Folder:
    used, is_counted = _used(path)
    notes: list[Note] = []
    if obstacle is not None:
        notes.append({"about": "folder", "problem": obstacle, "remedy": f"set {variable} to another folder"})
    free = shutil.disk_usage(_nearest(path)).free
    return {
        "path": str(path), "exists": _is_there(path), "used_bytes": used, "is_counted": is_counted, "free_bytes": free,
        "notes": notes,
    }  # fmt: skip


def _nearest(path: Path) -> Path:
    """The path, or what is there of it."""
    return next(folder for folder in (path, *path.parents) if _is_there(folder))


def _is_there(path: Path) -> bool:
    # Path.exists raises where this user may not look.
    return os.path.exists(path)  # noqa: PTH110 - see above


def _obstacle(path: Path) -> str | None:
    there = _nearest(path)
    if not there.is_dir():
        return f"{there} is not a folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to"


def _run_obstacle(path: Path) -> str | None:
    if len(str(path)) > LONGEST:
        return f"the path has {len(str(path))} characters, and sockets in it leave room for {LONGEST}"
    if not os.path.lexists(path):
        return _obstacle(path)
    found = path.lstat()
    is_ours = S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    return _obstacle(path) if is_ours else f"{path} belongs to somebody else, or others may write to it"


def _used(path: Path) -> tuple[int, bool]:
    """Bytes on the disk, and whether all were counted before the time was up."""
    deadline = time.monotonic() + _COUNTING_SECONDS
    total, seen = 0, set()
    for folder, _, names in os.walk(path):
        if time.monotonic() > deadline:
            return total, False
        for name in ("", *names):
            with suppress(OSError):
                status = os.lstat(f"{folder}/{name}")
                # A file with two names is there once.
                if status.st_ino not in seen:
                    total += status.st_blocks * 512
                if status.st_nlink > 1:
                    seen.add(status.st_ino)
    return total, True


def _engines(run: Path) -> Engines:
    # Read rather than tried: a lock that we held for a moment could turn an engine away that starts in it.
    held = {
        line.split()[-3].rpartition(":")[2] for line in cgroupfs.read("/proc/locks").splitlines() if "FLOCK" in line
    }
    locks = []
    for lock in run.glob("*/lock"):
        with suppress(FileNotFoundError):
            locks.append(str(lock.stat().st_ino))
    running = sum(inode in held for inode in locks)
    return {"running": running, "dead": len(locks) - running}


def _changed(environ: Mapping[str, str]) -> Iterator[Setting]:
    now = EngineSettings.load(environ)
    default = EngineSettings.load({name: value for name, value in environ.items() if not name.startswith(_PREFIX)})
    for field in fields(EngineSettings):
        value, usual = str(getattr(now, field.name)), str(getattr(default, field.name))
        if value != usual:
            name = f"{_PREFIX}{field.name.upper()}"
            yield {"name": name, "value": value, "default": usual, "source": "environment"}


if __name__ == "__main__":
    json.dump(survey(os.environ), sys.stdout)
