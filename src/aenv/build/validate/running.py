"""Checks of a project's run as a whole: start, health, what it takes, what it leaves behind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from aenv.build.serving import StartFailed
from aenv.build.validate.findings import Flaw, Measured
from aenv.build.validate.trial import Trial
from aenv.build.validate.visit import Visit
from aenv.errors import LoadError

SLOW_HEALTH_SECONDS = 1.0
SLOW_START_SECONDS = 10.0

_LAST_LINES = 10
# `2026-01-01T00:00:00.000Z OUT     stdout text`; a line that belongs to a call names it after the source.
_PRINTED = re.compile(r"\S+Z OUT +stdout (?!call=)(?P<text>.*)")


def find_load_failure(trial: Trial) -> Iterator[Flaw]:
    """load.failed."""
    problem = trial.refusal
    if problem is not None and _cause(problem) == LoadError.code:
        frames = problem.details.get("traceback")
        lines = [str(line) for line in frames] if isinstance(frames, list) else []
        file = _file(trial, problem)
        said = f"does not import: {problem.message.removeprefix(f'{file}: ')}"
        yield Flaw(file, "\n".join([said, *lines]), problem.hint)


def find_start_failure(trial: Trial) -> Iterator[Flaw]:
    """start.failed."""
    problem = trial.refusal
    if problem is not None and _cause(problem) != LoadError.code:
        said = problem.message.removeprefix(f"{trial.folder}: ").removeprefix("the server ")
        yield Flaw("server", "\n".join([said, *trial.log[-_LAST_LINES:]]))


def find_noise(trial: Trial) -> Iterator[Flaw]:
    """output.noise."""
    printed = [match["text"] for line in trial.log if (match := _PRINTED.fullmatch(line))]
    if printed:
        count = f"{len(printed)} line{'s' if len(printed) > 1 else ''}"
        yield Flaw("stdout", f"got {count} outside of any call, such as {printed[0][:60]!r}")


def find_leftovers(trial: Trial) -> Iterator[Flaw]:
    """leak.process."""
    for pid, command in trial.leftovers:
        yield Flaw(f"process {pid}", f"({command[:200]}) outlived the server and was killed")


def find_written_files(trial: Trial) -> Iterator[Flaw]:
    """leak.file."""
    for path, verdict in trial.changed_files:
        yield Flaw(path, f"{verdict} while it ran")


def find_temporary_files(trial: Trial) -> Iterator[Flaw]:
    """leak.temporary."""
    if trial.temporary:
        names = ", ".join(trial.temporary[:5]) + (", ..." if len(trial.temporary) > 5 else "")
        yield Flaw("TMPDIR", f"still holds {names}")


def find_unhealthy(visit: Visit) -> Iterator[Flaw]:
    """health.unhealthy."""
    if visit.health is not None and not visit.health.is_success:
        yield Flaw("/health", f"says no: {visit.health.error}")
    elif visit.last_health is not None and not visit.last_health.is_success:
        yield Flaw("/health", f"says no after the calls: {visit.last_health.error}")


def find_slow_health(visit: Visit) -> Iterator[Flaw]:
    """health.slow."""
    if visit.health is not None and visit.health.seconds > SLOW_HEALTH_SECONDS:
        yield Flaw("/health", f"took {visit.health.seconds:.1f} s")


def find_lost(visit: Visit) -> Iterator[Flaw]:
    """server.lost."""
    if visit.lost is not None:
        yield Flaw("server", f"stopped answering while {visit.lost}")


def find_slow_start(visit: Visit) -> Iterator[Flaw]:
    """envelope.slow_start."""
    if visit.start_seconds > SLOW_START_SECONDS:
        yield Flaw("server", f"was ready after {visit.start_seconds:.1f} s")


def find_memory(visit: Visit) -> Iterator[Flaw]:
    """envelope.memory."""
    if visit.peak_bytes is not None and visit.peak_bytes > visit.memory_limit:
        allowed = _mebibytes(visit.memory_limit)
        yield Flaw("server", f"took {_mebibytes(visit.peak_bytes)} of memory, and deployConfig allows {allowed}")


def measure(visit: Visit) -> Measured:
    """What the start, the memory and the health check came to."""
    health_s = None if visit.health is None else round(visit.health.seconds, 4)
    return Measured(round(visit.start_seconds, 3), visit.peak_bytes, visit.memory_limit, health_s)


def _cause(problem: StartFailed) -> object:
    return problem.details.get("cause")


def _file(trial: Trial, problem: StartFailed) -> str:
    file = Path(str(problem.details.get("file", "")))
    return str(file.relative_to(trial.folder)) if file.is_relative_to(trial.folder) else "src/"


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
