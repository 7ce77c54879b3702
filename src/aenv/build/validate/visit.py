"""Asking a served project what it offers, and calling what may be called."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from aenv.build.serving import Served
from aenv.build.validate.declared import Declared, Example, RewardExample
from aenv.build.validate.wire import Answer, Lost, Wire

Note = Callable[[str], None]
Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Call:
    """One call, or the same one twice where both must give the same; `example` is whose it is, if it is one's."""

    kind: Literal["tool", "reward"]
    where: str
    answers: tuple[Answer, ...]
    example: Example | RewardExample | None = None


@dataclass(slots=True)
class Visit:
    """All that was seen of a served project."""

    declared: Declared
    tools: list[Json] = field(default_factory=list)
    health: Answer | None = None
    calls: list[Call] = field(default_factory=list)
    last_health: Answer | None = None
    lost: str | None = None
    """What was being done when the server stopped answering, and how that looked from here."""
    start_seconds: float = 0.0
    peak_bytes: int | None = None
    memory_limit: int = 0


def look_around(visit: Visit, served: Served, note: Note) -> None:
    """Fill in the visit: rewards first, while the environment is untouched, then what the author wrote examples for."""
    steps = _Steps(Wire(served.url), note)
    try:
        visit.health = steps.get("/health", "asking for /health")
        visit.tools = _objects(steps.get("/tools", "listing the tools"), "tools")
        rewards = _objects(steps.get("/functions/list", "listing the rewards"), "reward")
        for planned in _plan(visit, rewards):
            visit.calls.append(steps.call(planned))
        visit.last_health = steps.get("/health", "asking for /health again")
    except Lost as problem:
        visit.lost = f"{steps.doing}: {_ending(served) or problem}"


@dataclass(frozen=True, slots=True)
class _Planned:
    kind: Literal["tool", "reward"]
    where: str
    path: str
    arguments: Json
    times: int
    example: Example | RewardExample | None = None


class _Steps:
    def __init__(self, wire: Wire, note: Note) -> None:
        self._wire = wire
        self._note = note
        self.doing = ""

    def get(self, path: str, doing: str) -> Answer:
        self._begin(doing)
        return self._wire.get(path)

    def call(self, planned: _Planned) -> Call:
        self._begin(f"calling {planned.where}")
        answers = [self._wire.call(planned.path, planned.arguments)]
        # What fails may have taken all the time it was given; a second try would tell nothing.
        while answers[-1].is_success and len(answers) < planned.times:
            answers.append(self._wire.call(planned.path, planned.arguments))
        return Call(planned.kind, planned.where, tuple(answers), planned.example)

    def _begin(self, doing: str) -> None:
        self.doing = doing
        self._note(doing)


def _plan(visit: Visit, rewards: list[Json]) -> Iterator[_Planned]:
    for reward in rewards:
        if not _required(reward.get("input_schema")):
            yield _Planned("reward", f"reward {reward['name']!r}", f"/task/reward/{reward['name']}", {}, 1)
    for tool in visit.tools:
        if _is_repeatable(tool) and not _required(tool.get("inputSchema")):
            yield _Planned("tool", f"tool {tool['name']!r}", f"/tools/{tool['name']}", {}, 2)
    repeatable = {tool["name"] for tool in visit.tools if _is_repeatable(tool)}
    for index, example in enumerate(visit.declared.examples):
        where = f"validation.examples[{index}] (tool {example.tool!r})"
        times = 2 if example.tool in repeatable else 1
        yield _Planned("tool", where, f"/tools/{example.tool}", example.arguments, times, example)
    for index, wanted in enumerate(visit.declared.reward_examples):
        name = f" (reward {wanted.reward!r})" if wanted.reward is not None else ""
        path = f"/task/reward/{wanted.reward}" if wanted.reward is not None else "/task/reward"
        yield _Planned("reward", f"validation.rewardExamples[{index}]{name}", path, wanted.arguments, 1, wanted)


def _is_repeatable(tool: Json) -> bool:
    """Whether its author says that a second call changes nothing; one that asks the outside world may see a change."""
    hints = tool.get("annotations")
    if not isinstance(hints, Mapping) or hints.get("openWorldHint") is True:
        return False
    return hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True


def _required(schema: object) -> bool:
    return not isinstance(schema, Mapping) or bool(schema.get("required"))


def _objects(answer: Answer, key: str) -> list[Json]:
    listed = answer.result.get(key) if isinstance(answer.result, Mapping) else None
    return [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []


def _ending(served: Served) -> str | None:
    with suppress(subprocess.TimeoutExpired):
        served.process.wait(0.5)
    code = served.process.returncode
    return None if code is None else f"the server ended with code {code}"
