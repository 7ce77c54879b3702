"""Ways out for sandboxes with a network of their own: the proxy of `allowlist`, user-mode networking of `public`."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Literal

from aenv._util import jsontext
from aenv.engines.local.processes import pid_of
from aenv.engines.local.reactor import Outbox, Reactor
from aenv.engines.local.sandbox import Sandbox
from aenv.engines.local.usernet import UserNet, find

Policy = Literal["host", "none", "proxy", "usernet"]
"""How a sandbox reaches the world: by the host's own network, not at all, by a proxy, by user-mode networking."""
_READY_SECONDS = 10.0


class Networks:
    """Attaches sandboxes to the world, and takes it away with them."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._proxy: Proxy | None = None
        self._tool: UserNet | None = None
        self._has_looked = False

    def user_net(self) -> UserNet | None:
        """The tool for user-mode networking, looked for once."""
        if not self._has_looked:
            self._has_looked = True
            self._tool = find()
        return self._tool

    def attach(self, sandbox: Sandbox, descriptors: list[int], then: Callable[[str | None], None]) -> None:
        """Give a sandbox that is shut in its way out; `then` is told when it is there, or why it never will be."""
        order = sandbox.nursery.order
        if order["policy"] == "proxy":
            if self._proxy is None or self._proxy.is_gone:
                self._proxy = Proxy(self._reactor)
            self._proxy.serve(sandbox.name, order["allow"], descriptors)
            then(None)
        else:
            tool = self.user_net()
            assert tool is not None
            sandbox.way_out = UserNetProcess(self._reactor, tool, sandbox, then)

    def detach(self, sandbox: Sandbox) -> None:
        """End its way out."""
        if sandbox.way_out is not None:
            sandbox.way_out.end()
        elif self._proxy is not None and sandbox.nursery.order["policy"] == "proxy":
            self._proxy.drop(sandbox.name)

    def close(self) -> None:
        """End the proxy."""
        if self._proxy is not None:
            self._proxy.end()


class Proxy:
    """The process that `allowlist` sandboxes reach the world through. Without it they reach nothing."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-I", "-B", "-m", "aenv.engines.local.egress", "--fd", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        reactor.children.add(self._process.pid)
        self._channel.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self._outbox = Outbox(reactor, self._channel)
        self.is_gone = False
        reactor.watch(self._channel.fileno(), self._lost)

    def serve(self, name: str, allow: list[str], descriptors: list[int]) -> None:
        """Answer on this listener, which is in the sandbox."""
        self._outbox.send(jsontext.dumps({"op": "serve", "id": name, "allow": allow}), descriptors)

    def drop(self, name: str) -> None:
        """The sandbox is gone."""
        if not self.is_gone:
            self._outbox.send(jsontext.dumps({"op": "drop", "id": name}))

    def end(self) -> None:
        """At once."""
        self._process.kill()
        self._lost()

    def _lost(self) -> None:
        if not self.is_gone:
            self.is_gone = True
            self._reactor.unwatch(self._channel.fileno())
            self._channel.close()
            self._process.kill()
            self._process.wait()
            self._reactor.children.discard(self._process.pid)


class UserNetProcess:
    """The tool at work for one sandbox."""

    def __init__(self, reactor: Reactor, tool: UserNet, sandbox: Sandbox, then: Callable[[str | None], None]) -> None:
        self._reactor = reactor
        self._then: Callable[[str | None], None] | None = then
        self._ready, ready_in = os.pipe2(os.O_CLOEXEC)
        ends_out, self._ends = os.pipe2(os.O_CLOEXEC)
        self._process = subprocess.Popen(
            tool.command(pid_of(sandbox.pidfd), ready_in, ends_out, owner=_owner(sandbox)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[ready_in, ends_out],
            env={"PATH": os.environ["PATH"]},
            start_new_session=True,
        )
        reactor.children.add(self._process.pid)
        os.close(ready_in)
        os.close(ends_out)
        reactor.watch(self._ready, partial(self._heard, f"{tool.tool} could not give the sandbox a network"))
        reactor.later(_READY_SECONDS, partial(self._tell, f"{tool.tool} took more than {_READY_SECONDS:g} s"))

    def end(self) -> None:
        """Kill it; `is_gone` says when nothing is left."""
        self._then = None
        if self._ready >= 0:
            self._reactor.unwatch(self._ready)
            os.close(self._ready)
            self._ready = -1
        os.close(self._ends)
        # The tool of a sandbox may have a shell beside it; both are of one session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def is_gone(self) -> bool:
        """Whether nothing of it is left."""
        if self._process.poll() is None:
            return False
        self._reactor.children.discard(self._process.pid)
        return True

    def _heard(self, otherwise: str) -> None:
        told = os.read(self._ready, 4096)
        self._reactor.unwatch(self._ready)
        os.close(self._ready)
        self._ready = -1
        self._tell(None if told else otherwise)

    def _tell(self, problem: str | None) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(problem)


def _owner(sandbox: Sandbox) -> int | None:
    """A process in the user namespace to which the sandbox's network belongs, unless that is its own."""
    if sandbox.nursery.order["forkable"] or sandbox.zygote is None:
        return None
    return sandbox.zygote.process.pid
