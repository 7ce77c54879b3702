"""Can 3,000 instances live at once here, each answering a call, and is nothing left of them afterwards?

    python bench/crowd.py --live 3000

They are started a few at a time, in slices, to see whether one more costs more when many live. Half are stopped one by
one, the rest go with the engine. What is left is counted at once after that, with no time given to tidy up.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from figures import available_mb, compile_package, cpu_seconds_of, machine, percentiles, pss_mb, report
from ours import AT_ONCE, Born, Family, Ours, make_project, namespace, path_of
from peers_create import call

DIGEST = "crowd"
CALLS = 2000


class Traces(NamedTuple):
    """What an engine's processes leave their marks on; each member is a set of what there is at the moment."""

    processes: frozenset[tuple[int, str]]
    mounts: frozenset[str]
    control_groups: frozenset[str]
    run_files: frozenset[str]
    network_namespaces: frozenset[str]

    def counts(self) -> dict[str, int]:
        return {name: len(found) for name, found in self._asdict().items()}


def look(run: Path, lease: str, pids: Sequence[int]) -> Traces:
    """What there is now of this engine, whoever else works on the machine."""
    networks = {namespace(pid, "net") for pid in pids} - {namespace(os.getpid(), "net"), ""}
    return Traces(
        processes=frozenset((pid, born) for pid in pids if (born := birth(pid))),
        mounts=frozenset(Path("/proc/self/mountinfo").read_text().splitlines()),
        control_groups=frozenset(groups(lease)),
        run_files=frozenset(str(path) for path in run.rglob("*")),
        network_namespaces=frozenset(networks),
    )


def birth(pid: int) -> str:
    """When a process began, which tells it from a later one of the same number; empty if there is none."""
    return _stat(pid)[19]


def is_zombie(pid: int) -> bool:
    """Whether it has ended, and only its parent has not asked how."""
    return _stat(pid)[0] == "Z"


