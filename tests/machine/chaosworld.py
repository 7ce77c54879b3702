"""An engine's owner in a process of its own, the tree of processes below it, and ways to kill each of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from conftest import wait_for

from aenv.engines.local.leases import sweep

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "chaos"
SOURCE = '''\
import ctypes
import os

from aenv import register_tool

# A name that whoever looks from outside can tell it by.
ctypes.CDLL(None).prctl(15, os.environ["AENV_INSTANCE_ID"].encode())
calls = []


@register_tool
def count() -> int:
    """How often this was called."""
    calls.append(None)
    return len(calls)


@register_tool
def daemonise() -> None:
    """Leave a process behind that is nobody's child."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(0, 1024)
    os.execv("/bin/sleep", ["sleep", "1000"])
'''
_NOTICED = 1.0
"""Seconds in which whoever holds the engine sees that a part of it is gone; what is asked in them may fail."""
Kind = Literal["sandbox", "zygote", "init", "outer half", "supervisor", "owner", "owner and supervisor"]
_SUPERVISOR, _ZYGOTE = "aenv.engines.local.supervisor", "aenv.engines.local.zygote"


class Process(NamedTuple):
    """One process, as /proc shows it."""

    pid: int
    parent: int
    born: str
    """A pid can be used again, but not with the same time of birth."""
    state: str
    name: str
    command: list[str]
    depth: int
    """How many pid namespaces further down than us it is."""

    @classmethod
    def look(cls, pid: int) -> Process | None:
        """None if there is no such process."""
        folder = Path("/proc") / str(pid)
        try:
            head, _, rest = folder.joinpath("stat").read_text("latin-1").rpartition(")")
            command = folder.joinpath("cmdline").read_bytes().decode("latin-1").split("\0")[:-1]
            status = folder.joinpath("status").read_text("latin-1")
        except OSError:
            return None
        fields = rest.split()
        pids = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [""])
        return cls(pid, int(fields[1]), fields[19], fields[0], head.partition("(")[2], command, len(pids) - 1)

    def is_there(self) -> bool:
        """Whether it still runs."""
        now = Process.look(self.pid)
        return now is not None and now.born == self.born and now.state != "Z"

    def signal(self, number: int = signal.SIGKILL) -> None:
        """To this one, never to another that was given its number."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.is_there():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def below(root: int) -> list[Process]:
    """All processes that run below one, parents before their children."""
    return [one for one in look_below(root) if one.state != "Z"]


def look_below(root: int) -> list[Process]:
    """The same, with the dead that nobody has waited for."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    pids = [root]
    for pid in pids:
        pids += children.get(pid, [])
    found = [Process.look(pid) for pid in pids[1:]]
    return [one for one in found if one is not None]


def _parents() -> Iterator[tuple[int, int]]:
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            yield int(file.parent.name), int(file.read_bytes().rpartition(b")")[2].split()[1])


def _within(everyone: Sequence[Process], root: Process) -> list[Process]:
    """Those of some processes, parents first, that are below one of them."""
    pids = {root.pid}
    found = []
    for one in everyone:
        if one.parent in pids:
            pids.add(one.pid)
            found.append(one)
    return found


@dataclass(frozen=True)
class Parts:
    """The processes of an engine, by what they are."""

    supervisors: list[Process]
    outer_halves: list[Process] = field(default_factory=list)
    inits: list[Process] = field(default_factory=list)
    zygotes: list[Process] = field(default_factory=list)
    sandboxes: list[Process] = field(default_factory=list)
    family: dict[int, list[Process]] = field(default_factory=dict)
    """What is below each outer half and each init."""

    def of(self, kind: Kind) -> list[Process]:
        """All of a kind."""
        return {
            "sandbox": self.sandboxes,
            "zygote": self.zygotes,
            "init": self.inits,
            "outer half": self.outer_halves,
            "supervisor": self.supervisors,
        }[str(kind)]


def dissect(root: int, *, is_boxed: bool) -> Parts:
    """What is what below an owner."""
    everyone = below(root)
    parts = Parts([one for one in everyone if _SUPERVISOR in one.command])
    for supervisor in parts.supervisors:
        for process in everyone:
            if process.parent == supervisor.pid and _ZYGOTE in process.command:
                _sort(parts, process, _within(everyone, process), is_boxed=is_boxed)
    return parts


def _sort(parts: Parts, first: Process, family: list[Process], *, is_boxed: bool) -> None:
    """A child of the supervisor: a zygote with all around it, or a plain sandbox that has lost its zygote."""
    if not is_boxed:
        (parts.zygotes if _is_at_root(first) else parts.sandboxes).append(first)
        parts.sandboxes.extend(one for one in family if _ZYGOTE in one.command)
        return
    parts.outer_halves.append(first)
    parts.family[first.pid] = family
    for process in family:
        if process.depth == 1 and process.parent == first.pid:
            parts.inits.append(process)
            parts.family[process.pid] = [one for one in family if one is not process]
        elif process.depth == 1:
            parts.zygotes.append(process)
        elif process.depth == 2 and _ZYGOTE in process.command:
            parts.sandboxes.append(process)


def _is_at_root(process: Process) -> bool:
    try:
        return Path(f"/proc/{process.pid}/cwd").readlink() == Path("/")
    except OSError:
        return False


class Kill(NamedTuple):
    """Who was killed, and whom that may have cost the life."""

    kind: Kind
    looked: float
    at: float
    marks: frozenset[str]
    """Ids of the instances that had to end with it."""
    is_vague: bool
    """Whether there were others among them that did not bear their id yet."""

    def explains(self, note: dict[str, Any]) -> bool:
        """Whether an instance may have ended by it."""
        # Only what never came up can have been asked for after the kill.
        latest = self.at + (_NOTICED if note["ready"] is None else 0.0)
        if note["asked"] > latest or note["ended"] < self.looked:
            return False
        if self.kind in ("supervisor", "owner", "owner and supervisor"):
            return True
        return note["id"] in self.marks or (self.is_vague and (note["ready"] is None or note["ready"] >= self.looked))


class Owner:
    """A process that holds an engine, under a keeper that ends when nothing is left of either."""

    def __init__(self, world: World, plan: dict[str, Any]) -> None:
        self._world = world
        command = [sys.executable, str(SCRIPTS / "keeper.py"), sys.executable, str(SCRIPTS / "owner.py")]
        self._keeper = subprocess.Popen(
            [*command, json.dumps(plan)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=world.errors
        )
        self.process: Process = wait_for(lambda: next(iter(below(self._keeper.pid)), None), 30)  # type: ignore[assignment] # not None, or it raises

    def everyone(self) -> list[Process]:
        """It, and all that came of it."""
        return below(self._keeper.pid)

    def parts(self) -> Parts:
        """The engine's processes."""
        return dissect(self.process.pid, is_boxed=self._world.is_boxed)

    def is_all_gone(self) -> bool:
        """Whether nothing that it started is left."""
        return self._keeper.poll() is not None

    def end(self) -> None:
        """Ask it to end."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()

    def wait(self, seconds: float = 30) -> None:
        """Until nothing is left of it; AssertionError names what is."""
        try:
            self._keeper.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"left after {seconds:g} s: {self.everyone()}") from None

    def destroy(self) -> None:
        """Leave nothing, whatever went wrong."""
        while not self.is_all_gone() and (left := self.everyone()):
            for process in left:
                process.signal()
            with suppress(subprocess.TimeoutExpired):
                self._keeper.wait(0.1)
        self.end()
        self._keeper.wait()


@dataclass
class World:
    """Folders of an engine, and the owners that it has had."""

    folder: Path
    isolation: str
    errors: IO[bytes]
    owners: list[Owner] = field(default_factory=list)
    leases: set[str] = field(default_factory=set)

    @property
    def is_boxed(self) -> bool:
        """Whether sandboxes have namespaces of their own."""
        return self.isolation != "process"

    @property
    def run(self) -> Path:
        """Where the engine's sockets are."""
        return self.folder / "run"

    @property
    def project(self) -> Path:
        """An environment that counts."""
        return self.folder / "project"

    def new_owner(self, *, seed: int = 0, workers: int = 0, held: int = 0, tool: str = "count") -> Owner:
        """An owner that holds some instances, or whose workers make and end them all the time."""
        plan = {
            "name": f"c{len(self.owners)}",
            "seed": f"{seed}/{len(self.owners)}",
            "isolation": self.isolation,
            "run": str(self.run),
            "data": str(self.folder / "data"),
            "project": str(self.project),
            "notes": str(self.folder / f"notes{len(self.owners):04}"),
            "environments": 3,
            "workers": workers,
            "held": held,
            "tool": tool,
        }
        owner = Owner(self, plan)
        self.owners.append(owner)
        if held:
            wait_for(lambda: any(note.get("held_by") == plan["name"] for note in self.notes()), 60)
            self.see_leases()
        return owner

    def notes(self) -> list[dict[str, Any]]:
        """What owners have written down."""
        lines = [
            line for file in sorted(self.folder.glob("notes*")) for line in file.read_text().splitlines(keepends=True)
        ]
        # Whoever is killed while writing leaves half a line.
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def see_leases(self) -> None:
        """Remember the names of the folders that supervisors have now."""
        if self.run.exists():
            self.leases |= {path.name for path in self.run.iterdir()}

    def kill(self, owner: Owner, kind: Kind, victim: Process, parts: Parts, looked: float) -> Kill:
        """Send SIGKILL, and say whom that concerns."""
        self.see_leases()
        concerned = [victim, *parts.family.get(victim.pid, ())] if kind not in ("zygote", "supervisor") else []
        sandboxes = [one for one in concerned if one in parts.sandboxes]
        marks = frozenset(one.name for one in sandboxes)
        # A zygote may have forked once more since we looked.
        is_vague = kind in ("init", "outer half") or any(not one.name.startswith("c") for one in sandboxes)
        if kind == "owner and supervisor":
            for supervisor in parts.supervisors:
                supervisor.signal()
        victim.signal()
        at = time.monotonic()
        self.see_leases()
        return Kill(kind, looked, at, marks, is_vague)

    def read_errors(self) -> str:
        """What owners and supervisors have printed."""
        return Path(self.errors.name).read_text("utf-8", "replace")


@contextmanager
def open_world(isolation: str) -> Iterator[World]:
    """Folders with short paths that sandboxes can enter; everything ends with them."""
    with tempfile.TemporaryDirectory(prefix="aenv-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "project" / "src").mkdir(parents=True)
        (folder / "project" / "src" / "author.py").write_text(SOURCE)
        (folder / "project" / "config.json").write_text(json.dumps({"name": "counter", "version": "1.0.0"}))
        with (folder / "errors").open("wb") as errors:
            world = World(folder, isolation, errors)
            try:
                yield world
            finally:
                for owner in world.owners:
                    owner.destroy()
                # A test that failed leaves nothing on the machine either.
                if world.run.exists():
                    sweep(world.run)


def gone(processes: Sequence[Process]) -> bool:
    """Whether none of them is left."""
    return not any(process.is_there() for process in processes)
