"""The engine's own process: it owns zygotes, sandboxes, groups and sockets, and ends with whoever started it.

One thread, no secrets kept: an instance's variables pass through to its sandbox and are not remembered. Its owner talks
to it over one socket; when that is closed, or the owner is gone, everything below ends and nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial

from aenv.engines.local import gvisor, linux, processes
from aenv.engines.local.frames import Decoder, Message, encode
from aenv.engines.local.joining import Command
from aenv.engines.local.keeper import Keeper
from aenv.engines.local.leases import Lease
from aenv.engines.local.limits import Limits, rlimits
from aenv.engines.local.machine import Choice, choose
from aenv.engines.local.nursery import Nursery
from aenv.engines.local.reactor import Outbox, Reactor
from aenv.engines.local.sandbox import Sandbox
from aenv.engines.local.usernet import resolv_conf
from aenv.errors import AEnvError, EngineUnavailable

_AT_ONCE = 1 << 18
_UNREAD = 8 << 20


class Supervisor:
    """See the module's first lines."""

    def __init__(self, owner: socket.socket, choice: Choice, lease: Lease, *, log_bytes: int) -> None:
        self.reactor = Reactor()
        self._choice = choice
        self._lease = lease
        self._owner = owner
        self._outbox = Outbox(self.reactor, owner)
        self._decoder = Decoder()
        self._nurseries: dict[str, Nursery] = {}
        self._keeper = Keeper(self.reactor, choice.mode, lease, log_bytes=log_bytes, on_forgotten=self._finish_if_empty)
        self._commands: dict[int, Command] = {}
        self._is_closing = False
        self._parent = -1

    @property
    def controllers(self) -> frozenset[str]:
        """What control groups limit here."""
        return self._keeper.cgroups.controllers if self._keeper.cgroups is not None else frozenset()

    def run(self) -> None:
        """Serve the owner until it is gone."""
        self._owner.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self.reactor.watch(self._owner.fileno(), self._read)
        self._parent = os.pidfd_open(os.getppid())
        self.reactor.watch(self._parent, self._close)
        self._hear_of_children()
        signal.signal(signal.SIGTERM, lambda number, frame: self._close())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kind = self._keeper.cgroups.kind if self._keeper.cgroups is not None else None
        hello = {"mode": self._choice.mode, "obstacles": self._choice.obstacles, "lease": self._lease.name}
        self._send({"event": "hello", **hello, "cgroups": kind, "controllers": sorted(self.controllers)})
        self.reactor.run()

    def _hear_of_children(self) -> None:
        """Be told when any child ends, adopted ones included: a zombie keeps its pid namespace from ending."""
        wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)

        def heard() -> None:
            os.read(wake_in, 4096)
            self._reap_adopted()

        self.reactor.watch(wake_in, heard)

    # the owner

    def _read(self) -> None:
        try:
            part = self._owner.recv(_AT_ONCE)
        except BlockingIOError:
            return
        except ConnectionResetError:
            part = b""
        if not part:
            self._close()
            return
        for message, blob in self._decoder.feed(part):
            operation: Callable[[Message, bytes], None] = getattr(self, f"_do_{message['op']}")
            try:
                operation(message, blob)
            except AEnvError as problem:
                self._fail(message, problem.to_wire())
            except OSError as problem:
                # The machine refuses something; that is this request's trouble, not that of all others.
                self._fail(message, {"error": str(problem), "code": "engine.error"})

    def _send(self, message: Message, blob: bytes = b"") -> None:
        self._outbox.send(encode(message, blob))

    def _answer(self, request: Message, blob: bytes = b"", **members: object) -> None:
        self._send({"token": request["token"], **members}, blob)

    def _fail(self, request: Message, error: Message) -> None:
        self._send({"token": request["token"], "error": error})

    def _close(self) -> None:
        """End everything: zygotes with all below them first, then what the kernel does not clean up by itself."""
        if self._is_closing:
            return
        self._is_closing = True
        # Both stay readable for good, and would have us look again and again.
        self.reactor.unwatch(self._owner.fileno())
        self.reactor.unwatch(self._parent)
        for nursery in self._nurseries.values():
            nursery.close()
        for sandbox in list(self._keeper.sandboxes.values()):
            sandbox.is_stopping = True
            self._keeper.kill(sandbox)
            if sandbox.pidfd < 0:
                self._keeper.bury(sandbox)
        self._finish_if_empty()

    def _zygote_ended(self) -> None:
        self._reap_adopted()
        self._finish_if_empty()

    def _reap_adopted(self) -> None:
        """What a dead process leaves behind comes to us, its subreaper."""
        for pid in processes.children() - self.reactor.children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    def _finish_if_empty(self) -> None:
        if not self._is_closing or self.reactor.is_stopped or self._keeper.sandboxes:
            return
        if not any(one.zygotes for one in self._nurseries.values()):
            self._keeper.close()
            self._lease.end()
            self.reactor.stop()

    # what the owner asks for

    def _do_environment(self, request: Message, blob: bytes) -> None:
        key = request["key"]
        if key not in self._nurseries:
            order = self._complete(request["order"])
            if order["isolation"] == "gvisor":
                order["runsc"] = self._require_gvisor(order)
            nursery = Nursery(key, order, self._keeper, lambda modules: self._learned(key, modules))
            nursery.on_ended = self._zygote_ended
            self._nurseries[key] = nursery
        self._answer(request)

    def _require_gvisor(self, order: Message) -> str:
        if self._choice.mode == "process":
            raise EngineUnavailable("gVisor needs namespaces, and this machine gives none", hint="see `aenv doctor`")
        if order["command"]:
            raise EngineUnavailable("gVisor runs the built-in server alone", hint="leave isolation or command out")
        return gvisor.require()

    def _complete(self, order: Message) -> Message:
        """What only we know: the mode, the place to compose a root, and the limits that no group holds."""
        limits = Limits(**order["limits"])
        is_boxed = self._choice.mode != "process"
        held = rlimits(limits, controllers=self.controllers, own_user_namespace=is_boxed)
        environ = order["environ"] | ({} if is_boxed else {processes.VARIABLE: self._lease.path("")[:-1]})
        request = {**order["request"], "rlimits": held}
        order = {
            **order,
            "mode": self._choice.mode,
            "root": self._lease.path("root"),
            "environ": environ,
            "request": request,
        }
        return {**order, **self._network(order)}

    def _network(self, order: Message) -> Message:
        """How the environment's policy is carried out here."""
        if self._choice.mode == "process":
            return {"policy": "host", "has_own_network": False, "announces": False}
        tool = self._keeper.networks.user_net() if order["policy"] == "usernet" else None
        if order["policy"] == "usernet" and tool is None:
            return {"policy": "host", "has_own_network": False, "announces": False}
        nameservers = resolv_conf(tool.tool) if tool is not None else order["nameservers"]
        announces = order["policy"] in ("proxy", "usernet")
        return {"has_own_network": order["policy"] != "host", "announces": announces, "nameservers": nameservers}

    def _learned(self, key: str, modules: list[str]) -> None:
        self._send({"event": "learned", "key": key, "modules": modules})

    def _do_warm(self, request: Message, blob: bytes) -> None:
        self._nurseries[request["key"]].keep_spares(request["count"])
        self._answer(request)

    def _do_start(self, request: Message, blob: bytes) -> None:
        if self._is_closing:
            self._fail(request, {"error": "the engine is closing", "code": "engine.lost"})
            return
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is not None:
            self._join(sandbox, request)
            return
        nursery = self._nurseries[request["key"]]
        spare = nursery.spares.popleft() if nursery.spares else None
        sandbox = spare or self._keeper.take_kit(nursery)
        self._keeper.name(sandbox, request["id"], blob)
        self._join(sandbox, request)
        self._begin(sandbox, is_spare=spare is not None)

    def _join(self, sandbox: Sandbox, request: Message) -> None:
        """Answer when it is ready, or has ended without."""
        sandbox.askers.add(request["token"])
        if sandbox.state == "ready":
            self._tell_ready(sandbox, request)
        else:
            sandbox.waiters.ready.append(partial(self._tell_ready, sandbox, request))

    def _begin(self, sandbox: Sandbox, *, is_spare: bool) -> None:
        if is_spare:
            # Somebody forks it already, or has.
            self._keeper.activate(sandbox)
            return
        try:
            sandbox.nursery.place(sandbox)
        except OSError as problem:
            hint = "raise the limit of open files or processes, or stop instances"
            sandbox.failure = {"code": "engine.start_failed", "error": str(problem), "hint": hint}
            self._keeper.bury(sandbox)

    def _do_give_up(self, request: Message, blob: bytes) -> None:
        """Somebody who asked for it no longer waits; the last one to do so ends it."""
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is not None and request["token"] in sandbox.askers:
            sandbox.askers.discard(request["token"])
            if not sandbox.askers:
                sandbox.is_stopping = True
                self._keeper.kill(sandbox)

    def _do_settle(self, request: Message, blob: bytes) -> None:
        """Answered when nothing is left of one that nobody asks for."""
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is None or sandbox.askers:
            self._answer(request)
        else:
            sandbox.waiters.ended.append(partial(self._answer, request))

    def _tell_ready(self, sandbox: Sandbox, request: Message) -> None:
        if sandbox.state == "ready":
            self._send({"token": request["token"], "path": sandbox.path, "name": sandbox.name, **sandbox.metadata})
        else:
            self._fail(request, {**self._keeper.obituary(sandbox), **(sandbox.failure or {})})

    def _do_poll(self, request: Message, blob: bytes) -> None:
        if request["id"] in self._keeper.by_id:
            self._answer(request, exit=None)
        else:
            lost = {"reason": "lost", "message": "the engine knows no such sandbox", "code": None, "log_tail": ""}
            self._answer(request, exit=self._keeper.ended.get(request["id"], lost))

    def _do_list(self, request: Message, blob: bytes) -> None:
        ready = [one for one in self._keeper.by_id.values() if one.state == "ready"]
        live = [[one.id, one.path, one.name, one.nursery.order["user"], one.metadata["start"]] for one in ready]
        self._answer(request, sandboxes=live)

    def _do_stop(self, request: Message, blob: bytes) -> None:
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is None:
            self._answer(request)
            return
        sandbox.waiters.ended.append(partial(self._answer, request))
        sandbox.is_stopping = True
        if request["grace"] > 0 and sandbox.state == "ready":
            self._keeper.ask_to_end(sandbox)
            self.reactor.later(request["grace"], partial(self._keeper.kill, sandbox))
        else:
            self._keeper.kill(sandbox)

    def _do_usage(self, request: Message, blob: bytes) -> None:
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is None:
            self._answer(request, usage={})
            return
        group = sandbox.group
        usage: Message = {"storage_bytes": sandbox.storage_bytes(), "breaches": self._keeper.breaches(sandbox)}
        if group is not None:
            usage |= {"memory_bytes": group.memory_bytes(), "cpu_seconds": group.cpu_seconds()}
            usage |= {"processes": group.processes()}
        self._answer(request, usage=usage)

    def _do_logs(self, request: Message, blob: bytes) -> None:
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is None:
            ended = self._keeper.ended.get(request["id"])
            text = ended["log_tail"].encode() if ended is not None else b""
            self._answer(request, text[-request["tail"] :] if request["tail"] is not None else text, end=True)
            return
        self._answer(request, sandbox.log.tail(request["tail"]), end=not request["follow"])
        if request["follow"]:
            sandbox.log.followers.append(partial(self._push, request))
            sandbox.waiters.ended.append(partial(self._answer, request, end=True))

    def _push(self, request: Message, chunk: bytes) -> None:
        # Whoever follows slowly misses some; the log itself is kept, and the supervisor's memory is everybody's.
        if self._outbox.size < _UNREAD:
            self._answer(request, chunk, end=False)

    def _do_unfollow(self, request: Message, blob: bytes) -> None:
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is not None:
            sandbox.log.followers = [one for one in sandbox.log.followers if not _is_for(one, request["token"])]
            sandbox.waiters.ended = [one for one in sandbox.waiters.ended if not _is_for(one, request["token"])]

    def _do_exec(self, request: Message, blob: bytes) -> None:
        sandbox = self._keeper.by_id.get(request["id"])
        if sandbox is not None and sandbox.process is not None:
            told = "commands cannot be run in a sandbox of gVisor from outside it"
            self._fail(request, {"error": told, "code": "engine.unavailable"})
            return
        if sandbox is None or sandbox.state != "ready" or sandbox.is_dead:
            gone = self._keeper.ended.get(request["id"], {})
            self._fail(
                request, {"error": f"there is no sandbox {request['id']}", "code": "engine.sandbox_gone", **gone}
            )
            return

        def done(code: int, stdout: bytes, stderr: bytes, *, is_late: bool, is_truncated: bool) -> None:
            self._commands.pop(request["token"], None)
            members = {"code": code, "is_late": is_late, "is_truncated": is_truncated, "first": len(stdout)}
            self._answer(request, stdout + stderr, **members)

        request["user"] = sandbox.nursery.order["user"]
        command = Command(self.reactor, sandbox, request, blob, done, is_boxed=self._choice.mode != "process")
        self._commands[request["token"]] = command
        command.start()

    def _do_cancel(self, request: Message, blob: bytes) -> None:
        if (command := self._commands.get(request["token"])) is not None:
            command.cancel()

    def _do_fork(self, request: Message, blob: bytes) -> None:
        source = self._keeper.by_id.get(request["id"])
        if source is None or source.state != "ready":
            self._fail(request, {"code": "engine.sandbox_gone", "error": f"there is no sandbox {request['id']}"})
        elif request["copy"] in self._keeper.by_id:
            taken = f"there is a sandbox {request['copy']} already"
            told = {"error": taken, "hint": "give every copy an id of its own", "details": {"obstacles": [taken]}}
            self._fail(request, {"code": "engine.fork_refused", **told})
        elif self._choice.mode == "process" or not source.nursery.order["forkable"]:
            self._fail(request, _cannot_be_copied(source, is_boxed=self._choice.mode != "process"))
        else:
            order = {"wait_seconds": request["wait_seconds"], "variables": request["variables"]}
            copy = self._keeper.copy(source, request["copy"], order)
            copy.askers.add(request["token"])
            copy.waiters.ready.append(partial(self._tell_ready, copy, request))


