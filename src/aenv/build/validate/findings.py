"""What a check is, what it finds, and the report that all findings make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeVar

from pydantic import JsonValue

from aenv.errors import ProjectError

Severity = Literal["error", "warning", "info"]
Level = Literal["static", "runtime"]

# Worst first: the order in which people should read them.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")

T = TypeVar("T")


class CheckFailed(ProjectError):
    """The checks could not be made, so nothing is known about the project."""

    code, exit_code = "validate.failed", 3


class Flaw(NamedTuple):
    """One place where a check does not hold: `where` and `message` make the sentence.

    `remedy` is for this very place; without one the check's own holds.
    """

    where: str
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A flaw with the name and severity of the check that found it; the remedy is empty where nothing is to be done."""

    code: str
    severity: Severity
    where: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One property that a project should have.

    `find` is a pure function from what was read or observed to the flaws in it. While a fatal check has a finding the
    project cannot be served, so nothing is tried out. `needs_proc` marks what only Linux's /proc can tell.
    """

    code: str
    severity: Severity
    about: str
    remedy: str
    find: Callable[[T], Iterable[Flaw]]
    is_fatal: bool = False
    needs_proc: bool = False

    def run(self, subject: T) -> list[Finding]:
        """Each flaw as a finding."""
        return [
            Finding(self.code, self.severity, flaw.where, flaw.message, flaw.remedy or self.remedy)
            for flaw in self.find(subject)
        ]


class Measured(NamedTuple):
    """What running the project took; None where it could not be seen."""

    start_s: float
    peak_bytes: int | None
    memory_limit_bytes: int
    health_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found; `checks` are the codes that ran, `is_partial` tells that fatal findings stopped the rest."""

    project: Path
    level: Level
    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    duration_s: float
    is_partial: bool = False
    measured: Measured | None = None

    def summary(self) -> Mapping[Severity, int]:
        """How many findings there are of each severity."""
        counts = Counter(finding.severity for finding in self.findings)
        return {severity: counts[severity] for severity in SEVERITIES}

    def to_dict(self) -> dict[str, JsonValue]:
        """The object that `aenv validate -o json` prints."""
        return {
            "project": str(self.project),
            "level": self.level,
            "findings": [asdict(finding) for finding in self.findings],
            "summary": {str(severity): count for severity, count in self.summary().items()},
            "checks": list(self.checks),
            "measured": None if self.measured is None else self.measured._asdict(),
            "duration_s": round(self.duration_s, 3),
        }
