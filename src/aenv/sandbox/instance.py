"""How a process that was forked off a zygote becomes the server of one instance.

`prepare` runs once, in the zygote, before there is any instance; `serve` runs in each sandbox, after it was shut in.
The engine that does the forking knows these two functions by name alone.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import select
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import aenv
from aenv.define.load import Plan, load
from aenv.define.registry import Registry
from aenv.errors import AEnvError, LoadError
from aenv.sandbox.__main__ import (
    arguments,
    assemble,
    check_extensions,
    choose_endpoint,
    leave,
    read_config,
    refuse,
    set_variables,
)
from aenv.sandbox.endpoint import Identity, MakeEndpoint
from aenv.sandbox.log import CapturedStream, InstanceLog, capture
from aenv.sandbox.obedience import Copier, Obedience, note_variables, read_frame, send_frame
from aenv.sandbox.orphans import Orphans
from aenv.sandbox.rehearsal import rehearse, rehearse_alone
from aenv.sandbox.server import Server, launch, obey_signals, start

_LOG = 100
"""Where the log's own descriptor is, clear of those that a sandbox is handed."""
_REHEARSALS = 20
_MOST_MODULES = 5000


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every instance of the zygote starts from: all that can be made before one has a name."""

    project: Path
    options: argparse.Namespace
    config: dict[str, object]
    speak: MakeEndpoint
    plan: Plan
    log: InstanceLog
    streams: list[CapturedStream]
    registry: Registry
    is_loaded: bool
    server: Server
    identity: Identity
    modules: frozenset[str]


class ThreadsLeft(LoadError):
    """A module left threads running when it was imported, and no fork would have them; `details["culprit"]`."""

    code = "load.threads_left"


def prepare(project: str, modules: list[str], *, preload: bool, reaps: bool) -> tuple[Prepared, list[str]]:
    """Import what instances will import; returns it with a note for each module that could not be.

    The project's own code is loaded only where its author asked for that with `preload`. Whoever `reaps` will be the
    first process of its pid namespace.
    """
    notes = [note for name in modules if (note := _import(name)) is not None]
    folder = Path(project)
    options = arguments().parse_args([project])
    config = read_config(folder)
    set_variables(config)
    speak = choose_endpoint(options, config)
    log, streams = capture(options.log_level, lowest=_LOG)
    # What authors import from us is loaded when first asked for.
    for name in aenv.__all__:
        getattr(aenv, name)
    registry = Registry()
    plan = Plan.make(folder)
    plan.compile()
    if preload:
        plan.load(registry)
        check_extensions(registry, speak)
        _check_threads("the project's own code")
    server, identity = assemble(options, config, registry, streams, speak)
    obey_signals(server)
    server.rest()
    rehearse_alone(_REHEARSALS)
    if reaps:
        server.executor.orphans = Orphans(server.loop)
    known = frozenset(sys.modules)
    return Prepared(
        folder, options, config, speak, plan, log, streams, registry, preload, server, identity, known
    ), notes


def _import(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except BaseException as problem:  # noqa: BLE001 - somebody's module: it will be imported again where it is used
        return f"{name}: {type(problem).__name__}: {problem}"
    _check_threads(name)
    return None


def _check_threads(name: str) -> None:
    count = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - after every module
    if count > 1:
        raise ThreadsLeft(f"importing {name} left {count - 1} threads running, which no fork has", culprit=name)


def serve(
    descriptors: list[int],
    folder: str,
    prepared: Prepared,
    variables: dict[str, str],
    *,
    learns: bool,
    practises: bool,
    note: str | None = None,
    copier: Copier | None = None,
) -> NoReturn:
    """Wait for the order that makes this sandbox an instance, then serve it until it is killed.

    The descriptors are the control socket, the listening socket and, if there is one, the sandbox's file system, which
    the supervisor is given to look at. One that `practises` has to wait, and uses the time. Its variables are written
    to the file `note`, for commands that are run beside the server.
    """
    control, listener = (socket.socket(fileno=descriptor) for descriptor in descriptors[:2])
    server = _awake(prepared)
    if practises and not select.select([control], [], [], 0)[0]:
        rehearse(server)
    _take_order(control, variables)

    def report(message: dict[str, object]) -> None:
        message["op"] = "failed" if "error" in message else "ready"
        if learns:
            message["modules"] = _learned(prepared, folder)
        send_frame(control, message, descriptors[2:])
        for descriptor in descriptors[2:]:
            os.close(descriptor)

    try:
        _load(Path(folder), prepared)
    except AEnvError as error:
        leave(refuse(error, prepared.log, report))

    def ready() -> None:
        Obedience(server, control, copier, note).begin()
        report({})

    start(server, [listener], ready)
    if note is not None:
        # Nobody can have asked for a command yet, and whoever waits for us need not wait for this.
        note_variables(note)
    server.loop.wait()
    leave(0)


def _awake(prepared: Prepared) -> Server:
    server = prepared.server
    server.wake()
    prepared.log.renew()
    _reseed()
    launch(server)
    return server


def _take_order(control: socket.socket, variables: dict[str, str]) -> None:
    order = read_frame(control)
    if order is None:
        # Nobody needed this one.
        os._exit(0)
    for name, value in {**variables, **order["variables"]}.items():
        # One by one: `update` goes through abstract classes, whose pages every sandbox would pay for.
        os.environ[name] = value
    sys.argv[1:] = order["arguments"]


def _load(folder: Path, prepared: Prepared) -> None:
    """Load the project's tools, with as much of it done as the zygote could do."""
    if prepared.is_loaded:
        return
    if folder == prepared.project:
        prepared.plan.load(prepared.registry)
    else:
        load(folder, prepared.registry)
    check_extensions(prepared.registry, prepared.speak)


def _learned(prepared: Prepared, folder: str) -> list[str]:
    """The modules that loading the project brought, its own left out: the next zygote imports them beforehand."""
    found = [name for name in list(sys.modules) if name not in prepared.modules and _is_foreign(name, folder)]
    return found[:_MOST_MODULES]


def _is_foreign(name: str, folder: str) -> bool:
    spec = getattr(sys.modules[name], "__spec__", None)
    origin = getattr(spec, "origin", None)
    return origin is not None and name != "__main__" and not origin.startswith(f"{folder}/")


def _reseed() -> None:
    """Instances that a preloaded library's random numbers come from one state must not draw the same ones."""
    for name, seed in (("numpy.random", "seed"), ("torch", "seed")):
        if (module := sys.modules.get(name)) is not None:
            getattr(module, seed)()
