"""How long from asking for an instance to its first successful tool call, and what does one cost?

All contenders serve the same project (one echo tool) and take turns, so that noise meets all alike. Every time ends
with an answer that was checked. Ours are isolated, without a network; the published server is a plain process.

    python bench/create.py -n 20
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures import available_mb, compile_package, cpu_seconds_of, machine, percentiles, pss_mb, report
from ours import AT_ONCE, Ours, make_project, path_of
from peers_create import Bubblewrap, Crun, Peer, Podman, Published, call

from aenv.engines.protocol import Launch
from aenv.errors import EngineError

PLAIN, SPARED, BURST, MEMORY = "aenv", "aenv, spares", "burst", "memory"
PEERS = (Published.name, Bubblewrap.name, Crun.name, Podman.name)
PARTS = dict(zip(("published", "bwrap", "crun", "podman", "plain", "spares"), (*PEERS, PLAIN, SPARED), strict=True))
PARTS |= {BURST: BURST, MEMORY: MEMORY}
SPARES = 4
ENOUGH = 100
Samples = dict[str, dict[str, list[float]]]


def time_peer(peer: Peer, samples: dict[str, list[float]]) -> None:
    began = time.perf_counter()
    peer.start()
    try:
        peer.call()
        samples["first_call"].append(time.perf_counter() - began)
        pids = peer.processes()
        samples["cpu"].append(cpu_seconds_of(pids))
        if (pss := pss_mb(pids)) is not None:
            samples["pss"].append(pss)
    finally:
        peer.stop()


async def time_ours(ours: Ours, name: str, samples: dict[str, list[float]]) -> None:
    launch = ours.launch(name)
    used = ours.cpu_seconds()
    began = time.perf_counter()
    handle = await ours.engine.start(launch)
    call(path_of(handle), launch.id)
    samples["first_call"].append(time.perf_counter() - began)
    if name == PLAIN:
        samples["cpu"].append(ours.cpu_seconds() - used)
    began = time.perf_counter()
    await ours.engine.stop(handle)
    samples["stop"].append(time.perf_counter() - began)
    if name == SPARED:
        # The next one shall find as many spares as this one did.
        await ours.rest()


async def take_turns(ours: Ours, peers: Sequence[Peer], names: Sequence[str], n: int, each: int) -> Samples:
    """`n` rounds; as ours are quick, they get `each` turns a round."""
    samples: Samples = defaultdict(lambda: defaultdict(list))
    if SPARED in names:
        await ours.engine.warm(ours.launch(SPARED), SPARES)
        await ours.rest()
    for _ in range(n):
        for peer in peers:
            time_peer(peer, samples[peer.name])
        for name in names:
            for _ in range(each):
                await time_ours(ours, name, samples[name])
    if SPARED in names:
        await ours.engine.warm(ours.launch(SPARED), 0)
        await ours.rest()
    return samples


async def burst(ours: Ours, name: str, size: int) -> dict[str, Any]:
    """So many at once; a start that fails is counted, not raised."""
    if name == SPARED:
        await ours.engine.warm(ours.launch(name), size)
        await ours.rest()
    ready = len(ours.family().sandboxes)
    launches = [ours.launch(name) for _ in range(size)]
    began = time.perf_counter()
    ended = await asyncio.gather(*(_finish(ours, launch) for launch in launches))
    wall = time.perf_counter() - began
    if name == SPARED:
        await ours.engine.warm(ours.launch(name), 0)
    await ours.stop_all()
    await ours.rest()
    took = [one - began for one in ended if isinstance(one, float)]
    failures = [repr(one) for one in ended if not isinstance(one, float)]
    return {"ready": ready, "took": took, "failures": failures, "wall": wall}


async def _finish(ours: Ours, launch: Launch) -> float | Exception:
    """When it had answered, or why it never did."""
    try:
        await ours.start(launch)
    except (EngineError, OSError, AssertionError) as problem:
        return problem
    return time.perf_counter()


async def bursts(ours: Ours, size: int, times: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {PLAIN: [], SPARED: []}
    for _ in range(times):
        for name, done in runs.items():
            done.append(await burst(ours, name, size))
    return {"size": size, "times": times} | {name: _summed(done, size) for name, done in runs.items()}


def _summed(runs: list[dict[str, Any]], size: int) -> dict[str, Any]:
    took = [seconds for run in runs for seconds in run["took"]]
    failures = [text for run in runs for text in run["failures"]]
    return {
        "success": round(len(took) / (size * len(runs)), 4),
        "first_failure": failures[0] if failures else None,
        "spares_ready": min(run["ready"] for run in runs),
        "first_call_ms": percentiles(took, 1e3, 3) if took else None,
        "creates_per_s": round(statistics.median(size / run["wall"] for run in runs), 1),
    }


async def memory(ours: Ours, sizes: Sequence[int]) -> dict[str, Any]:
    """What instances use when so many live; the engine's own share is told beside it."""
    await ours.rest()
    before, strays = available_mb(), set(ours.family().sandboxes)
    found: dict[str, Any] = {}
    live = 0
    for size in sizes:
        began = time.perf_counter()
        born = await ours.grow(PLAIN, size - live)
        wall = time.perf_counter() - began
        await ours.rest()
        family = ours.family()
        own = set(family.sandboxes) - strays
        assert len(own) == size, f"{size} instances have {len(own)} processes"
        found[str(size)] = {
            "pss_mb": pss_mb(own, size),
            # The rest of the machine moves by more than a few instances take.
            "system_mb": round((before - available_mb()) / size, 3) if size >= ENOUGH else None,
            "zygotes_pss_mb": pss_mb(family.zygotes),
            "supervisor_pss_mb": pss_mb(family.supervisor),
            f"creates_per_s_{AT_ONCE}_at_once": round(len(born) / wall, 1),
        }
        live = size
    took = await ours.stop_all()
    await ours.rest()
    return {**found, f"stop_{AT_ONCE}_at_once_ms": percentiles(took, 1e3, 3)}


