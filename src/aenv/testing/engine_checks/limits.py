"""Limits hold, breaking one is told, and it is never the neighbour who pays."""

from __future__ import annotations

import asyncio
import os
from typing import cast

import pytest

from aenv.engines.protocol import Handle, Reason, SupportsUsage, Usage
from aenv.testing import calls
from aenv.testing.engine_bench import Bench
from aenv.testing.engine_checks.lifecycle import stranger

PEAK = 1.6
"""How far a measured share of CPU may lie above its limit: quotas are handed out in slices."""


def misbehave(bench: Bench, handle: Handle, tool: str, **arguments: object) -> dict[str, object] | None:
    """What the tool tells, or None if it did not live to tell; a neighbour must answer all the while."""
    neighbour = bench.start()

    async def answer_meanwhile() -> calls.Answer | None:
        bomb = asyncio.create_task(calls.ask(handle.address, "POST", f"/tools/{tool}", arguments))
        while not bomb.done():
            assert await calls.call(neighbour.address, "add", {"a": 2, "b": 3}) == 5
            await asyncio.wait([bomb], timeout=0.05)
        return None if isinstance(bomb.exception(), OSError) else bomb.result()

    answer = bench.run(answer_meanwhile())
    assert bench.is_answering(neighbour)
    assert bench.poll(neighbour) is None
    if answer is None or not answer.envelope["success"]:
        return None
    told = answer.envelope["data"]
    return cast("dict[str, object]", told) if isinstance(told, dict) else {"result": told}


def needs_usage(bench: Bench) -> SupportsUsage:
    """The engine as one that tells usage, or a skip."""
    if not isinstance(bench.engine, SupportsUsage):
        pytest.skip(f"{bench.engine.name} tells no usage; give it a method `usage` (SupportsUsage)")
    return bench.engine


def assert_told(bench: Bench, handle: Handle, reason: Reason) -> None:
    """The sandbox ended for this reason, or it lives and its usage counts that it met the limit."""
    if bench.is_answering(handle):
        usage = bench.run(needs_usage(bench).usage(handle))
        assert usage.breaches.get(reason, 0) > 0, usage
    else:
        assert bench.wait_for_end(handle).reason == reason


def test_memory_ends_at_its_limit(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("eats_memory", deploy={"memory": "256Mi"}))
    told = misbehave(bench, handle, "eat", most_mb=768)
    assert told is None or told["error"] == "MemoryError"


def test_running_out_of_memory_is_told(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("eats_memory", deploy={"memory": "256Mi"}))
    misbehave(bench, handle, "eat", most_mb=768)
    assert_told(bench, handle, "oom")


def test_processes_end_at_their_limit(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("fork_bomb", deploy={"processes": 64}))
    told = misbehave(bench, handle, "bomb", most=300)
    assert told is None or cast("int", told["started"]) <= 64


def test_running_out_of_processes_is_told(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("fork_bomb", deploy={"processes": 64}))
    misbehave(bench, handle, "bomb", most=300)
    assert_told(bench, handle, "pids")


def test_the_disk_ends_at_its_limit_where_a_sandbox_works(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("fills_disk", deploy={"ephemeralStorage": "64Mi"}))
    told = misbehave(bench, handle, "fill", folder=".", most_mb=256)
    assert told is None or cast("int", told["written_mb"]) <= 64


def test_the_disk_ends_at_its_limit_in_the_temporary_folder(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("fills_disk", deploy={"ephemeralStorage": "64Mi"}))
    folder = bench.call(handle, "temporary_folder")
    told = misbehave(bench, handle, "fill", folder=folder, most_mb=256)
    assert told is None or cast("int", told["written_mb"]) <= 64


def test_a_full_disk_is_told_to_the_one_who_writes(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("fills_disk", deploy={"ephemeralStorage": "64Mi"}))
    told = misbehave(bench, handle, "fill", folder=".", most_mb=256)
    if told is None:
        assert bench.wait_for_end(handle).reason == "disk_full"
    else:
        assert told["error"] in {"ENOSPC", "EDQUOT", "EFBIG"}
        assert bench.is_answering(handle)


def test_open_files_end_at_their_limit(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("opens_files", deploy={"openFiles": 256}))
    told = misbehave(bench, handle, "open_many", most=2000)
    assert told is not None
    assert 0 < cast("int", told["result"]) <= 256
    assert bench.is_answering(handle)


def test_one_that_spins_on_every_core_gets_no_more_than_its_share(bench: Bench) -> None:
    handle = bench.start(bench.zoo.launch("spins", deploy={"cpu": "500m"}))
    told = misbehave(bench, handle, "spin", seconds=1.5, children=2 * (os.cpu_count() or 1))
    assert told is not None
    assert 0 < cast("float", told["result"]) <= 0.5 * PEAK


def test_one_that_spins_on_every_core_leaves_its_neighbour_answering(bench: Bench) -> None:
    handle = bench.start("spins")
    misbehave(bench, handle, "spin", seconds=1.0, children=2 * (os.cpu_count() or 1))
    assert bench.is_answering(handle)


def test_usage_grows_with_what_is_used(bench: Bench) -> None:
    engine = needs_usage(bench)
    handle = bench.start("eats_memory")
    before = bench.run(engine.usage(handle))
    bench.call(handle, "hold", mb=64)
    after = bench.run(engine.usage(handle))
    if before.memory_bytes is not None and after.memory_bytes is not None:
        assert after.memory_bytes - before.memory_bytes > 32 << 20
    if before.cpu_seconds is not None and after.cpu_seconds is not None:
        assert after.cpu_seconds >= before.cpu_seconds
    if after.processes is not None:
        assert after.processes >= 1


def test_usage_of_one_that_is_gone_is_all_none(bench: Bench) -> None:
    engine = needs_usage(bench)
    handle = bench.start()
    bench.stop(handle)
    assert bench.run(engine.usage(handle)) == Usage()
    assert bench.run(engine.usage(stranger(bench))) == Usage()
