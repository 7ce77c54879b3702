"""What runs inside a gVisor sandbox: it becomes the sandbox's user, and serves connections that are handed in."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from types import ModuleType
from typing import Any, NoReturn

from aenv.engines.local.rootfs import BOX, HOME, PROJECT
from aenv.errors import AEnvError

_LENGTH = 4


class Door(socket.socket):
    """To a server this is a listener: connections come over it, accepted by the doorkeeper."""

    def accept(self) -> tuple[socket.socket, str]:
        """The next connection; BlockingIOError if there is none."""
        _text, descriptors, _flags, _address = socket.recv_fds(self, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not descriptors:
            # The doorkeeper is gone, and it goes first only where all ends.
            raise BlockingIOError
        return socket.socket(fileno=descriptors[0]), ""


def main(user: int) -> NoReturn:
    """Wait for the order that makes this sandbox an instance, then serve it until it is killed."""
    door = Door(fileno=os.dup(0))
    control, _address = door.accept()
    # Author code that reads its input finds none.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    _settle(user)
    program = importlib.import_module("aenv.sandbox.__main__")
    order = _receive(control)
    if order is None:
        # Nobody needed this one.
        os._exit(0)
    os.environ.update(order["variables"])
    sys.argv[1:] = order["arguments"]
    program.leave(_serve(program, door, control))
    raise AssertionError


def _serve(program: ModuleType, door: Door, control: socket.socket) -> int:
    """Serve the project as `python -m aenv.sandbox` does, but for where connections come from."""
    options = program.arguments().parse_args([PROJECT])
    log, streams = program.capture(options.log_level)

    def report(message: dict[str, object]) -> None:
        control.sendall(_frame({"op": "failed" if "error" in message else "ready", **message}))

    try:
        config = program.read_config(options.project)
        speak = program.choose_endpoint(options, config)
        program.set_variables(config)
        registry = program.load(options.project)
        program.check_extensions(registry, speak)
        server, identity = program.assemble(options, config, registry, streams, speak)
        message = program.announcement(identity, registry, [door])
        program.serve(server, [door], lambda: report(message))
    except AEnvError as error:
        return int(program.refuse(error, log, report))
    return 0


def _settle(user: int) -> None:
    """Own what an instance owns, and be nobody else from now on."""
    os.mkdir(f"{BOX}/run")  # noqa: PTH102 - where /run leads
    for top in (PROJECT, HOME, f"{BOX}/run"):
        for folder, _folders, files in os.walk(top):
            for path in (folder, *(f"{folder}/{name}" for name in files)):
                # Where users are mapped it is theirs already; a change takes a copy of the whole file.
                if os.lstat(path).st_uid != user:
                    os.chown(path, user, user, follow_symlinks=False)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _frame(message: dict[str, object]) -> bytes:
    text = json.dumps(message).encode()
    return len(text).to_bytes(_LENGTH, "little") + text


def _receive(control: socket.socket) -> dict[str, Any] | None:
    with control.makefile("rb") as file:
        head = file.read(_LENGTH)
        text = file.read(int.from_bytes(head, "little"))
    return json.loads(text) if text else None


if __name__ == "__main__":
    main(int(sys.argv[1]))
