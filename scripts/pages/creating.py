"""What creating an instance costs, from the results of bench/create.py and bench/crowd.py, as far as there are any."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages.tables import table

_HEADINGS = ["until the first answer", "p50", "p99", "quicker than aenvironment 0.1.7", "than bubblewrap"]
_PUBLISHED, _BOXED = "aenvironment==0.1.7", "bwrap + python"
_OURS = {
    "aenv, isolated, no spare": "aenv",
    "aenv, isolated, a spare": "aenv, spares",
}
_PEERS = {
    "aenvironment 0.1.7, a plain process": _PUBLISHED,
    "bubblewrap and Python": _BOXED,
    "crun and Python": "crun + python",
    "podman and Python": "podman + python",
}
_ABSENT = "not measured yet: run `python bench/{name}.py --save`."

Row = tuple[str, str, str, str, str]


def render(results: Path) -> str:
    """The table, what it leaves out, and the machine; a sentence in place of what nobody has measured."""
    create, crowd = _read(results / "create.json"), _read(results / "crowd.json")
    if create is None:
        parts = [f"Creating an instance is {_ABSENT.format(name='create')}"]
    else:
        rows = [*_sequential(create), *_at_once(create), *_stops(create)]
        parts = [table(_HEADINGS, rows), " ".join([*_memory(create), f"Measured by `bench/create.py`: {_on(create)}."])]
    if crowd is None:
        parts.append(f"A crowd of instances is {_ABSENT.format(name='crowd')}")
    else:
        parts.append(_crowd(crowd))
    return "\n\n".join(parts)


def _read(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def _sequential(result: dict[str, Any]) -> Iterator[Row]:
    for label, name in _OURS.items():
        if (found := _cut(result, name)) is not None:
            times = [_times(_cut(result, peer), found) for peer in (_PUBLISHED, _BOXED)]
            yield (label, _ms(found["p50"]), _ms(found["p99"]), times[0], times[1])
    for label, name in _PEERS.items():
        if (found := _cut(result, name)) is not None:
            yield (label, _ms(found["p50"]), _ms(found["p99"]), "", "")


def _at_once(result: dict[str, Any]) -> Iterator[Row]:
    burst = result.get("burst", {})
    for label, name in _OURS.items():
        if (found := _cut(burst, name)) is not None:
            share = f"{round(burst[name]['success'] * 100, 2):g} % answered"
            yield (f"{burst['size']} at once: {label}, {share}", _ms(found["p50"]), _ms(found["p99"]), "", "")


def _stops(result: dict[str, Any]) -> Iterator[Row]:
    found = result.get("aenv", {}).get("stop_ms")
    if found is not None:
        yield ("stopping one, until nothing is left", _ms(found["p50"]), _ms(found["p99"]), "", "")


def _cut(result: dict[str, Any], name: str) -> dict[str, float] | None:
    found: dict[str, float] | None = result.get(name, {}).get("first_call_ms")
    return found


def _times(theirs: dict[str, float] | None, ours: dict[str, float]) -> str:
    return "" if theirs is None else f"{theirs['p50'] / ours['p50']:,.0f} times"


def _memory(result: dict[str, Any]) -> Iterator[str]:
    """Proportional memory, which divides each shared page among those that share it."""
    sizes = {int(size): one["pss_mb"] for size, one in result.get("memory", {}).items() if size.isdigit()}
    known = {size: used for size, used in sizes.items() if used is not None}
    if known:
        told = ", ".join(f"{used:.1f} MB with {size:,} alive" for size, used in sorted(known.items()))
        theirs = result.get(_PUBLISHED, {}).get("pss_mb")
        yield f"Memory (PSS) of an instance: {told}{f'; of aenvironment 0.1.7: {theirs:.0f} MB' if theirs else ''}."


def _crowd(result: dict[str, Any]) -> str:
    first, last = result["slices"][0], result["slices"][-1]
    call, left = result["random_call_us"], sum(result["left_over"].values())
    end = result["end"]
    return (
        f"A crowd: {result['answered']:,} of {result['live']:,} instances lived at once and answered. The first "
        f"{first['live']:,} took {first['cpu_ms']:.1f} ms of CPU each, the last {last['cpu_ms']:.1f} ms; a call to one "
        f"of them at random took {call['p50']:,.0f} us (p99 {call['p99']:,.0f}). {end['closed_with']:,} ended with the "
        f"engine in {end['close_s']:.1f} s, and {left} processes, mounts, control groups, sockets and namespaces were "
        f"left. Measured by `bench/crowd.py`: {_on(result)}."
    )


def _on(result: dict[str, Any]) -> str:
    return f"{result['cpus']} cores, Python {result['python']}, load {result['load']:.1f}"


def _ms(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f} ms"
