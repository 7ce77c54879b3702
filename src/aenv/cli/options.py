"""Options and argument types that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from aenv.model.ref import EnvRef

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


class RefType(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only, and 8.1 is our floor
    """An argument such as `my-env` or `my-env@1.0.0`; RefError, with its hint, for anything else."""

    name = "ref"

    def convert(self, value: str | EnvRef, param: click.Parameter | None, ctx: click.Context | None) -> EnvRef:
        """Parse the text; a default may be an EnvRef already."""
        return value if isinstance(value, EnvRef) else EnvRef.parse(value)
