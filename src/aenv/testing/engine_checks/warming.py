"""Sandboxes kept ready (SupportsWarm)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest

from aenv.engines.protocol import Handle, Launch, SupportsWarm
from aenv.errors import EngineError, SandboxFailed
from aenv.testing.engine_bench import Bench

SPARES = 2


def warm(bench: Bench, launch: Launch, count: int) -> None:
    """Keep that many spares, or skip."""
    if not isinstance(bench.engine, SupportsWarm):
        pytest.skip(f"{bench.engine.name} keeps no spares; give it a method `warm` (SupportsWarm)")
    bench.run(bench.engine.warm(launch, count))


@pytest.fixture
def warmed(bench: Bench) -> Iterator[Launch]:
    """A launch whose digest has spares."""
    launch = bench.zoo.launch(deploy={"environmentVariables": {"KIND": "warm"}})
    warm(bench, launch, SPARES)
    yield launch
    warm(bench, launch, 0)


def test_one_started_from_a_spare_is_like_any_other(bench: Bench, warmed: Launch) -> None:
    given = {"COLOUR": "blue", "ODD": "new\nline", "LARGE": "x" * 100_000}
    for _ in range(SPARES + 2):
        launch = replace(warmed, id=bench.zoo.new_id(), variables=given, arguments=("--level", "3"))
        handle = bench.start(launch)
        seen = cast("dict[str, str]", bench.call(handle, "variables"))
        assert {name: seen.get(name) for name in given} == given
        assert (seen.get("KIND"), seen.get("AENV_INSTANCE_ID")) == ("warm", launch.id)
        assert bench.call(handle, "arguments") == ["--level", "3"]
        assert bench.call(handle, "count") == 1
        assert bench.poll(handle) is None


def test_a_spare_is_nobodys_instance(bench: Bench, warmed: Launch) -> None:
    assert warmed.id not in bench.list_ids()
    assert bench.run(bench.engine.list()) == []


def test_more_starts_than_spares_all_answer(bench: Bench, warmed: Launch) -> None:
    launches = [replace(warmed, id=bench.zoo.new_id()) for _ in range(3 * SPARES)]

    async def at_once() -> list[Handle]:
        return await asyncio.gather(*(bench.engine.start(launch) for launch in launches))

    handles = [bench.hold(handle) for handle in bench.run(at_once())]
    assert [handle.id for handle in handles] == [launch.id for launch in launches]
    assert [bench.call(handle, "count") for handle in handles] == [1] * len(handles)


def test_starts_go_on_without_spares(bench: Bench, warmed: Launch) -> None:
    warm(bench, warmed, 0)
    assert bench.is_answering(bench.start(warmed))


def test_a_closed_engine_leaves_no_spares(bench: Bench) -> None:
    with bench.another() as other:
        warm(other, other.zoo.launch(), SPARES)


def test_code_that_does_not_start_has_no_spares_and_says_why_when_it_is_started(bench: Bench) -> None:
    launch = bench.zoo.launch("raises_at_import")
    # Told now or when it is needed: either way the one who starts it learns why.
    with contextlib.suppress(EngineError):
        warm(bench, launch, SPARES)
    with pytest.raises(SandboxFailed) as caught:
        bench.start(launch)
    assert "no such luck" in f"{caught.value.message}\n{caught.value.details}"
    warm(bench, launch, 0)
