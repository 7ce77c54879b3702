"""How a process that was forked off a zygote becomes the server of one instance.

`prepare` runs once, in the zygote, before there is any instance; `serve` runs in each sandbox, after it was shut in.
The engine that does the forking knows these two functions by name alone.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from aenv._util import jsontext
from aenv.define.load import load
from aenv.define.registry import Registry
from aenv.sandbox.__main__ import arguments, boot, leave, read_config, set_variables
from aenv.sandbox.log import capture
from aenv.sandbox.server import Server

_LENGTH = 4
_LARGEST = 64 << 20
_MOST_MODULES = 5000


@dataclass(frozen=True, slots=True)
class Prepared:
    """What every instance of the zygote starts from."""

    options: argparse.Namespace
    modules: frozenset[str]
    registry: Registry | None


def prepare(project: str, modules: list[str], *, preload: bool) -> tuple[Prepared, list[str]]:
    """Import what instances will import; returns it with a note for each module that could not be.

    The project's own code is loaded only where its author asked for that with `preload`.
    """
    notes = [note for name in modules if (note := _import(name)) is not None]
    registry = None
    if preload:
        set_variables(read_config(Path(project)))
        registry = load(Path(project))
    return Prepared(arguments().parse_args([project]), frozenset(sys.modules), registry), notes


def _import(name: str) -> str | None:
    try:
        importlib.import_module(name)
    except BaseException as problem:  # noqa: BLE001 - somebody's module: it will be imported again where it is used
        return f"{name}: {type(problem).__name__}: {problem}"
    return None


def serve(descriptors: list[int], folder: str, prepared: Prepared, variables: dict[str, str]) -> NoReturn:
    """Wait for the order that makes this sandbox an instance, then serve it until it is killed.

    The descriptors are the control socket, the listening socket and, if there is one, the sandbox's file system, which
    the supervisor is given to look at.
    """
    control = socket.socket(fileno=descriptors[0])
    order = _receive(control)
    if order is None:
        # Nobody needed this one.
        os._exit(0)
    os.environ.clear()
    os.environ.update(variables)
    os.environ.update(order["variables"])
    sys.argv[1:] = order["arguments"]
    options = argparse.Namespace(**vars(prepared.options))
    options.project = Path(folder)
    options.fd = descriptors[1]
    options.name = order["name"]
    _reseed()
    log, streams = capture(options.log_level)

    def report(message: dict[str, object]) -> None:
        message = {"op": "failed" if "error" in message else "ready", **message}
        message["modules"] = _learned(prepared, folder)
        _send(control, message, descriptors[2:])
        for descriptor in descriptors[2:]:
            os.close(descriptor)

    def attach(server: Server) -> None:
        server.loop.watch(control.fileno(), lambda mask: _obey(control))

    leave(boot(options, log, streams, report, registry=prepared.registry, attach=attach))


def _obey(control: socket.socket) -> None:
    """The supervisor has nothing to say to a running instance yet, so this is its end; nobody else would end us."""
    with contextlib.suppress(BlockingIOError):
        if not control.recv(1):
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


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


def _receive(control: socket.socket) -> dict[str, Any] | None:
    head = _read(control, _LENGTH)
    return None if head is None else jsontext.loads(_read(control, int.from_bytes(head, "little")) or b"null")


def _read(control: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = control.recv(min(size, _LARGEST))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(control: socket.socket, message: dict[str, object], descriptors: list[int]) -> None:
    text = jsontext.dumps(message)
    frame = len(text).to_bytes(_LENGTH, "little") + text
    sent = socket.send_fds(control, [frame], descriptors)
    control.sendall(frame[sent:])