def figures_of(samples: dict[str, list[float]]) -> dict[str, Any]:
    found: dict[str, Any] = {"first_call_ms": percentiles(samples["first_call"], 1e3, 3)}
    if samples["stop"]:
        found["stop_ms"] = percentiles(samples["stop"], 1e3, 3)
    if samples["cpu"]:
        found["cpu_ms"] = percentiles(samples["cpu"], 1e3, 3)
    if samples["pss"]:
        found["pss_mb"] = round(statistics.median(samples["pss"]), 1)
    return found


class Bars:
    """What is wanted, what was measured, and whether that is enough; nothing is claimed of what was not measured."""

    def __init__(self, result: dict[str, Any]) -> None:
        self._result = result

    def all(self) -> dict[str, Any]:
        plain, spared = self._median(PLAIN), self._median(SPARED)
        published, boxed = self._median(Published.name), self._median(Bubblewrap.name)
        burst_plain, burst_spared = self._found(BURST, PLAIN), self._found(BURST, SPARED)
        success = [one for one in (burst_plain.get("success"), burst_spared.get("success")) if one is not None]
        late_plain, late_spared = _p99(burst_plain), _p99(burst_spared)
        pss = self._found(Published.name).get("pss_mb"), self._found(MEMORY, "1000").get("pss_mb")
        return {
            "without_spares_vs_published": _at_least(200, _times(published, plain)),
            "without_spares_vs_bwrap": _at_least(8, _times(boxed, plain)),
            "with_spares_vs_published": _at_least(1500, _times(published, spared)),
            "burst_success": _at_least(1.0, min(success, default=None)),
            "strays": _at_most(0, self._result["strays"]),
            "burst_p99_over_sequential_p50": {
                "without_over_without": _at_most(20, _times(late_plain, plain)),
                "with_over_without": _at_most(20, _times(late_spared, plain)),
                "with_over_with": _at_most(20, _times(late_spared, spared)),
            },
            "pss_at_1000_vs_published": _at_least(25, _times(*pss)),
        }

    def _found(self, *path: str) -> dict[str, Any]:
        found = self._result
        for part in path:
            found = found.get(part) or {}
        return found

    def _median(self, name: str) -> float | None:
        return self._found(name, "first_call_ms").get("p50")


