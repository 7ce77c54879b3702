"""Running a project once in a child process, and looking at what it leaves behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aenv._util.ids import new_id
from aenv.build.serving import StartFailed, served
from aenv.build.validate.declared import Declared
from aenv.build.validate.files import Change, changes, snapshot
from aenv.build.validate.findings import CheckFailed
from aenv.build.validate.processes import MARK, Leftover, Process, descendants, end_leftovers, peak_bytes
from aenv.build.validate.visit import Note, Visit, look_around
from aenv.errors import AddressError
from aenv.model.spec import EnvSpec


@dataclass(slots=True)
class Trial:
    """A project's run from start to stop; `visit` is what was seen in between, if it started at all."""

    folder: Path
    refusal: StartFailed | None = None
    visit: Visit | None = None
    log: list[str] = field(default_factory=list)
    leftovers: tuple[Leftover, ...] = ()
    changed_files: tuple[Change, ...] = ()
    temporary: tuple[str, ...] = ()


PATIENCE_SECONDS = 60.0
"""How long a project may take to start before it counts as one that does not."""


def try_out(folder: Path, spec: EnvSpec, declared: Declared, note: Note) -> Trial:
    """Serve the project, visit it, stop it, and end whatever is left of it.

    CheckFailed when that cannot be done for a reason that is none of the project's.
    """
    trial = Trial(folder)
    before = snapshot(folder)
    mark = new_id("run")
    seen: frozenset[Process] = frozenset()
    with _temporary_folder() as temporary:
        environ = _environ(spec, mark, temporary)
        try:
            note("starting the server")
            began = time.monotonic()
            with served(folder, log=trial.log.append, environ=environ, patience=PATIENCE_SECONDS) as server:
                trial.visit = Visit(declared, start_seconds=time.monotonic() - began)
                trial.visit.memory_limit = spec.deploy.memory_bounds().limit
                look_around(trial.visit, server, note)
                trial.visit.peak_bytes = peak_bytes(server.pid)
                seen = descendants(server.pid)
                note("stopping the server")
        except StartFailed as problem:
            trial.refusal = _own_fault(problem)
        finally:
            trial.leftovers = end_leftovers(mark, seen)
        # A glob, because it is fine with a folder that the author's code has removed.
        trial.temporary = tuple(sorted(path.name for path in temporary.glob("*")))
    trial.changed_files = changes(before, snapshot(folder))
    return trial


def _environ(spec: EnvSpec, mark: str, temporary: Path) -> Mapping[str, str]:
    return {
        **spec.deploy.environment_variables,
        MARK: mark,
        "TMPDIR": str(temporary),
        # Else this check would itself leave files in the project.
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _own_fault(problem: StartFailed) -> StartFailed:
    if problem.details.get("cause") == AddressError.code:
        raise CheckFailed(problem.message, hint=problem.hint) from problem
    return problem


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="aenv-validate-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
