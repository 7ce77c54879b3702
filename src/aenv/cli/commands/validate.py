"""`aenv validate`: what is wrong with a project, for people and for programs."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path

import click

from aenv.build.validate import validate as check
from aenv.build.validate.findings import CheckFailed, Finding, Level, Measured, Report, Severity
from aenv.build.validate.visit import Note
from aenv.cli.options import output_option, work_dir_option
from aenv.cli.output import Output, Progress, show
from aenv.cli.signals import ending_orderly
from aenv.errors import AEnvError

EXAMPLES = """
\b
Examples:
  aenv validate                  the project in this folder, run once
  aenv validate --level static   only read it; none of its code runs
  aenv validate --strict -o json for CI: warnings count, and one JSON object
"""

PATIENCE_SECONDS = 1.0

_COLORS: dict[Severity, str] = {"error": "red", "warning": "yellow", "info": "blue"}
_WIDEST = 100
# Where no terminal wraps lines, one finding stays one line that grep finds.
_UNBOUNDED = 100_000


@click.command(epilog=EXAMPLES)
@click.argument(
    "path",
    metavar="[PATH]",
    required=False,
    # Whether it can be read is for the check to say: exit code 3, not a wrong command line.
    type=click.Path(exists=True, file_okay=False, readable=False, path_type=Path),
)
@work_dir_option
@click.option(
    "--level",
    type=click.Choice(["static", "runtime"]),
    default="runtime",
    show_default=True,
    help="Only read the files, or run the project as well.",
)
@output_option
@click.option("--strict", is_flag=True, help="Exit with 1 on warnings, too.")
def validate(path: Path | None, work_dir: Path, level: Level, output: Output, strict: bool) -> int:
    """Check a project and say what to correct.

    PATH is its folder; --work-dir says the same.

    Exits with 0 if there are no errors, 1 if there are, 3 if the checks could not be made.
    """
    folder = work_dir if path is None else path
    with ending_orderly(), _watching(folder) as note:
        report = _check(folder, level, note)
    if output == "table":
        _print(report)
    else:
        show(report.to_dict(), output=output)
    summary = report.summary()
    return 1 if summary["error"] or (strict and summary["warning"]) else 0


def _check(folder: Path, level: Level, note: Note) -> Report:
    try:
        return check(folder, level=level, note=note)
    except AEnvError:
        raise
    except OSError as problem:
        raise CheckFailed(f"the project cannot be run here: {problem}") from problem
    except Exception as problem:  # the boundary: a slip of ours must not look like a finding about the project
        raise CheckFailed(
            f"the checks broke off with {type(problem).__name__}: {problem}",
            hint="this is a mistake in aenv; run `aenv --debug validate` to see where it happened",
        ) from problem


@contextmanager
def _watching(folder: Path) -> Iterator[Note]:
    """Show on a terminal what is being done, once it has taken a while."""
    if not sys.stderr.isatty():
        yield lambda doing: None
        return
    display = Progress(f"checking {folder}")
    with ExitStack() as stack:
        timer = threading.Timer(PATIENCE_SECONDS, stack.enter_context, [display])
        timer.start()
        try:
            yield display.describe
        finally:
            timer.cancel()
            timer.join()


def _print(report: Report) -> None:
    # click drops colours where there is no terminal; https://no-color.org is ours to honour.
    color = False if os.environ.get("NO_COLOR") else None
    width = min(shutil.get_terminal_size().columns, _WIDEST) if sys.stdout.isatty() else _UNBOUNDED
    for code, group in groupby(report.findings, key=lambda finding: finding.code):
        for line in _layout(code, list(group), width):
            click.echo(line, color=color)
    for line in _closing(report, width):
        click.echo(line, color=color)


def _layout(code: str, findings: list[Finding], width: int) -> Iterator[str]:
    """The code once, below it each place with what is wrong there, and what to do once where that is the same."""
    severity = findings[0].severity
    yield f"{click.style(f'{severity}:', fg=_COLORS[severity], bold=True)} {click.style(code, bold=True)}"
    remedies = {finding.remedy for finding in findings}
    for finding in findings:
        first, *rest = _wrap(f"{finding.where} {finding.message}", width, "  ")
        yield first.replace(finding.where, click.style(finding.where, bold=True), 1)
        yield from rest
        if len(remedies) > 1:
            yield from _hint(finding.remedy, width, "    ")
    if len(remedies) == 1:
        yield from _hint(findings[0].remedy, width, "  ")
    yield ""


def _hint(remedy: str, width: int, indent: str) -> Iterator[str]:
    if remedy:
        first, *rest = _wrap(f"hint: {remedy}", width, indent)
        yield first.replace("hint:", click.style("hint:", fg="cyan"), 1)
        yield from rest


def _wrap(text: str, width: int, indent: str) -> Iterator[str]:
    """The first line wrapped, the rest as it is: it is somebody's code."""
    first, *rest = _plain(text).split("\n")
    deeper = f"{indent}  "
    yield from textwrap.wrap(
        first, width, initial_indent=indent, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False
    )
    yield from (f"{deeper}{line}" for line in rest)


def _closing(report: Report, width: int) -> Iterator[str]:
    if report.is_partial:
        yield from _wrap("the project was not run: correct the errors above first, then look again", width, "")
    if report.measured is not None:
        yield from _wrap(_figures(report.measured), width, "")
    summary = report.summary()
    counts = [_count(summary[severity], severity) for severity in ("error", "warning") if summary[severity]]
    verdict = ", ".join(counts) or click.style("no errors, no warnings", fg="green")
    yield f"{verdict} in {report.duration_s:.1f} s"


def _figures(measured: Measured) -> str:
    facts = [f"ready after {measured.start_s:.2f} s"]
    if measured.peak_bytes is not None:
        facts.append(f"{measured.peak_bytes >> 20} MiB of {measured.memory_limit_bytes >> 20} MiB memory")
    if measured.health_s is not None:
        facts.append(f"/health in {measured.health_s * 1000:.0f} ms")
    return f"measured: {', '.join(facts)}"


def _count(number: int, severity: Severity) -> str:
    return click.style(f"{number} {severity}{'s' if number > 1 else ''}", fg=_COLORS[severity], bold=True)


def _plain(text: str) -> str:
    """The text without control characters: an author's message must not steer the reader's terminal."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text)
