"""How an error looks on stderr: `error: ...`, then `hint: ...`. Knows click only, so that start-up stays light."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from aenv.errors import AEnvError


def report(message: str, hint: str | None = None, *, above: Iterable[str] = ()) -> None:
    """Print an error; `above` are lines that lead up to it, such as an author's own traceback."""
    # click drops colours where there is no terminal; https://no-color.org is ours to honour.
    color = False if os.environ.get("NO_COLOR") else None
    for line in above:
        click.echo(line, err=True, color=color)
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True, color=color)
    if hint:
        click.echo(f"{click.style('hint:', fg='cyan')} {hint}", err=True, color=color)


def report_error(error: AEnvError) -> None:
    """Print one of our own errors, below the frames of the author's code if it carries any."""
    lines = error.details.get("traceback")
    report(error.message, error.hint, above=map(str, lines) if isinstance(lines, list) else ())
