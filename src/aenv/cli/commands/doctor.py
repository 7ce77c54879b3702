"""`aenv doctor`: what this machine gives sandboxes, for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import click

from aenv.cli.options import output_option
from aenv.cli.output import Json, Output, show, table
from aenv.engines import open_engine
from aenv.errors import ConfigError, EngineUnavailable
from aenv.settings import EngineSettings

if TYPE_CHECKING:
    from aenv.engines.local.survey import Allowance, Engines, Folder, Isolation, Network, Note, Runtime, Setting, Survey

T = TypeVar("T")

EXAMPLES = """
\b
Examples:
  aenv doctor                               what there is, and how to get what is missing
  aenv doctor -o json                       the same for programs
  AENV_ISOLATION=required aenv doctor       whether a server that insists on isolation would start
"""

SURVEY_SECONDS = 60.0
PLAIN = 1

_DETAILS = {
    "root": "namespaces made by root; code in them runs as an ordinary user of its own",
    "user": "namespaces made by this user; code in them sees neither your files nor your processes",
    "process": "environments run with your own rights: your files, your network, your processes",
}


@click.command(epilog=EXAMPLES)
@output_option
def doctor(output: Output) -> int:
    """Show what this machine gives sandboxes.

    Says how they are isolated, limited and connected here, and what to do where that could be more. Changes nothing.

    Exits with 0 if sandboxes are isolated, 1 if they would run as plain processes, 3 if AENV_ISOLATION asks for
    isolation that cannot be had.
    """
    settings = EngineSettings.load(os.environ)
    if settings.engine != "local":
        open_engine(settings)
    found = _survey()
    if output == "table":
        _print(found)
    else:
        show(_as_json(found), output=output)
    isolation = found["isolation"]
    if isolation is None or isolation["mode"] == "process":
        return PLAIN
    return 0 if isolation["is_isolated"] else ConfigError.exit_code


def _survey() -> Survey:
    """In a process of its own, without threads, as it forks."""
    command = [sys.executable, "-I", "-m", "aenv.engines.local.survey"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SURVEY_SECONDS, check=True)
    except subprocess.TimeoutExpired as problem:
        raise EngineUnavailable(f"this machine did not answer in {SURVEY_SECONDS:g} s") from problem
    except subprocess.CalledProcessError as problem:
        last = str(problem.stderr).strip().rpartition("\n")[2]
        hint = f"run `{' '.join(command)}` to see where it happened"
        raise EngineUnavailable(f"the survey broke off: {last}", hint=hint) from problem
    survey: Survey = json.loads(done.stdout)
    return survey


def _as_json(found: Survey) -> Json:
    whole: Json = json.loads(json.dumps(found))
    return whole


def _print(found: Survey) -> None:
    # click drops colours where there is no terminal; https://no-color.org is ours to honour.
    color = False if os.environ.get("NO_COLOR") else None
    isolation = found["isolation"]
    is_isolated = isolation is not None and isolation["is_isolated"]
    verdict = isolation["meaning"] if isolation is not None else "UNKNOWN: the trial broke off"
    click.echo(click.style(verdict, fg="green" if is_isolated else "red", bold=True), color=color)
    click.echo()
    table([{"part": part, "says": "\n".join(lines)} for part, lines in _parts(found).items()], {})


def _parts(found: Survey) -> dict[str, list[str]]:
    """What each part says; nothing for one that could not be found out."""
    parts = {
        "engine local": _tell(_isolation, found["isolation"]),
        "limits": _tell(_limits, found["limits"]),
        "network": _tell(_network, found["network"]),
        "gVisor": [f"runsc is {found['gvisor']}" if found["gvisor"] else "runsc is not installed"],
        "Python": _tell(_python, found["python"]),
        "data folder": _tell(_folder, found["data"]),
        "run folder": _tell(_folder, found["run"]) + _tell(_engines, found["engines"]),
        "settings": [_setting(part) for part in found["settings"]],
        "not found out": [f"{part}: {problem}" for part, problem in found["broken"].items()],
    }
    return {part: lines for part, lines in parts.items() if lines}


def _tell(how: Callable[[T], Iterator[str]], part: T | None) -> list[str]:
    return [] if part is None else list(how(part))


def _isolation(part: Isolation) -> Iterator[str]:
    mode = part["mode"]
    if mode is None:
        yield f"no sandbox starts: AENV_ISOLATION={part['asked']} cannot be met"
    else:
        yield f"mode {mode}: {_DETAILS[mode]}"
    yield from _notes(part["notes"])


def _limits(part: Allowance) -> Iterator[str]:
    if part["cgroups"] is not None:
        yield f"control groups, version {part['cgroups'].removeprefix('v')}: {', '.join(part['controllers'])}"
    else:
        yield "rlimits only: memory for each process rather than each sandbox, CPU without limit"
    if part["open_files"] is not None:
        yield f"{part['open_files']:,} open files: about {part['instances']:,} instances"
    if part["pid_max"] is not None:
        yield f"{part['pid_max']:,} processes on the whole machine (pid_max)"
    if part["memory_available_bytes"] is not None:
        yield f"{_size(part['memory_available_bytes'])} of memory available"
    yield from _notes(part["notes"])


def _network(part: Network) -> Iterator[str]:
    if part["public"] == "private":
        yield f"public: a network of its own by {part['tool']}; the host's loopback is closed"
    else:
        yield "public: the host's network; what listens on the host's loopback can be reached"
    yield f"allowlist, no-network: {'kept' if part['are_policies_kept'] else 'NOT kept without namespaces'}"
    yield from _notes(part["notes"])


def _python(part: Runtime) -> Iterator[str]:
    yield f"{part['version']}, {part['executable']}"
    if part["installer"] is not None:
        yield f"requirements.txt is installed with {part['installer']}"
    yield from _notes(part["notes"])


def _folder(part: Folder) -> Iterator[str]:
    more = "" if part["is_counted"] else "more than "
    state = f"{more}{_size(part['used_bytes'])} used" if part["exists"] else "not there yet"
    yield f"{part['path']}: {state}, {_size(part['free_bytes'])} free"
    yield from _notes(part["notes"])


def _engines(part: Engines) -> Iterator[str]:
    if part["running"]:
        yield f"engines running: {part['running']}"
    if part["dead"]:
        yield f"left by engines that died: {part['dead']}; the next one that starts takes it away"


def _setting(part: Setting) -> str:
    return f"{part['name']}={part['value']} from the {part['source']}; the default is {part['default']}"


def _notes(notes: Sequence[Note]) -> Iterator[str]:
    """Problems, and below those that go together what to do about them."""
    for remedy, group in groupby(notes, key=lambda note: note["remedy"]):
        yield from map(_problem, group)
        yield f"hint: {remedy}"


def _problem(note: Note) -> str:
    is_mode = note["about"] in ("root", "user")
    return f"mode {note['about']} cannot be had: {note['problem']}" if is_mode else note["problem"]


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