def _stat(pid: int) -> list[str]:
    """What follows the name."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(") ")[2].split()
    return [""] * 20


def groups(lease: str) -> list[str]:
    """The folders of control groups that belong to a lease."""
    found = []
    for folder, names, _files in os.walk("/sys/fs/cgroup"):
        if f"/aenv.{lease}" in f"{folder}/":
            found.append(folder)
        # Those of other engines are none of ours, and many.
        names[:] = [name for name in names if not name.startswith("aenv.") or name == f"aenv.{lease}"]
    return found


def left_over(before: Traces, live: Traces, run: Path, lease: str) -> dict[str, list[str]]:
    """What was there while the crowd lived, or came since, and still is."""
    everyone = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - thousands of them
    now = look(run, lease, everyone)
    pids = sorted(pid for pid, _ in now.processes & live.processes)
    return {
        "processes": [str(pid) for pid in pids if not is_zombie(pid)],
        "zombies": [str(pid) for pid in pids if is_zombie(pid)],
        "mounts": sorted(now.mounts - before.mounts),
        "control_groups": sorted(now.control_groups),
        "run_files": sorted(now.run_files - before.run_files),
        "network_namespaces": sorted(now.network_namespaces & live.network_namespaces),
    }


class Crowd:
    """All instances of one run, and what was seen of them."""

    def __init__(self, ours: Ours) -> None:
        self.ours = ours
        self.born: list[Born] = []

    async def gather(self, live: int, slice_: int) -> list[dict[str, Any]]:
        """Start them, slice by slice; what one of each slice cost."""
        slices = []
        while len(self.born) < live:
            count = min(slice_, live - len(self.born))
            used, began = self.ours.cpu_seconds(), time.perf_counter()
            born = await self.ours.grow(DIGEST, count)
            wall = time.perf_counter() - began
            self.born += born
            cost = {
                "live": len(self.born),
                "create_ms": round(wall / count * 1e3, 2),
                "cpu_ms": round((self.ours.cpu_seconds() - used) / count * 1e3, 2),
                f"first_call_{AT_ONCE}_at_once_ms": percentiles([one.took for one in born], 1e3, 2),
            }
            slices.append(cost)
        return slices

    def ask(self, calls: int) -> dict[str, Any]:
        """Have each answer once more, then some at random."""
        for one in self.born:
            call(path_of(one.handle), one.handle.id)
        took = []
        for one in random.choices(self.born, k=calls):
            began = time.perf_counter()
            call(path_of(one.handle), one.handle.id)
            took.append(time.perf_counter() - began)
        return {"answered": len(self.born), "random_call_us": percentiles(took)}

    async def leave(self) -> dict[str, Any]:
        """Stop half one by one, the rest with the engine."""
        half = self.born[: len(self.born) // 2]
        began = time.perf_counter()
        took = await self.ours.stop([one.handle for one in half])
        stopped = time.perf_counter() - began
        began = time.perf_counter()
        await self.ours.engine.aclose()
        closed = time.perf_counter() - began
        return {
            f"stop_{AT_ONCE}_at_once_ms": percentiles(took, 1e3, 2),
            "stops_per_s": round(len(half) / stopped, 1),
            "close_s": round(closed, 2),
            "closed_with": len(self.born) - len(half),
        }


def descriptors(pid: int) -> int | None:
    """How many it has open; None where that may not be read."""
    with suppress(PermissionError):
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - thousands of them
    return None


def uses(family: Family, live: int, before: float) -> dict[str, Any]:
    return {
        "pss_mb": pss_mb(family.sandboxes, live),
        "system_mb": round((before - available_mb()) / live, 3),
        "zygotes": len(family.zygotes),
        "zygotes_pss_mb": pss_mb(family.zygotes),
        "supervisor_pss_mb": pss_mb(family.supervisor),
        "supervisor_cpu_s": round(cpu_seconds_of(family.supervisor), 2),
        "supervisor_descriptors": descriptors(family.supervisor[0]),
        "descriptors_allowed": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
    }


async def measure(live: int, slice_: int, calls: int, folder: Path) -> dict[str, Any]:
    ours = Ours(folder, make_project(folder / "project"))
    ours.run.mkdir(mode=0o711)
    before = look(ours.run, "", [])
    try:
        await ours.begin(DIGEST)
        memory = available_mb()
        crowd = Crowd(ours)
        slices = await crowd.gather(live, slice_)
        answers = crowd.ask(calls)
        await ours.rest()
        family = ours.family()
        lease = str(crowd.born[0].handle.state["lease"])
        peak = look(ours.run, lease, list(itertools.chain(*family)))
        used = uses(family, live, memory)
        end = await crowd.leave()
    finally:
        await ours.engine.aclose()
    left = left_over(before, peak, ours.run, lease)
    return {
        "slices": slices,
        **answers,
        "memory": used,
        "end": end,
        "before": before.counts(),
        "peak": peak.counts(),
        "left_over": {kind: len(found) for kind, found in left.items()},
        "left_over_first": {kind: found[:3] for kind, found in left.items() if found},
    }


def bars(result: dict[str, Any], live: int) -> dict[str, Any]:
    costs = [one["cpu_ms"] for one in result["slices"]]
    flatness = round(costs[-1] / costs[0], 2)
    left = sum(result["left_over"].values())
    return {
        "answered": {"want": live, "got": result["answered"], "is_met": result["answered"] == live},
        "left_over": {"want": 0, "got": left, "is_met": left == 0},
        "cpu_of_last_slice_over_first": {"got": flatness, "median_cpu_ms": round(statistics.median(costs), 2)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", type=int, help="how many live at once (3000)")
    parser.add_argument("--slice", type=int, help="how many are started between two looks (500)")
    parser.add_argument("--quick", action="store_true", help="small numbers: whether it works, not how fast it is")
    parser.add_argument("--save", action="store_true", help="keep the result in bench/results")
    options = parser.parse_args()
    live = options.live or (30 if options.quick else 3000)
    slice_ = options.slice or (10 if options.quick else 500)
    compile_package()
    with tempfile.TemporaryDirectory(prefix="ab") as folder:
        Path(folder).chmod(0o711)
        result = asyncio.run(measure(live, slice_, 100 if options.quick else CALLS, Path(folder)))
    facts = {"bench": "crowd", "live": live, "at_once": AT_ONCE, **machine()}
    report({**facts, **result, "bars": bars(result, live)}, is_saved=options.save)


if __name__ == "__main__":
    main()
