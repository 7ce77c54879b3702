"""The life of sandboxes as the supervisor keeps it: made, told what to be, listened to, taken away to the last bit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from aenv._util import jsontext
from aenv.engines.local import processes
from aenv.engines.local.frames import Message
from aenv.engines.local.leases import Lease
from aenv.engines.local.limits import Cgroups, Group, Limits
from aenv.engines.local.machine import Mode
from aenv.engines.local.networks import Networks
from aenv.engines.local.nursery import Nursery
from aenv.engines.local.reactor import Outbox, Reactor
from aenv.engines.local.sandbox import Log, Sandbox, Waiters
from aenv.engines.local.verdict import as_code, verdict

_AT_ONCE = 1 << 18
_BACKLOG = 1024
_REMEMBERED = 4096
_TAIL = 16 << 10
_CODE_SECONDS = 0.5
_LOST_TRIES = 3


class Keeper:
    """Holds every sandbox of one supervisor."""

    def __init__(
        self, reactor: Reactor, mode: Mode, lease: Lease, *, log_bytes: int, on_forgotten: Callable[[], None]
    ) -> None:
        self.reactor = reactor
        self.mode = mode
        self.cgroups = Cgroups.find(lease.name)
        self.networks = Networks(reactor)
        self.sandboxes: dict[str, Sandbox] = {}
        """All that live, by their own names; spares and the nameless included."""
        self.by_id: dict[str, Sandbox] = {}
        self.ended: OrderedDict[str, Message] = OrderedDict()
        """How the last ones ended."""
        self._on_forgotten = on_forgotten
        self._lease = lease
        self._log_bytes = log_bytes
        self._shells: dict[str, Group] = {}
        self._numbers = 0
        self._tries: dict[str, int] = {}

    def close(self) -> None:
        """When nothing lives any more: what is for all."""
        self.networks.close()
        processes.reap_all()
        for shell in self._shells.values():
            shell.remove()
        if self.cgroups is not None:
            self.cgroups.close()

    def name(self, sandbox: Sandbox, id_: str, activation: bytes) -> None:
        """Make it the instance of this id, as the order says, as soon as it can be."""
        sandbox.id = id_
        sandbox.nursery.starting += 1
        sandbox.state = "starting"
        sandbox.activation = activation
        self.by_id[id_] = sandbox
        self.ended.pop(id_, None)

    def kill(self, sandbox: Sandbox) -> None:
        """End it; whoever waits for its end is told when nothing is left."""
        if sandbox.pidfd < 0:
            # Nobody forked it yet, or nobody told us so: what comes of it later finds its control socket closed.
            if sandbox.nursery.withdraw(sandbox) or sandbox.zygote is None:
                self.bury(sandbox)
            return
        if sandbox.has_live_copies():
            processes.end_beside(sandbox.pidfd)
        else:
            sandbox.kill()

    def ask_to_end(self, sandbox: Sandbox) -> None:
        """Have its server end in good order; one of ours is told, another program gets the signal for it."""
        if sandbox.outbox is None or sandbox.metadata["start"] != "forked":
            sandbox.kill(signal.SIGTERM)
        else:
            text = jsontext.dumps({"op": "end"})
            sandbox.outbox.send(len(text).to_bytes(4, "little") + text)

    def new_sandbox(self, nursery: Nursery) -> Sandbox:
        """One that is not forked yet, with all that it will need."""
        self._numbers += 1
        name = f"b{self._numbers}"
        sandbox = Sandbox(name, nursery, self._lease.path(f"{name}.sock"), Log(self._log_bytes))
        self.sandboxes[name] = sandbox
        if self.mode == "process":
            sandbox.folder = self._lease.path(name)
        if self.cgroups is not None:
            limits = Limits(**nursery.order["limits"])
            sandbox.group = self.cgroups.make(name, limits)
        return sandbox

    def take_kit(self, nursery: Nursery) -> Sandbox:
        """A sandbox to be forked; the next one is laid ready when there is a moment."""
        kit, nursery.kit = nursery.kit, None
        self.reactor.later(0.0, partial(self._lay_kit, nursery))
        return kit or self.new_sandbox(nursery)

    def _lay_kit(self, nursery: Nursery) -> None:
        if nursery.kit is not None or nursery.is_closed:
            return
        # The next start makes its own, and fails by itself if the machine has no room for it.
        with contextlib.suppress(OSError):
            kit = self.new_sandbox(nursery)
            try:
                kit.ends = self.descriptors_of(kit)
            except OSError:
                self.bury(kit)
                raise
            nursery.kit = kit

    def descriptors_of(self, sandbox: Sandbox) -> list[int]:
        """The other ends of what we hold, to be sent to the zygote."""
        if sandbox.ends:
            ends, sandbox.ends = sandbox.ends, []
            return ends
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
        if sandbox.group is not None and sandbox.nursery.order["forkable"]:
            entries = [*self._around(sandbox.nursery).open_entries(), *entries]
        self.reactor.watch(sandbox.log_pipe, partial(self._read_log, sandbox))
        self.reactor.watch(sandbox.control.fileno(), partial(self._read_control, sandbox))
        sandbox.outbox = Outbox(self.reactor, sandbox.control)
        return [theirs.detach(), listener.detach(), log_in, *entries]

    def _around(self, nursery: Nursery) -> Group:
        """Where the processes are that belong to no instance alone; author code can join it, so it has limits too."""
        assert self.cgroups is not None
        if nursery.key not in self._shells:
            limits = Limits(**nursery.order["limits"])
            self._shells[nursery.key] = self.cgroups.make(f"around{len(self._shells)}", limits)
        return self._shells[nursery.key]

    def release(self, sandbox: Sandbox) -> None:
        """Nobody wants it any more."""
        sandbox.is_stopping = True
        self.kill(sandbox)

    def born(self, sandbox: Sandbox) -> None:
        """It has a process."""
        self.reactor.watch(sandbox.pidfd, partial(self._died, sandbox))
        if sandbox.is_stopping:
            sandbox.kill()
            return
        # One that needs a way out says when it is shut in; it may have been quicker than its parent.
        sandbox.is_attached = not sandbox.nursery.order["announces"]
        self._attach(sandbox)
        self.activate(sandbox)
        if sandbox.state == "spare":
            sandbox.nursery.refill()

    def activate(self, sandbox: Sandbox) -> None:
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
            self._leave_folder(sandbox, tries)
            sandbox.nursery.place(sandbox)
            return
        sandbox.failure = {"code": "engine.start_failed", **error}
        self.bury(sandbox)

    def _leave_folder(self, sandbox: Sandbox, tries: int) -> None:
        """A process that was forked but never announced may still be at work in the folder of a plain sandbox."""
        if sandbox.folder is not None:
            shutil.rmtree(sandbox.folder, ignore_errors=True)
            sandbox.folder = self._lease.path(f"{sandbox.name}.{tries}")

    def _read_log(self, sandbox: Sandbox) -> None:
        if not sandbox.read_log():
            self.reactor.unwatch(sandbox.log_pipe)

    def _read_control(self, sandbox: Sandbox) -> None:
        assert sandbox.control is not None
        try:
            part, descriptors, _flags, _address = socket.recv_fds(sandbox.control, _AT_ONCE, 2)
        except BlockingIOError:
            return
        except OSError:
            part, descriptors = b"", []
        if not part:
            self.reactor.unwatch(sandbox.control.fileno())
            if sandbox.source is not None and sandbox.pidfd < 0:
                hint = "see the log's tail; copies of copies can be about 30 deep"
                error = {"error": "the copy ended before it was one", "hint": hint}
                sandbox.failure = {"code": "engine.fork_refused", **error}
                self.bury(sandbox)
            return
        for message in sandbox.receive(part):
            descriptors = self._take(sandbox, message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def _take(self, sandbox: Sandbox, message: Message, descriptors: list[int]) -> list[int]:
        """What it says; returns the descriptors that came along and nobody kept."""
        operation = message.get("op")
        if operation == "born" and sandbox.source is not None and sandbox.pidfd < 0 and len(descriptors) == 2:
            if processes.pid_of(descriptors[0]) == 0:
                sandbox.failure = {"code": "engine.fork_refused", "error": "the copy is no process"}
                self.bury(sandbox)
                return descriptors
            sandbox.pidfd, sandbox.box = descriptors
            self._copy_born(sandbox)
            return []
        if operation == "boxed" and not sandbox.is_attached and sandbox.door is None:
            sandbox.door = descriptors
            self._attach(sandbox)
            return []
        if operation == "ready" and sandbox.box < 0 and len(descriptors) == 1:
            sandbox.box = descriptors.pop()
        self._said(sandbox, message)
        return descriptors

    def _attach(self, sandbox: Sandbox) -> None:
        if sandbox.pidfd >= 0 and sandbox.door is not None:
            self.networks.attach(sandbox, sandbox.door, partial(self._attached, sandbox))

    def _attached(self, sandbox: Sandbox, problem: str | None) -> None:
        if problem is None:
            sandbox.is_attached = True
            self.activate(sandbox)
            if sandbox.early is not None:
                self._said(sandbox, sandbox.early)
        else:
            sandbox.failure = {"code": "engine.start_failed", "error": problem}
            sandbox.kill()

    def _said(self, sandbox: Sandbox, message: Message) -> None:
        """What a sandbox says is not to be trusted: it is shown, never obeyed."""
        if message.get("op") == "forked":
            self._forked(sandbox, message)
        elif message.get("op") == "over" and sandbox.state != "ended":
            sandbox.code = as_code(message.get("code"))
            self._over(sandbox)
        if sandbox.state != "starting" or sandbox.failure is not None:
            return
        if not sandbox.is_attached and message.get("op") == "ready":
            sandbox.early = message
            return
        if message.pop("op", None) == "ready":
            sandbox.nursery.starting -= 1
            sandbox.state = "ready"
            if "modules" in message:
                sandbox.nursery.learn(_names(message["modules"]))
            how = "spawned" if message.get("is_spawned") else "forked"
            sandbox.metadata = {"start": how if sandbox.process is None else "gvisor"}
            for tell in sandbox.waiters.ready:
                tell()
            sandbox.waiters.ready.clear()
            sandbox.nursery.refill()
        else:
            sandbox.failure = {"code": "engine.start_failed", "cause": message.get("code"), **_shown(message)}
            sandbox.kill()

    # copies

    def copy(self, source: Sandbox, id_: str, order: Message) -> Sandbox:
        """Have a live sandbox copied; whoever waits is told when the copy is ready, or why there is none."""
        copy = self.new_sandbox(source.nursery)
        self.name(copy, id_, b"")
        copy.source, copy.zygote = source, source.zygote
        copy.is_attached = not source.nursery.order["announces"]
        source.copies.add(copy)
        if copy.zygote is not None:
            copy.zygote.sandboxes.add(copy)
        text = jsontext.dumps({"op": "fork", "copy": copy.name, **order})
        assert source.outbox is not None
        source.outbox.send(len(text).to_bytes(4, "little") + text, self.descriptors_of(copy))
        return copy

    def _copy_born(self, copy: Sandbox) -> None:
        self.reactor.watch(copy.pidfd, partial(self._died, copy))
        if copy.is_stopping:
            copy.kill()
        else:
            self._attach(copy)

    def _forked(self, source: Sandbox, message: Message) -> None:
        copy = self.sandboxes.get(str(message.get("copy")))
        if copy is not None and copy.source is source and copy.state == "starting" and "error" in message:
            copy.failure = {"code": "engine.fork_refused", **_shown(message)}
            self.bury(copy)

    def _over(self, sandbox: Sandbox) -> None:
        """Its server has ended; its first process goes with it, unless copies need that one."""
        if sandbox.has_live_copies():
            self.bury(sandbox)
        else:
            sandbox.kill()

    # the end of sandboxes

    def _died(self, sandbox: Sandbox) -> None:
        self.reactor.unwatch(sandbox.pidfd)
        sandbox.is_dead = True
        if sandbox.is_husk:
            sandbox.is_husk = False
            os.close(sandbox.pidfd)
            sandbox.pidfd = -1
            self._drop(sandbox)
            self._on_forgotten()
            return
        if sandbox.process is not None:
            sandbox.code = sandbox.process.wait()
            self.reactor.children.discard(sandbox.process.pid)
        zygote = sandbox.zygote
        if sandbox.code is None and sandbox.source is None and zygote is not None and zygote.state == "ready":
            # Its parent says how it ended, in a moment; if that never comes, nobody knows.
            self.reactor.later(_CODE_SECONDS, partial(self.bury, sandbox))
        else:
            self.bury(sandbox)

    def exited(self, sandbox: Sandbox) -> None:
        """Its parent has seen its end, so nothing of the process is left."""
        sandbox.is_dead = True
        self.bury(sandbox)

    def bury(self, sandbox: Sandbox) -> None:
        """Take away all that is left of it, then tell."""
        if sandbox.state == "ended":
            return
        if sandbox.state == "starting":
            sandbox.nursery.starting -= 1
        sandbox.state = "ended"
        if sandbox.log_pipe >= 0:
            sandbox.drain_log()
        if sandbox.group is not None:
            sandbox.breaches = self.breaches(sandbox)
        elif sandbox.is_full():
            sandbox.breaches = {"disk_full": 1}
        if sandbox.id is not None:
            self.ended[sandbox.id] = self.obituary(sandbox)
            while len(self.ended) > _REMEMBERED:
                self.ended.popitem(last=False)
        self.networks.detach(sandbox)
        self._let_go(sandbox)
        self._clear(sandbox)

    def breaches(self, sandbox: Sandbox) -> dict[str, int]:
        """How often it has met each limit."""
        counted = sandbox.group.breaches() if sandbox.group is not None else {}
        return {**counted, "disk_full": 1} if sandbox.is_full() else counted

    def obituary(self, sandbox: Sandbox) -> Message:
        """How it ended."""
        reason, sentence = verdict(sandbox.code, sandbox.breaches, is_stopped=sandbox.is_stopping)
        tail = sandbox.log.tail(_TAIL).decode("utf-8", "backslashreplace")
        return {"reason": reason, "message": sentence, "code": sandbox.code, "log_tail": tail}

    def _let_go(self, sandbox: Sandbox) -> None:
        for descriptor in sandbox.ends:
            os.close(descriptor)
        sandbox.ends = []
        sandbox.is_husk = sandbox.state == "ended" and not sandbox.is_dead and sandbox.has_live_copies()
        for descriptor in (sandbox.log_pipe, sandbox.box, -1 if sandbox.is_husk else sandbox.pidfd):
            if descriptor >= 0:
                self.reactor.unwatch(descriptor)
                os.close(descriptor)
        sandbox.log_pipe = sandbox.box = -1
        if not sandbox.is_husk:
            sandbox.pidfd = -1
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
        if not sandbox.is_husk:
            self._drop(sandbox)
        self._tries.pop(sandbox.name, None)
        if sandbox.id is not None and self.by_id.get(sandbox.id) is sandbox:
            del self.by_id[sandbox.id]
        with contextlib.suppress(ValueError):
            sandbox.nursery.spares.remove(sandbox)
            sandbox.nursery.refill()
        for tell in [*sandbox.waiters.ready, *sandbox.waiters.ended]:
            tell()
        sandbox.waiters = Waiters()
        self._on_forgotten()

    def _drop(self, sandbox: Sandbox) -> None:
        """Nothing of it is left; neither need be of its source, if that waited for this alone."""
        self.sandboxes.pop(sandbox.name, None)
        if sandbox.zygote is not None:
            sandbox.zygote.forget(sandbox)
        source = sandbox.source
        if source is not None:
            source.copies.discard(sandbox)
            if source.is_husk and not source.has_live_copies():
                source.kill()


def _names(claimed: object) -> list[str]:
    """Module names, whatever a sandbox claims they are."""
    if not isinstance(claimed, list):
        return []
    return [name for name in claimed if isinstance(name, str) and all(part.isidentifier() for part in name.split("."))]


def _shown(message: Message) -> Message:
    return {name: message[name] for name in ("error", "hint", "details") if name in message}
