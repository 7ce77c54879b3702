"""`aenv validate`: what is wrong with a project, found by reading it and by running it once."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from aenv.build.validate.catalog import RUN, SERVED, STATIC
from aenv.build.validate.declared import read_declared
from aenv.build.validate.findings import SEVERITIES, Check, Finding, Level, Measured, Report
from aenv.build.validate.page import render
from aenv.build.validate.processes import can_see
from aenv.build.validate.running import measure
from aenv.build.validate.subject import Subject, read
from aenv.build.validate.trial import try_out
from aenv.build.validate.visit import Note

__all__ = ["render", "validate"]

T = TypeVar("T")


def _say_nothing(doing: str) -> None:
    """Nobody waits."""


def validate(folder: Path, *, level: Level = "runtime", note: Note = _say_nothing) -> Report:
    """Check a project; `note` is told what is being done, from this thread.

    Nothing of the author's code runs at the static level, nor after a fatal finding. CheckFailed when the project
    cannot be looked at; whatever is wrong with the project itself is a finding.
    """
    began = time.monotonic()
    tally = _Tally()
    note("reading the project")
    subject = read(folder)
    tally.run(STATIC, subject)
    is_partial = level == "runtime" and tally.is_fatal
    measured = _run(subject, tally, note) if level == "runtime" and not is_partial else None
    findings = sorted(tally.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    duration = time.monotonic() - began
    return Report(subject.folder, level, tuple(findings), tuple(tally.codes), duration, is_partial, measured)


class _Tally:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.codes: list[str] = []
        self.is_fatal = False
        self._sees = can_see()

    def run(self, checks: Iterable[Check[T]], subject: T) -> None:
        for check in checks:
            if check.needs_proc and not self._sees:
                continue
            found = check.run(subject)
            self.codes.append(check.code)
            self.findings += found
            self.is_fatal |= check.is_fatal and bool(found)


def _run(subject: Subject, tally: _Tally, note: Note) -> Measured | None:
    assert subject.spec is not None, "a project without a config.json has a fatal finding"
    trial = try_out(subject.folder, subject.spec, read_declared(subject.spec)[0], note)
    tally.run(RUN, trial)
    if trial.visit is None:
        return None
    tally.run(SERVED, trial.visit)
    return measure(trial.visit)
