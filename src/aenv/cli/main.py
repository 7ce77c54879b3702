"""The `aenv` command: finds a subcommand without importing the others, and gives every failure two lines and a code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from aenv._util.nearest import ask, nearest
from aenv._version import __version__
from aenv.cli.report import report, report_error
from aenv.errors import AEnvError

PROGRAM = "aenv"
INTERRUPTED = 130


class Entry(NamedTuple):
    """Where a subcommand lives (`module:attribute`) and what `aenv --help` says of it."""

    target: str
    help: str
    section: str


COMMANDS = {
    "init": Entry("aenv.cli.commands.init:init", "Create a project from a template.", "Project"),
    "run": Entry("aenv.cli.commands.run:run", "Serve a project on this machine until Ctrl-C.", "Project"),
    "test": Entry("aenv.cli.commands.test:test", "Serve a project and run its tests against it.", "Project"),
    "validate": Entry("aenv.cli.commands.validate:validate", "Check a project and say what to correct.", "Project"),
    "completion": Entry("aenv.cli.commands.completion:completion", "Print a shell's completion script.", "This tool"),
    "doctor": Entry("aenv.cli.commands.doctor:doctor", "Show what this machine gives sandboxes.", "This tool"),
    "version": Entry("aenv.cli.commands.version:version", "Show what is installed.", "This tool"),
}


class Flags:
    """The global options; a command asks for them with `click.pass_obj`."""

    # Not a dataclass: that module takes longer to import than the rest of this one.
    def __init__(self) -> None:
        self.debug = False
        self.verbose = False


class NoSuchCommand(click.UsageError):
    """A word that is not a subcommand; `possibilities` are the ones that look like it."""

    def __init__(self, name: str, ctx: click.Context) -> None:
        super().__init__(f"no such command {name!r}", ctx)
        self.possibilities = nearest(name, COMMANDS)


class LazyGroup(click.Group):
    """A group that imports a command when it is called, and knows the others by their line in the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            raise NoSuchCommand(args[0], ctx)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Commands first: they are what most readers look for."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One block per section, names in one column across all of them."""
        width = max(map(len, COMMANDS))
        for section in dict.fromkeys(entry.section for entry in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name.ljust(width), entry.help) for name, entry in COMMANDS.items() if entry.section == section]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names and help from the table: pressing tab must not import every command."""
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=COMMANDS[name].help) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("-v", "--verbose", is_flag=True, help="Log what happens to stderr.")
@click.option("--debug", is_flag=True, help="Log everything, and show tracebacks.")
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, verbose: bool, debug: bool) -> None:
    """Write, run and test environments for agents and reinforcement learning."""
    flags = ctx.ensure_object(Flags)
    flags.debug, flags.verbose = debug, verbose or debug
    if flags.verbose:
        level = "DEBUG" if debug else "INFO"
        log_format = "%(levelname)s %(name)s: %(message)s"
        importlib.import_module("logging").basicConfig(level=level, format=log_format, stream=sys.stderr)
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; a command may return one, or raise, or do neither."""
    flags = Flags()
    try:
        code = cli.main(args=args, prog_name=PROGRAM, obj=flags, standalone_mode=False)
    except Exception as error:  # noqa: BLE001 -- the outermost boundary: whatever arrives becomes lines and a code
        code = _conclude(error, flags)
    except KeyboardInterrupt:
        code = INTERRUPTED
    return _flush(code if isinstance(code, int) else 0)


def _flush(code: int) -> int:
    """Empty stdout now: a full disk is an error like any other, and a reader that went away is none of our business."""
    try:
        click.echo("", nl=False)
    except OSError as error:
        # The interpreter flushes again on its way out and would complain a second time:
        # https://docs.python.org/3/library/signal.html#note-on-sigpipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code == 0 and not isinstance(error, BrokenPipeError):
            report(f"cannot write to stdout: {error.strerror}")
        return code or 1
    return code


def _conclude(error: Exception, flags: Flags) -> int:
    if flags.debug and not isinstance(error, click.exceptions.Abort | click.UsageError):
        lines = importlib.import_module("traceback").format_exception(error)
        click.echo("".join(lines), err=True, nl=False)
    match error:
        case AEnvError():
            report_error(error)
            return error.exit_code
        case click.exceptions.Abort():
            return INTERRUPTED if isinstance(error.__context__, KeyboardInterrupt) else _refuse("aborted")
        case click.UsageError():
            report(_sentence(error), _usage_hint(error))
            return error.exit_code
        case click.ClickException():
            report(_sentence(error))
            return error.exit_code
    hint = None if flags.debug else f"run `{PROGRAM} --debug ...` to see where it happened"
    return _refuse(f"unexpected {type(error).__name__}: {error}", hint)


def _refuse(message: str, hint: str | None = None) -> int:
    report(message, hint)
    return 1


def _sentence(error: click.ClickException) -> str:
    """What click has to say, in the house's style: lower case first, no full stop."""
    text = error.message if _possibilities(error) else error.format_message()
    return text[:1].lower() + text[1:].rstrip(".")


def _usage_hint(error: click.UsageError) -> str | None:
    """The nearest word that would do, and where all of them are listed."""
    pointer = f"see `{error.ctx.command_path} --help`" if error.ctx is not None else None
    return " ".join(filter(None, [ask(_possibilities(error)), pointer])) or None


def _possibilities(error: click.ClickException) -> list[str]:
    return error.possibilities or [] if isinstance(error, click.NoSuchOption | NoSuchCommand) else []