def _p99(found: dict[str, Any]) -> float | None:
    return (found.get("first_call_ms") or {}).get("p99")


def _times(larger: float | None, smaller: float | None) -> float | None:
    return None if larger is None or not smaller else round(larger / smaller, 2)


def _at_least(want: float, got: float | None) -> dict[str, object]:
    return {"want": want, "got": got, "is_met": None if got is None else got >= want}


def _at_most(want: float, got: float | None) -> dict[str, object]:
    return {"want_at_most": want, "got": got, "is_met": None if got is None else got <= want}


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    project = make_project(folder / "project")
    everyone = (Published(project), Bubblewrap(project, folder / "bwrap"), Crun(project, folder / "crun"))
    wanted = [peer for peer in (*everyone, Podman(project, folder / "podman")) if peer.name in options.only]
    obstacles = {peer.name: peer.obstacle() for peer in wanted}
    peers = [peer for peer in wanted if obstacles[peer.name] is None]
    ours = Ours(folder, project)
    result: dict[str, Any] = {name: {"not_measured": why} for name, why in obstacles.items() if why is not None}
    try:
        result["very_first_ms"] = round(await ours.begin(PLAIN) * 1e3, 1)
        await ours.begin(SPARED)
        result["isolation"] = await isolation(ours)
        names = [name for name in (PLAIN, SPARED) if name in options.only]
        samples = await take_turns(ours, peers, names, options.n, options.each)
        result |= {name: figures_of(found) for name, found in samples.items()}
        if BURST in options.only:
            result[BURST] = await bursts(ours, options.burst, options.bursts)
        # No instance lives now and no spare is wanted.
        result["strays"] = len(ours.family().sandboxes)
        if MEMORY in options.only:
            result[MEMORY] = await memory(ours, options.live)
    finally:
        await ours.engine.aclose()
        for peer in peers:
            peer.close()
    return result


async def isolation(ours: Ours) -> dict[str, object]:
    born = await ours.start(ours.launch(PLAIN))
    found = ours.isolation(born.handle)
    await ours.stop_all()
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small numbers: whether it works, not how fast it is")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--save", action="store_true", help="keep the result in bench/results")
    parser.add_argument("-n", type=int, help="rounds (20)")
    parser.add_argument("--each", type=int, help="turns of ours in a round (10)")
    parser.add_argument("--burst", type=int, help="instances asked for at once (100)")
    parser.add_argument("--bursts", type=int, help="how often (5)")
    parser.add_argument("--live", type=int, nargs="+", help="how many live when memory is read (1 100 1000)")
    few, many = (2, 3, 10, 2, [1, 10, 20]), (20, 10, 100, 5, [1, 100, 1000])
    options = parser.parse_args()
    for name, value in zip(("n", "each", "burst", "bursts", "live"), few if options.quick else many, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.only = [PARTS[part] for part in options.only]
    return options


def main() -> None:
    options = arguments()
    compile_package()
    with tempfile.TemporaryDirectory(prefix="ab") as folder:
        Path(folder).chmod(0o711)
        result = asyncio.run(measure(options, Path(folder)))
    plain, spared = (result.get(name, {}).get("first_call_ms", {}).get("p50") for name in (PLAIN, SPARED))
    ratio = {
        name: {"without_spares": _times(found["p50"], plain), "with_spares": _times(found["p50"], spared)}
        for name in PEERS
        if (found := result.get(name, {}).get("first_call_ms")) is not None
    }
    facts = {"bench": "create", "n": options.n, **machine()}
    report({**facts, **result, "times_better": ratio, "bars": Bars(result).all()}, is_saved=options.save)


if __name__ == "__main__":
    main()
