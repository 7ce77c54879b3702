"""`aenv version`."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import click

from aenv._version import __version__
from aenv.cli.output import show, write


@click.command()
@click.option("-s", "--short", is_flag=True, help="Print the version number alone.")
@click.option("-j", "--json", "as_json", is_flag=True, help="Print one JSON object.")
def version(short: bool, as_json: bool) -> None:
    """Show what is installed."""
    if short:
        write(__version__)
        return
    facts = {
        "aenv": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "location": str(Path(__file__).parents[2]),
    }
    show(facts, output="json" if as_json else "table")
