"""The tables of measurements in README.md and in decisions, from what `bench/` has recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pages import creating
from pages.tables import table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"

_END = "<!-- /measured -->"
_PEER = "aenvironment==0.1.7"
_ROWS = {
    "start to healthy, median": ("ms", "start_to_healthy_ms", "p50"),
    "one call at a time, median": ("us", "call_us", "p50"),
    "server's CPU for it": ("us", "call_cpu_us", None),
    "calls per second, 64 callers": ("", "calls_per_s_64", None),
    "server's CPU per call, 64 callers": ("us", "call_cpu_us_64", None),
}


def render_calls() -> str:
    """What a call costs, and the machine it was measured on."""
    result = json.loads((RESULTS / "sandbox_call.json").read_text("utf-8"))
    ours, theirs = result["aenv"], result[_PEER]
    rows = []
    for label, (unit, key, part) in _ROWS.items():
        own, peer = _figure(ours, key, part), _figure(theirs, key, part)
        times = own / peer if not unit else peer / own
        rows.append((label, _shown(own, unit), _shown(peer, unit), f"{times:.0f} times"))
    machine = f"{result['cpus']} cores, Python {result['python']}, load {result['load']:.1f}"
    figures = table(["", "aenv", "aenvironment 0.1.7", "better"], rows)
    return f"{figures}\n\nMeasured by `bench/sandbox_call.py`: {machine}."


def _figure(results: dict[str, Any], key: str, part: str | None) -> float:
    return float(results[key] if part is None else results[key][part])


def _shown(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}".strip()


_CALLS, _CREATING = "<!-- measured -->", "<!-- measured: create -->"
_TABLES: dict[str, Callable[[], str]] = {_CALLS: render_calls, _CREATING: lambda: creating.render(RESULTS)}
FILES = {
    ROOT / "README.md": (_CALLS, _CREATING),
    ROOT / "docs" / "adr" / "0002-our-own-mcp-core.md": (_CALLS,),
    ROOT / "docs" / "adr" / "0009-zygotes-and-a-supervisor.md": (_CREATING,),
}


def update(file: Path) -> str:
    """The file's text with each table between its marks made anew; a file without the marks is a mistake."""
    text = file.read_text("utf-8")
    for mark in FILES[file]:
        text = _replaced(text, mark, _TABLES[mark]())
    return text


def _replaced(text: str, mark: str, figures: str) -> str:
    pattern = re.compile(f"(?<={re.escape(mark)}).*?(?={re.escape(_END)})", re.DOTALL)
    changed, count = pattern.subn(lambda found: f"\n{figures}\n", text)
    if count != 1:
        raise ValueError(f"{count} places between {mark} and {_END}, where there must be one")
    return changed
