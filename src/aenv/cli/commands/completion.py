"""`aenv completion`."""

from __future__ import annotations

import sys

import click
from click.shell_completion import get_completion_class

# Where each shell looks when it starts.
_ENABLE = {
    "bash": """echo 'eval "$(aenv completion bash)"' >> ~/.bashrc""",
    "zsh": """echo 'eval "$(aenv completion zsh)"' >> ~/.zshrc""",
    "fish": "aenv completion fish > ~/.config/fish/completions/aenv.fish",
}
_EPILOG = "\b\nTo enable it for good:\n" + "".join(f"  {command}\n" for command in _ENABLE.values())


@click.command(epilog=_EPILOG)
@click.argument("shell", type=click.Choice(list(_ENABLE)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a shell's completion script."""
    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root()
    # Straight to click: this runs whenever a shell starts, and rich would double the time it takes.
    click.echo(kind(root.command, {}, "aenv", "_AENV_COMPLETE").source())
    if sys.stdout.isatty():
        click.echo(f"hint: to enable it for good, run {_ENABLE[shell]}", err=True)
