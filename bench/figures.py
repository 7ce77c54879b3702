"""Percentiles, what processes use, and the machine they were taken on."""

from __future__ import annotations

import compileall
import importlib.util
import json
import os
import platform
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def percentiles(seconds: Sequence[float], unit: float = 1e6, digits: int = 1) -> dict[str, float]:
    """min, p50 and p99, in microseconds unless told otherwise."""
    ordered = sorted(seconds)
    cut = statistics.quantiles(ordered, n=100, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 99
    found = {"min": ordered[0], "p50": cut[49], "p99": cut[98]}
    return {name: round(value * unit, digits) for name, value in found.items()}


def report(result: Mapping[str, object], *, is_saved: bool) -> None:
    """Print the result as one line, and keep it for the documents if asked to."""
    line = json.dumps(result)
    print(line)
    if is_saved:
        (RESULTS / f"{result['bench']}.json").write_text(f"{line}\n")


def compile_package() -> None:
    """Write our bytecode, as an installer does: a working copy may have none, and the peers' packages have theirs."""
    spec = importlib.util.find_spec("aenv")
    assert spec is not None
    assert spec.origin is not None
    compileall.compile_dir(Path(spec.origin).parent, quiet=2)


def machine() -> dict[str, object]:
    """What a reader needs to judge the numbers."""
    return {"python": platform.python_version(), "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}


def cpu_seconds(pid: int) -> float:
    """CPU time that a process and its threads have used so far."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def children() -> dict[int, list[int]]:
    """The children of every process."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc"):  # noqa: PTH208 - thousands of them
        if entry.isdigit():
            with suppress(OSError):
                # The name in brackets may hold anything; the parent is the second field after it.
                after = Path(f"/proc/{entry}/stat").read_text("latin-1").rpartition(") ")[2]
                found[int(after.split()[1])].append(int(entry))
    return found


def tree(root: int) -> list[int]:
    """A process and everything below it."""
    below = children()
    found = [root]
    for pid in found:
        found += below[pid]
    return found


def cpu_seconds_of(pids: Iterable[int]) -> float:
    """CPU time that these have used so far; nothing for those that are gone."""
    total = 0.0
    for pid in pids:
        with suppress(OSError):
            total += cpu_seconds(pid)
    return total


def pss_mb(pids: Iterable[int], per: int = 1) -> float | None:
    """Memory of these, with each shared page divided among those that share it; None where it may not be read."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text("latin-1")
        except PermissionError:
            return None
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(rollup.split("\nPss:")[1].split(maxsplit=1)[0])
    return round(total / 1024 / per, 3)


def available_mb() -> float:
    """Memory that the kernel could still give."""
    text = Path("/proc/meminfo").read_text("latin-1")
    return int(text.split("MemAvailable:")[1].split(maxsplit=1)[0]) / 1024