def _cannot_be_copied(source: Sandbox, *, is_boxed: bool) -> Message:
    if not is_boxed:
        reason, hint = "it has no namespaces", "see `aenv doctor`"
    elif source.process is not None or source.nursery.order["command"]:
        reason, hint = "it is held by gVisor, or runs a command of its own", "leave isolation and command out"
    else:
        reason, hint = "its environment does not ask for it", 'set "forkable": true in deployConfig'
    told = {"error": f"cannot be copied: {reason}", "hint": hint, "details": {"obstacles": [reason]}}
    return {"code": "engine.fork_refused", **told}


def _is_for(waiter: Callable[..., None], token: int) -> bool:
    return isinstance(waiter, partial) and bool(waiter.args) and waiter.args[0]["token"] == token


def main(descriptor: int, isolation: str, run: str, log_bytes: int) -> None:
    """Supervise on behalf of the process at the other end of the socket."""
    owner = socket.socket(fileno=descriptor)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    linux.become_subreaper()
    os.umask(0o077)
    try:
        choice = choose(isolation)
        lease = Lease.take(run)
    except AEnvError as problem:
        owner.sendall(encode({"event": "hello", **problem.to_wire()}))
        return
    # Nobody of the same user, so no plain sandbox either, may look into this process.
    linux.set_dumpable(0)
    Supervisor(owner, choice, lease, log_bytes=log_bytes).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
