"""The engine's own process: it owns zygotes, sandboxes, groups and sockets, and ends with whoever started it.

One thread, no secrets kept: an instance's variables pass through to its sandbox and are not remembered. Its owner talks
to it over one socket; when that is closed, or the owner is gone, everything below ends and nothing is left.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from aenv.engines.local import linux, processes
from aenv.engines.local.frames import Decoder, Message, encode
from aenv.engines.local.joining import Command
from aenv.engines.local.leases import Lease
from aenv.engines.local.limits import Cgroups, Limits, rlimits
from aenv.engines.local.machine import Choice, choose
from aenv.engines.local.networks import Networks
from aenv.engines.local.nursery import Nursery
from aenv.engines.local.reactor import Outbox, Reactor
from aenv.engines.local.sandbox import Sandbox
from aenv.engines.local.usernet import resolv_conf
from aenv.engines.local.verdict import verdict
from aenv.errors import AEnvError

_AT_ONCE = 1 << 18
_BACKLOG = 1024
_REMEMBERED = 4096
_TAIL = 16 << 10
_UNREAD = 8 << 20
_CODE_SECONDS = 0.5
_LOST_TRIES = 3


class Supervisor:
    """See the module's first lines."""

    def __init__(self, owner: socket.socket, choice: Choice, lease: Lease, *, log_bytes: int) -> None:
        self.reactor = Reactor()
        self.mode = choice.mode
        self._obstacles = choice.obstacles
        self._lease = lease
        self._log_bytes = log_bytes
        self._cgroups = Cgroups.find(lease.name)
        self._owner = owner
        self._outbox = Outbox(self.reactor, owner)
        self._decoder = Decoder()
        self._nurseries: dict[str, Nursery] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        """All that live, by their own names; spares and the nameless included."""
        self._by_id: dict[str, Sandbox] = {}
        self._ended: OrderedDict[str, Message] = OrderedDict()
        self._networks = Networks(self.reactor)
        self._numbers = 0
        self._is_closing = False
        self._tries: dict[str, int] = {}

    @property
    def controllers(self) -> frozenset[str]:
        """What control groups limit here."""
        return self._cgroups.controllers if self._cgroups is not None else frozenset()

    def run(self) -> None:
        """Serve the owner until it is gone."""
        self._owner.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self.reactor.watch(self._owner.fileno(), self._read)
        parent = os.pidfd_open(os.getppid())
        self.reactor.watch(parent, self._close)
        signal.signal(signal.SIGTERM, lambda number, frame: self._close())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kind = self._cgroups.kind if self._cgroups is not None else None
        hello = {"mode": self.mode, "obstacles": self._obstacles, "lease": self._lease.name}
        self._send({"event": "hello", **hello, "cgroups": kind, "controllers": sorted(self.controllers)})
        self.reactor.run()

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
        for nursery in self._nurseries.values():
            nursery.close()
        for sandbox in list(self._sandboxes.values()):
            sandbox.is_stopping = True
            self._kill(sandbox)
            if sandbox.pidfd < 0:
                self._bury(sandbox)
        self._finish_if_empty()

    def _zygote_ended(self) -> None:
        self._reap_adopted()
        self._finish_if_empty()

    def _reap_adopted(self, tries: int = 50) -> None:
        """What a dead process leaves behind comes to us, its subreaper; some of it ends a moment later."""
        adopted = processes.children() - self.reactor.children
        for pid in adopted:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if adopted and tries and not self._is_closing:
            self.reactor.later(0.02, partial(self._reap_adopted, tries - 1))

    def _finish_if_empty(self) -> None:
        if self._is_closing and not self._sandboxes and not any(one.zygotes for one in self._nurseries.values()):
            self._networks.close()
            processes.reap_all()
            if self._cgroups is not None:
                self._cgroups.close()
            self._lease.end()
            self.reactor.stop()

    # what the owner asks for

    def _do_environment(self, request: Message, blob: bytes) -> None:
        key = request["key"]
        if key not in self._nurseries:
            order = self._complete(request["order"])
            nursery = Nursery(key, order, self, lambda modules: self._learned(key, modules))
            nursery.on_ended = self._zygote_ended
            self._nurseries[key] = nursery
        self._answer(request)

    def _complete(self, order: Message) -> Message:
        """What only we know: the mode, the place to compose a root, and the limits that no group holds."""
        limits = Limits(**order["limits"])
        is_boxed = self.mode != "process"
        held = rlimits(limits, controllers=self.controllers, own_user_namespace=is_boxed)
        environ = order["environ"] | ({} if is_boxed else {processes.VARIABLE: self._lease.path("")[:-1]})
        request = {**order["request"], "rlimits": held}
        order = {**order, "mode": self.mode, "root": self._lease.path("root"), "environ": environ, "request": request}
        return {**order, **self._network(order)}

    def _network(self, order: Message) -> Message:
        """How the environment's policy is carried out here."""
        if self.mode == "process":
            return {"policy": "host", "has_own_network": False, "announces": False}
        tool = self._networks.user_net() if order["policy"] == "usernet" else None
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
        sandbox = self._by_id.get(request["id"])
        if sandbox is None:
            nursery = self._nurseries[request["key"]]
            nursery.starting += 1
            sandbox = self._take_spare(nursery) or self.new_sandbox(nursery)
            self._name(sandbox, request, blob)
            if sandbox.zygote is None:
                nursery.place(sandbox)
            else:
                self._activate(sandbox)
        if sandbox.state == "ready":
            self._tell_ready(sandbox, request)
        else:
            sandbox.waiters.ready.append(partial(self._tell_ready, sandbox, request))

    def _name(self, sandbox: Sandbox, request: Message, activation: bytes) -> None:
        sandbox.id = request["id"]
        sandbox.state = "starting"
        sandbox.activation = activation
        self._by_id[sandbox.id] = sandbox
        self._ended.pop(sandbox.id, None)

    def _take_spare(self, nursery: Nursery) -> Sandbox | None:
        return nursery.spares.popleft() if nursery.spares else None

    def _tell_ready(self, sandbox: Sandbox, request: Message) -> None:
        if sandbox.state == "ready":
            self._send({"token": request["token"], "path": sandbox.path, "name": sandbox.name, **sandbox.metadata})
        else:
            self._fail(request, {**self._obituary(sandbox), **(sandbox.failure or {})})

    def _do_poll(self, request: Message, blob: bytes) -> None:
        if request["id"] in self._by_id:
            self._answer(request, exit=None)
        else:
            lost = {"reason": "lost", "message": "the engine knows no such sandbox", "code": None, "log_tail": ""}
            self._answer(request, exit=self._ended.get(request["id"], lost))

    def _do_list(self, request: Message, blob: bytes) -> None:
        live = [[one.id, one.path, one.name] for one in self._by_id.values() if one.state == "ready"]
        self._answer(request, sandboxes=live)

    def _do_stop(self, request: Message, blob: bytes) -> None:
        sandbox = self._by_id.get(request["id"])
        if sandbox is None:
            self._answer(request)
            return
        sandbox.waiters.ended.append(partial(self._answer, request))
        sandbox.is_stopping = True
        if request["grace"] > 0 and sandbox.state == "ready":
            sandbox.kill(signal.SIGTERM)
            self.reactor.later(request["grace"], partial(self._kill, sandbox))
        else:
            self._kill(sandbox)

    def _kill(self, sandbox: Sandbox) -> None:
        if sandbox.pidfd < 0:
            # Nobody forked it yet, or nobody told us so: what comes of it later finds its control socket closed.
            if sandbox.nursery.withdraw(sandbox) or sandbox.zygote is None:
                self._bury(sandbox)
            return
        sandbox.kill()

    def _do_usage(self, request: Message, blob: bytes) -> None:
        sandbox = self._by_id.get(request["id"])
        if sandbox is None:
            self._answer(request, usage={})
            return
        group = sandbox.group
        usage: Message = {"storage_bytes": sandbox.storage_bytes(), "breaches": self._breaches(sandbox)}
        if group is not None:
            usage |= {"memory_bytes": group.memory_bytes(), "cpu_seconds": group.cpu_seconds()}
            usage |= {"processes": group.processes()}
        self._answer(request, usage=usage)

    def _do_logs(self, request: Message, blob: bytes) -> None:
        sandbox = self._by_id.get(request["id"])
        if sandbox is None:
            ended = self._ended.get(request["id"])
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
        sandbox = self._by_id.get(request["id"])
        if sandbox is not None:
            sandbox.log.followers = [one for one in sandbox.log.followers if not _is_for(one, request["token"])]
            sandbox.waiters.ended = [one for one in sandbox.waiters.ended if not _is_for(one, request["token"])]

    def _do_exec(self, request: Message, blob: bytes) -> None:
        sandbox = self._by_id.get(request["id"])
        if sandbox is None or sandbox.state != "ready" or sandbox.is_dead:
            gone = self._ended.get(request["id"], {})
            self._fail(
                request, {"error": f"there is no sandbox {request['id']}", "code": "engine.sandbox_gone", **gone}
            )
            return

        def done(code: int, stdout: bytes, stderr: bytes, *, is_late: bool, is_truncated: bool) -> None:
            members = {"code": code, "is_late": is_late, "is_truncated": is_truncated, "first": len(stdout)}
            self._answer(request, stdout + stderr, **members)

        Command(self.reactor, sandbox, request, blob, done, is_boxed=self.mode != "process").start()

    # making sandboxes

    def new_sandbox(self, nursery: Nursery) -> Sandbox:
        """One that is not forked yet, with all that it will need."""
        self._numbers += 1
        name = f"b{self._numbers}"
        sandbox = Sandbox(name, nursery, path=self._lease.path(f"{name}.sock"), log_bytes=self._log_bytes)
        self._sandboxes[name] = sandbox
        if self.mode == "process":
            sandbox.folder = self._lease.path(name)
        if self._cgroups is not None:
            limits = Limits(**nursery.order["limits"])
            sandbox.group = self._cgroups.make(name, limits)
        return sandbox

    def descriptors_of(self, sandbox: Sandbox) -> list[int]:
        """The other ends of what we hold, to be sent to the zygote."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(sandbox.path)  # noqa: PTH108 - no pathlib on the way of every start
        listener.bind(sandbox.path)
        listener.listen(_BACKLOG)
        sandbox.control, theirs = socket.socketpair()
        sandbox.control.setblocking(False)  # noqa: FBT003 - the socket's own signature
        sandbox.log_pipe, log_in = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(sandbox.log_pipe, False)
        entries = sandbox.group.open_entries() if sandbox.group is not None else []
        self.reactor.watch(sandbox.log_pipe, partial(self._read_log, sandbox))
        self.reactor.watch(sandbox.control.fileno(), partial(self._read_control, sandbox))
        sandbox.outbox = Outbox(self.reactor, sandbox.control)
        return [theirs.detach(), listener.detach(), log_in, *entries]

    def release(self, sandbox: Sandbox) -> None:
        """Nobody wants it any more."""
        sandbox.is_stopping = True
        self._kill(sandbox)

    def born(self, sandbox: Sandbox) -> None:
        """It has a process."""
        self.reactor.watch(sandbox.pidfd, partial(self._died, sandbox))
        if sandbox.is_stopping:
            sandbox.kill()
            return
        # One that needs a way out says when it is shut in.
        sandbox.is_attached = not sandbox.nursery.order["announces"]
        self._activate(sandbox)
        if sandbox.state == "spare":
            sandbox.nursery.refill()

    def _activate(self, sandbox: Sandbox) -> None:
        """Make it the instance that was asked for, once it has a process, a way out and a name."""
        if sandbox.state != "starting" or sandbox.pidfd < 0 or not sandbox.is_attached or not sandbox.activation:
            return
        assert sandbox.outbox is not None
        order, sandbox.activation = sandbox.activation, b""
        sandbox.outbox.send(len(order).to_bytes(4, "little") + order)

    def never_born(self, sandbox: Sandbox, error: dict[str, object]) -> None:
        """It will have none: another try, or the end of it."""
        tries = self._tries.get(sandbox.name, 0) + 1
        if error.get("is_lost") and tries < _LOST_TRIES and not sandbox.is_stopping:
            self._tries[sandbox.name] = tries
            self._let_go(sandbox)
            sandbox.zygote = None
            sandbox.nursery.place(sandbox)
            return
        sandbox.failure = {"code": "engine.start_failed", **error}
        self._bury(sandbox)

    def _read_log(self, sandbox: Sandbox) -> None:
        if not sandbox.read_log():
            self.reactor.unwatch(sandbox.log_pipe)

    def _read_control(self, sandbox: Sandbox) -> None:
        assert sandbox.control is not None
        try:
            part, descriptors, _flags, _address = socket.recv_fds(sandbox.control, _AT_ONCE, 1)
        except BlockingIOError:
            return
        except OSError:
            part, descriptors = b"", []
        if not part:
            self.reactor.unwatch(sandbox.control.fileno())
            return
        for message in sandbox.receive(part):
            if message.get("op") == "boxed" and not sandbox.is_attached and sandbox.pidfd >= 0:
                self._networks.attach(sandbox, descriptors, partial(self._attached, sandbox))
                descriptors = []
            else:
                self._said(sandbox, message)
        for descriptor in descriptors:
            if sandbox.box >= 0:
                os.close(descriptor)
            else:
                sandbox.box = descriptor

    def _attached(self, sandbox: Sandbox, problem: str | None) -> None:
        if problem is None:
            sandbox.is_attached = True
            self._activate(sandbox)
        else:
            sandbox.failure = {"code": "engine.start_failed", "error": problem}
            sandbox.kill()

    def _said(self, sandbox: Sandbox, message: Message) -> None:
        """What a sandbox says is not to be trusted: it is shown, never obeyed."""
        if sandbox.state != "starting":
            return
        if message.pop("op", None) == "ready":
            sandbox.nursery.starting -= 1
            sandbox.state = "ready"
            sandbox.nursery.learn(_names(message.pop("modules", None)))
            sandbox.metadata = {"pid": message.get("pid"), "tools": message.get("tools")}
            for tell in sandbox.waiters.ready:
                tell()
            sandbox.waiters.ready.clear()
            sandbox.nursery.refill()
        else:
            sandbox.failure = {"code": "engine.start_failed", "cause": message.get("code"), **_shown(message)}
            sandbox.kill()

    # the end of sandboxes

    def _died(self, sandbox: Sandbox) -> None:
        self.reactor.unwatch(sandbox.pidfd)
        sandbox.is_dead = True
        zygote = sandbox.zygote
        if sandbox.code is None and zygote is not None and zygote.state == "ready":
            # Its parent says how it ended, in a moment; if that never comes, nobody knows.
            self.reactor.later(_CODE_SECONDS, partial(self._bury, sandbox))
        else:
            self._bury(sandbox)

    def exited(self, sandbox: Sandbox) -> None:
        """Its parent has seen its end, so nothing of the process is left."""
        sandbox.is_dead = True
        self._bury(sandbox)

    def _bury(self, sandbox: Sandbox) -> None:
        """Take away all that is left of it, then tell."""
        if sandbox.state == "ended":
            return
        if sandbox.state == "starting":
            sandbox.nursery.starting -= 1
        sandbox.state = "ended"
        if sandbox.log_pipe >= 0:
            sandbox.drain_log()
        if sandbox.group is not None:
            sandbox.breaches = self._breaches(sandbox)
        elif sandbox.is_full():
            sandbox.breaches = {"disk_full": 1}
        if sandbox.id is not None:
            self._ended[sandbox.id] = self._obituary(sandbox)
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
        self._networks.detach(sandbox)
        self._let_go(sandbox)
        self._clear(sandbox)

    def _breaches(self, sandbox: Sandbox) -> dict[str, int]:
        counted = sandbox.group.breaches() if sandbox.group is not None else {}
        return {**counted, "disk_full": 1} if sandbox.is_full() else counted

    def _obituary(self, sandbox: Sandbox) -> Message:
        reason, sentence = verdict(sandbox.code, sandbox.breaches, is_stopped=sandbox.is_stopping)
        tail = sandbox.log.tail(_TAIL).decode("utf-8", "backslashreplace")
        return {"reason": reason, "message": sentence, "code": sandbox.code, "log_tail": tail}

    def _let_go(self, sandbox: Sandbox) -> None:
        for descriptor in (sandbox.log_pipe, sandbox.pidfd, sandbox.box):
            if descriptor >= 0:
                self.reactor.unwatch(descriptor)
                os.close(descriptor)
        sandbox.log_pipe = sandbox.pidfd = sandbox.box = -1
        if sandbox.control is not None:
            self.reactor.unwatch(sandbox.control.fileno())
            sandbox.control.close()
            sandbox.control = None

    def _clear(self, sandbox: Sandbox, wait: float = 0.0005) -> None:
        if sandbox.way_out is not None and not sandbox.way_out.is_gone():
            self.reactor.later(wait, partial(self._clear, sandbox, min(0.05, wait * 2)))
            return
        if sandbox.group is not None:
            if self.mode == "process":
                sandbox.group.kill()
            if not sandbox.group.remove():
                # The kernel gives a group free a moment after its last process, and tells nobody.
                sandbox.group.kill()
                self.reactor.later(wait, partial(self._clear, sandbox, min(0.05, wait * 2)))
                return
        if sandbox.folder is not None:
            processes.end_all(sandbox.folder, sandbox.pid)
            shutil.rmtree(sandbox.folder, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(sandbox.path)  # noqa: PTH108 - no pathlib on the way of every stop
        self._forget(sandbox)

    def _forget(self, sandbox: Sandbox) -> None:
        self._sandboxes.pop(sandbox.name, None)
        self._tries.pop(sandbox.name, None)
        if sandbox.zygote is not None:
            sandbox.zygote.forget(sandbox)
        if sandbox.id is not None and self._by_id.get(sandbox.id) is sandbox:
            del self._by_id[sandbox.id]
        with contextlib.suppress(ValueError):
            sandbox.nursery.spares.remove(sandbox)
            sandbox.nursery.refill()
        for tell in [*sandbox.waiters.ready, *sandbox.waiters.ended]:
            tell()
        self._finish_if_empty()


def _is_for(waiter: Callable[..., None], token: int) -> bool:
    return isinstance(waiter, partial) and bool(waiter.args) and waiter.args[0]["token"] == token


def _names(claimed: object) -> list[str]:
    """Module names, whatever a sandbox claims they are."""
    if not isinstance(claimed, list):
        return []
    return [name for name in claimed if isinstance(name, str) and all(part.isidentifier() for part in name.split("."))]


def _shown(message: Message) -> Message:
    return {name: message[name] for name in ("error", "hint", "details") if name in message}


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
