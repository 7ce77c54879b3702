"""`aenv run`: serve a project for its author, with its log, restarting when files change."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import click

from aenv.build.ports import port_holder
from aenv.build.project import Project, read
from aenv.build.serving import Served, StartFailed, served
from aenv.build.watching import Snapshot, changed, snapshot
from aenv.cli.options import work_dir_option
from aenv.cli.output import say
from aenv.cli.report import report_error
from aenv.cli.signals import ending_orderly
from aenv.errors import AddressError, AEnvError

LOOK_SECONDS = 0.3
INSPECTOR_PACKAGE = "@modelcontextprotocol/inspector@2"
NODE = 22

EXAMPLES = """
\b
Examples:
  aenv run                        serve the project in this folder on 127.0.0.1:8081
  aenv run --port 9000 --reload   on another port, restarting when a file is saved
  aenv run --inspector            with a page to try the tools out
  aenv run --quiet                for scripts: nothing but the address and problems
"""


@dataclass(frozen=True, slots=True)
class Options:
    """What the author asked for."""

    host: str
    port: int
    quiet: bool
    inspector: str | None


@click.command(epilog=EXAMPLES)
@work_dir_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8081, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 for a free one.")
@click.option("-q", "--quiet", is_flag=True, help="Print the address and problems, no log.")
@click.option("--reload", "reloads", is_flag=True, help="Start again when a file of the project changes.")
@click.option(
    "--inspector",
    is_flag=False,
    flag_value="page",
    type=click.Choice(["page", "mcp"]),
    help="A page to call tools on the same port; `mcp` starts the public MCP Inspector with npx instead.",
)
def run(work_dir: Path, host: str, port: int, quiet: bool, reloads: bool, inspector: str | None) -> int:
    """Serve a project on this machine until Ctrl-C.

    Clients reach it with DUMMY_INSTANCE_IP=http://localhost, any MCP client at /mcp.
    """
    project = read(work_dir)
    options = Options(host, port, quiet, inspector)
    if missing := project.missing_requirements():
        say(f"warning: not installed: {', '.join(missing)}; run `pip install -r requirements.txt`", style="yellow")
    if not _is_loopback(host):
        say(f"warning: whoever reaches {host} can call these tools: there is no authentication", style="yellow")
    try:
        with ending_orderly():
            if not reloads:
                return _serve_once(project, options)
            while True:
                _serve_until_change(work_dir, options)
    except KeyboardInterrupt:
        # The way to end it: not a failure.
        return 0


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _serve_once(project: Project, options: Options) -> int:
    with _serving(project, options) as server:
        code = server.process.wait()
    say(f"the server ended by itself with code {code}", style="red")
    return 1


def _serve_until_change(folder: Path, options: Options) -> None:
    """Serve what is there now; return when it changes. What does not start is told, and waits for a change too."""
    before = snapshot(folder)
    files: list[str] = []
    try:
        with _serving(read(folder), options):
            files = _await_change(folder, before)
    except AEnvError as error:
        if error.details.get("cause") == AddressError.code:
            raise
        report_error(error)
        say("waiting for a change", style="dim")
        files = _await_change(folder, before)
    shown = ", ".join(str(Path(file).relative_to(folder)) for file in files[:3])
    say(f"changed: {shown}; starting again", style="cyan")


def _await_change(folder: Path, before: Snapshot) -> list[str]:
    # Looking is what works everywhere: network folders and bind mounts send no events.
    while not (files := changed(before, snapshot(folder))):
        time.sleep(LOOK_SECONDS)
    return files


@contextmanager
def _serving(project: Project, options: Options) -> Iterator[Served]:
    """`served`, with what the author sees around it."""
    extra = ["--log-level", "WARNING"] if options.quiet else ["--log-calls"]
    if options.inspector == "page":
        extra.append("--inspector")
    log = _Log(quiet=options.quiet)
    try:
        with (
            served(project.folder, log=log, host=options.host, port=options.port, options=tuple(extra)) as server,
            ExitStack() as stack,
        ):
            _announce(server, options)
            _attach_inspector(stack, server, options)
            yield server
    except StartFailed as error:
        raise _with_holder(error, options.port) from error


class _Log:
    """Log lines as the author reads them; start-up errors are told by the error itself, not twice."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        stamp, _, rest = line.partition(" ")
        level, _, text = rest.strip().partition(" ")
        if text.lstrip().startswith("aenv "):
            return
        if self._quiet and level not in ("WARNING", "ERROR", "CRITICAL"):
            return
        styles = {"ERR": "yellow", "WARNING": "yellow", "ERROR": "red", "CRITICAL": "red", "DEBUG": "dim"}
        with self._lock:
            say(f"{stamp[11:23]} {text.strip()}" if stamp.endswith("Z") else line, style=styles.get(level, ""))


def _announce(server: Served, options: Options) -> None:
    say(f"{server.name}@{server.version} is served at {server.url}", style="bold green")
    if options.quiet:
        return
    for kind, names in (("tools", server.tools), ("rewards", server.rewards), ("functions", server.functions)):
        if names:
            say(f"  {kind:<9} {', '.join(names)}")
    say(f"  {'health':<9} {server.health or 'answers as long as the server does'}")
    say(f"  {'MCP':<9} {server.url}/mcp")
    if options.inspector == "page":
        say(f"  {'inspector':<9} {server.url}/inspector/")
    if not server.tools:
        say("no tools were found: put @register_tool above a function in src/", style="yellow")
    say("Ctrl-C ends it", style="dim")


def _with_holder(error: StartFailed, port: int) -> AEnvError:
    if error.details.get("cause") != AddressError.code:
        return error
    holder = port_holder(port)
    who = f": process {holder.pid} listens there ({holder.command[:80]})" if holder is not None else ""
    refused = AddressError(f"{error.message}{who}", hint=f"end it, or choose another port: aenv run --port {port + 1}")
    refused.details = {"cause": AddressError.code}
    return refused


def _attach_inspector(stack: ExitStack, server: Served, options: Options) -> None:
    if options.inspector != "mcp":
        return
    if (problem := _why_no_public_inspector()) is not None:
        say(f"the public MCP Inspector cannot be started: {problem}; `--inspector` has our own", style="red")
        return
    command = ["npx", "--yes", INSPECTOR_PACKAGE, "--transport", "http", "--server-url", f"{server.url}/mcp"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(os.killpg, process.pid, signal.SIGTERM)


def _why_no_public_inspector() -> str | None:
    if shutil.which("npx") is None:
        return "npx is not installed"
    node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    major = node.lstrip("v").partition(".")[0]
    if not major.isdigit() or int(major) < NODE:
        return f"it needs Node {NODE}, and here is {node or 'none'}"
    return None
