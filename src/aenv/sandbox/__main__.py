"""`python -m aenv.sandbox PROJECT`: serve one environment until told to stop."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import socket
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from aenv._util.duration import parse_duration
from aenv._version import __version__
from aenv.define.load import load
from aenv.define.registry import Registry
from aenv.errors import AddressError, AEnvError, ConfigError
from aenv.sandbox.endpoint import Identity, MakeEndpoint, Options
from aenv.sandbox.execute import Policy
from aenv.sandbox.http import MAX_BODY
from aenv.sandbox.log import CapturedStream, InstanceLog, capture
from aenv.sandbox.loop import Loop
from aenv.sandbox.mcp import Mcp
from aenv.sandbox.server import Server, open_listener, open_unix_listener, serve, url_of

LEAVE_SECONDS = 5.0
_RUNTIMES = ("core", "official")


def arguments(prog: str = "python -m aenv.sandbox", host: str = "127.0.0.1") -> argparse.ArgumentParser:
    """The command line; the older entry point differs in its name and in where it listens."""
    parser = argparse.ArgumentParser(prog=prog, description="Serve one environment over MCP and HTTP.")
    parser.add_argument("project", type=Path, help="folder that holds config.json and src/, or one .py file")
    parser.add_argument("--host", default=host, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=_within(0, 65535), default=8081, help="port, 0 for any free one (default: %(default)s)"
    )
    parser.add_argument("--uds", type=Path, help="listen on this unix socket instead")
    parser.add_argument("--fd", type=int, help="serve this listening socket, opened by the parent")
    parser.add_argument("--name", help="name to report (default: the one in config.json)")
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])
    parser.add_argument("--tool-timeout", help='longest time of one call, such as "90s" (default: 1h)')
    parser.add_argument(
        "--tool-threads", type=_within(1, 10_000), default=256, help="sync calls at once (default: %(default)s)"
    )
    parser.add_argument(
        "--max-body", type=_within(1, 2**40), default=MAX_BODY, help="largest request body (default: %(default)s)"
    )
    parser.add_argument("--no-traceback", action="store_true", help="keep the author's frames out of error answers")
    parser.add_argument("--log-calls", action="store_true", help="write a line to the log for every call")
    parser.add_argument("--runtime", choices=_RUNTIMES, help="what speaks MCP (default: mcpRuntime, or core)")
    parser.add_argument("--inspector", action="store_true", help="serve the inspector page at /inspector")
    parser.add_argument("--lifeline-fd", type=int, help="end when this pipe's other end is closed, with every child")
    parser.add_argument("--ready-fd", type=int, help="write one JSON line to this descriptor when ready, or failed")
    parser.add_argument("--version", action="version", version=f"aenv {__version__}")
    return parser


def _within(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    return number


def main(argv: list[str] | None = None) -> int:
    """Run the server; 0 after an orderly end, else the error's exit code."""
    options = arguments().parse_args(argv)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Load, listen, serve."""
    log, streams = capture(options.log_level)
    return boot(options, log, streams, lambda message: _report(options.ready_fd, message))


def boot(
    options: argparse.Namespace,
    log: InstanceLog,
    streams: list[CapturedStream],
    report: Callable[[dict[str, object]], None],
) -> int:
    """Serve the project; `report` is told when it answers, or why it never will."""
    try:
        config = read_config(options.project)
        speak = choose_endpoint(options, config)
        listeners = _listeners(options)
        set_variables(config)
        registry = load(options.project)
        check_extensions(registry, speak)
        server, identity = assemble(options, config, registry, streams, speak)
        message = announcement(identity, registry, listeners)
        serve(server, listeners, lambda: report(message), lifeline=options.lifeline_fd)
    except AEnvError as error:
        return refuse(error, log, report)
    return 0


def refuse(error: AEnvError, log: InstanceLog, report: Callable[[dict[str, object]], None]) -> int:
    """Say why there will be no server, in the log and to whoever waits for it; the exit code."""
    lines = [f"error: {error.message}"]
    lines += [str(line) for line in _traceback(error)]
    lines += [f"hint: {error.hint}"] if error.hint else []
    log.write("ERROR", "aenv", "\n".join(lines))
    report(error.to_wire())
    return error.exit_code


def assemble(
    options: argparse.Namespace,
    config: dict[str, object],
    registry: Registry,
    streams: list[CapturedStream],
    speak: MakeEndpoint,
) -> tuple[Server, Identity]:
    """The server of a registry, which may still be empty, and what it says it is."""
    project = options.project.resolve()
    limits = _block(_block(config, "deployConfig"), "sandbox")
    timeout = options.tool_timeout or limits.get("toolTimeout") or "1h"
    identity = Identity(
        options.name or str(config.get("name", project.stem)),
        str(config.get("version", "0.0.0")),
        str(config["description"]) if config.get("description") else None,
    )
    settings = Options(
        project=project if project.is_dir() else project.parent,
        identity=identity,
        policy=Policy(_seconds(timeout), options.tool_threads, not options.no_traceback, options.log_calls),
        max_body=options.max_body,
        with_inspector=options.inspector,
    )
    return Server(registry, settings, Loop(), streams, speak), identity


def announcement(identity: Identity, registry: Registry, listeners: list[socket.socket]) -> dict[str, object]:
    """What whoever waits for the server is told."""
    return {
        "url": url_of(listeners[0]),
        "name": identity.name,
        "version": identity.version,
        "pid": os.getpid(),
        "tools": [tool.name for tool in registry.visible_tools()],
        "rewards": list(registry.rewards),
        "functions": list(registry.functions),
        "health": registry.health.name if registry.health else None,
    }


def choose_endpoint(options: argparse.Namespace, config: dict[str, object]) -> MakeEndpoint:
    """Who speaks MCP; the official package is imported by those alone who ask for it."""
    name = options.runtime or _block(_block(config, "deployConfig"), "sandbox").get("mcpRuntime") or "core"
    if name not in _RUNTIMES:
        raise ConfigError(f"deployConfig.sandbox.mcpRuntime is {name!r}", hint=f"use {' or '.join(_RUNTIMES)}")
    if name == "core":
        return Mcp
    try:
        official: MakeEndpoint = import_module("aenv.sandbox.official").Official
    except ImportError as problem:
        raise ConfigError("the official MCP runtime needs the extra: pip install 'aenvironment[mcp]'") from problem
    return official


def check_extensions(registry: Registry, speak: MakeEndpoint) -> None:
    """Refuse a project that extends what does not speak for it."""
    if speak is Mcp and registry.mcp_extensions:
        names = ", ".join(extension.__name__ for extension in registry.mcp_extensions)
        raise ConfigError(
            f"the project extends the official MCP server (@extend_mcp {names}), and runs on the built-in one",
            hint='set "mcpRuntime": "official" in deployConfig.sandbox of config.json, or give --runtime official',
        )


def _listeners(options: argparse.Namespace) -> list[socket.socket]:
    if options.fd is not None:
        try:
            return [socket.socket(fileno=options.fd)]
        except OSError as problem:
            raise AddressError(f"descriptor {options.fd} is no socket: {problem.strerror}") from problem
    if options.uds is not None:
        return [open_unix_listener(options.uds)]
    return [open_listener(options.host, options.port)]


def read_config(project: Path) -> dict[str, object]:
    """The project's config.json, read loosely: what it says was checked before it came here."""
    file = (project if project.is_dir() else project.parent) / "config.json"
    if not file.is_file() and file.parent.name == "src":
        file = file.parent.parent / "config.json"
    if not file.is_file():
        return {}
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError as problem:
        raise ConfigError(f"{file}: {problem}", hint="run `aenv validate`") from problem
    return config if isinstance(config, dict) else {}


