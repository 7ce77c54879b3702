"""Options and argument types that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="How to print the result.",
)

work_dir_option = click.option(
    "-w",
    "--work-dir",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    default=".",
    show_default=True,
    help="Folder to work in.",
)
