"""docs/reference/cli.md: every command and option, from click and argparse."""

from __future__ import annotations

import argparse
import inspect

import click

from aenv.cli.main import COMMANDS, PROGRAM, cli
from aenv.sandbox.__main__ import arguments
from pages.tables import MADE, code, table

_PAGE = """\
# Command line

{made}

`aenv` prints results on stdout and everything else on stderr. A failure is two lines, `error:` and `hint:`, and an exit
code: 0 done, 1 failed, 2 wrong command line, 3 wrong configuration or a check that could not be made, 4 not found,
130 interrupted. `aenv --debug COMMAND` adds the traceback. `NO_COLOR` is honoured.

## aenv

```text
{usage}
```

{options}

{commands}
## python -m aenv.sandbox

The server itself, as a container runs it. `python -m aenv.main` is the same with `--host 0.0.0.0` as the default and a
`--log-dir` that is accepted and ignored: images of earlier releases call it.

{sandbox}
"""


def render() -> str:
    """The text of the page."""
    root = cli.make_context(PROGRAM, [], resilient_parsing=True)
    return _PAGE.format(
        made=MADE,
        usage=cli.get_usage(root).removeprefix("Usage: "),
        options=_options(cli, root),
        commands="".join(_command(name, root) for name in COMMANDS),
        sandbox=table(["option", "default", "meaning"], _flags(arguments())),
    )


def _command(name: str, root: click.Context) -> str:
    command = cli.get_command(root, name)
    assert command is not None
    ctx = click.Context(command, info_name=name, parent=root)
    about = inspect.cleandoc(command.help or "")
    parts = [f"## aenv {name}", f"```text\n{command.get_usage(ctx).removeprefix('Usage: ')}\n```", about]
    parts.append(_options(command, ctx))
    if command.epilog:
        lines = inspect.cleandoc(command.epilog.replace("\b", "")).strip().splitlines()
        parts.append("```text\n" + "\n".join(inspect.cleandoc("\n".join(lines[1:])).splitlines()) + "\n```")
    return "\n\n".join(parts) + "\n\n"


def _options(command: click.Command, ctx: click.Context) -> str:
    records = [parameter.get_help_record(ctx) for parameter in command.get_params(ctx)]
    return table(["option", "meaning"], [(code(name), about) for name, about in filter(None, records) if about])


def _flags(parser: argparse.ArgumentParser) -> list[tuple[str, str, str]]:
    # argparse has no public way to walk its options.
    actions: list[argparse.Action] = vars(parser)["_actions"]
    return [_flag(action) for action in actions if action.dest != "help"]


def _flag(action: argparse.Action) -> tuple[str, str, str]:
    about, _, default = (action.help or "").partition(" (default: ")
    default = default.rstrip(")").replace("%(default)s", str(action.default))
    value = "{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper()
    names = ", ".join(action.option_strings)
    shown = names if action.nargs == 0 else f"{names} {value}".strip()
    return code(shown), default or (code(str(action.default)) if action.choices and action.default else ""), about