def set_variables(config: dict[str, object]) -> None:
    """The environment's own variables, under those that whoever starts it has set."""
    for name, value in _block(_block(config, "deployConfig"), "environmentVariables").items():
        os.environ.setdefault(name, str(value))


def _block(config: dict[str, object], name: str) -> dict[str, object]:
    block = config.get(name)
    return block if isinstance(block, dict) else {}


def _seconds(text: object) -> float:
    try:
        seconds = parse_duration(str(text))
    except ValueError as problem:
        raise ConfigError(f"tool timeout {text!r}: {problem}") from problem
    if seconds <= 0:
        raise ConfigError(f"tool timeout {text!r} leaves no time at all", hint='give one such as "90s"')
    return seconds


def _traceback(error: AEnvError) -> list[object]:
    lines = error.details.get("traceback")
    return lines if isinstance(lines, list) else []


def _report(descriptor: int | None, message: dict[str, object]) -> None:
    if descriptor is not None:
        with os.fdopen(descriptor, "w", encoding="utf-8") as channel:
            channel.write(json.dumps(message) + "\n")


def leave(code: int) -> NoReturn:
    """End the process, with the author's own endings, but without waiting for threads that author code left behind."""
    ending = threading.Thread(target=atexit._run_exitfuncs, daemon=True)  # noqa: SLF001 - there is no public way
    ending.start()
    ending.join(LEAVE_SECONDS)
    os._exit(code)


if __name__ == "__main__":
    leave(main())
