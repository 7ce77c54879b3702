"""Percentiles and the machine they were taken on."""

from __future__ import annotations

import compileall
import importlib.util
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path


def percentiles(seconds: Sequence[float], unit: float = 1e6) -> dict[str, float]:
    """min, p50 and p99, in microseconds unless told otherwise."""
    ordered = sorted(seconds)
    cut = statistics.quantiles(ordered, n=100, method="inclusive") if len(ordered) > 1 else [ordered[0]] * 99
    return {"min": _round(ordered[0] * unit), "p50": _round(cut[49] * unit), "p99": _round(cut[98] * unit)}


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


def _round(value: float) -> float:
    return round(value, 1)
