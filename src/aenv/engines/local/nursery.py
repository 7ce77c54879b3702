"""The zygotes of one prepared environment, as the supervisor sees them, and the sandboxes they are asked for."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, Protocol

from aenv._util import jsontext
from aenv.engines.local import gvisor, linux
from aenv.engines.local.processes import pid_of
from aenv.engines.local.reactor import Outbox, Reactor
from aenv.engines.local.sandbox import Log, Sandbox
from aenv.engines.local.users import FIRST_USER, USERS
from aenv.engines.local.verdict import as_code
from aenv.engines.local.zygote import FRUGAL

logger = logging.getLogger(__name__)

MOST_CHILDREN = 500
"""Pages that many processes share make each further fork slower; beyond this a sibling zygote takes over."""
_NEXT_AT = 350
_TRIES = 3
_SKIPS = 8
_LARGEST = 1 << 20
_REFILL_SECONDS = 0.02
_ROOM = "raise the limit of open files or processes, or stop instances; `aenv doctor` shows both"


class Home(Protocol):
    """What a nursery asks of the supervisor."""

    reactor: Reactor

    def new_sandbox(self, nursery: Nursery) -> Sandbox: ...

    def descriptors_of(self, sandbox: Sandbox) -> list[int]: ...

    def born(self, sandbox: Sandbox) -> None: ...

    def release(self, sandbox: Sandbox) -> None: ...

    def never_born(self, sandbox: Sandbox, error: dict[str, object]) -> None: ...

    def exited(self, sandbox: Sandbox) -> None: ...


class ZygoteProcess:
    """One fork server: starting, ready, or gone; a retired one takes no more requests."""

    def __init__(self, nursery: Nursery, home: Home) -> None:
        self.state: Literal["starting", "ready", "gone"] = "starting"
        self.is_retired = False
        self.modules = list(nursery.modules)
        self.sandboxes: set[Sandbox] = set()
        self.log = Log(1 << 16)
        self._by_pid: dict[int, Sandbox] = {}
        self._unborn: dict[str, Sandbox] = {}
        self._nursery = nursery
        self._home = home
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log_pipe, log_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The reader must not wait, the writer may.
        fcntl.fcntl(log_in, fcntl.F_SETFL, fcntl.fcntl(log_in, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        order = {**nursery.order, "modules": self.modules, "parent": os.getpid()}
        order["knows_modules"] = nursery.knows_modules
        is_boxed = order["mode"] != "process"
        # What an environment brings, variables and packages, is let in only where it is shut in; this half is ours.
        python = sys.executable if is_boxed else nursery.python
        environ = {"PATH": os.defpath, "LANG": "C.UTF-8"} if is_boxed else nursery.environ
        command = [python, "-I", "-B", "-m", "aenv.engines.local.zygote", str(theirs.fileno())]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log_in,
            stderr=log_in,
            env={**environ, **FRUGAL},
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd="/",
        )
        home.reactor.children.add(self.process.pid)
        self._hears: dict[str, Callable[[dict[str, Any], list[int]], None]] = {
            "map": self._on_map,
            "ready": self._on_ready,
            "failed": self._on_failed,
            "born": self._on_born,
            "refused": self._on_refused,
            "exited": self._on_exited,
        }
        theirs.close()
        os.close(log_in)
        self._channel.setblocking(False)  # noqa: FBT003 - the socket's own signature
        self.pidfd = os.pidfd_open(self.process.pid)
        self._outbox = Outbox(home.reactor, self._channel)
        home.reactor.watch(self._channel.fileno(), self._read)
        home.reactor.watch(self._log_pipe, self._read_log)
        home.reactor.watch(self.pidfd, self._ended)
        self._outbox.send(jsontext.dumps(order))

    def ask(self, sandbox: Sandbox) -> None:
        """Have it fork this sandbox."""
        self.sandboxes.add(sandbox)
        self._unborn[sandbox.name] = sandbox
        sandbox.zygote = self
        request = {**self._nursery.request, "folder": sandbox.folder}
        request["is_spare"] = sandbox.state == "spare"
        name = sandbox.name.encode().ljust(16)
        self._outbox.send(name + jsontext.dumps(request), self._home.descriptors_of(sandbox))

    def forget(self, sandbox: Sandbox) -> None:
        """Nothing of the sandbox is left."""
        self.sandboxes.discard(sandbox)
        self._unborn.pop(sandbox.name, None)
        if sandbox.pid is not None:
            self._by_pid.pop(sandbox.pid, None)
        if self.is_retired and not self.sandboxes:
            self.hang_up()

    def retire(self) -> None:
        """Take no more requests, and end when the last sandbox has."""
        self.is_retired = True
        if not self.sandboxes:
            self.hang_up()

    def hang_up(self) -> None:
        """Let the zygote end; its sandboxes live on until they are stopped."""
        if self._channel.fileno() >= 0:
            self._home.reactor.unwatch(self._channel.fileno())
            self._channel.close()
            self._outbox.drop()
        self.state = "gone"

    def kill(self) -> None:
        """End it with every sandbox below."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    def _read_log(self) -> None:
        try:
            chunk = os.read(self._log_pipe, 1 << 16)
        except BlockingIOError:
            return
        if chunk:
            self.log.add(chunk)
        else:
            self._home.reactor.unwatch(self._log_pipe)
            os.close(self._log_pipe)

    def _read(self) -> None:
        try:
            text, descriptors, _flags, _address = socket.recv_fds(self._channel, _LARGEST, 1)
        except BlockingIOError:
            return
        except OSError:
            text, descriptors = b"", []
        if not text:
            self._lost()
            return
        try:
            message = jsontext.loads(text)
            hear = self._hears[message["op"]]
            hear(message, descriptors)
        except (ValueError, KeyError, TypeError, IndexError, OSError):
            # Code of others runs in a zygote, and may say anything; it harms nobody but its own environment.
            logger.warning("a zygote talks nonsense and is ended", exc_info=True)
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            self.kill()

    def _on_map(self, message: dict[str, Any], descriptors: list[int]) -> None:
        for kind in ("uid", "gid"):
            linux.write_file(f"/proc/{self.process.pid}/{kind}_map", f"0 {FIRST_USER} {USERS}")
        self._outbox.send(b"{}")

    def _on_ready(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self.state = "ready"
        self._nursery.zygote_ready(self)

    def _on_failed(self, message: dict[str, Any], descriptors: list[int]) -> None:
        self.hang_up()
        self._nursery.zygote_failed(self, message)

    def _on_born(self, message: dict[str, Any], descriptors: list[int]) -> None:
        sandbox = self._unborn.pop(message["id"], None)
        if sandbox is None:
            for descriptor in descriptors:
                os.close(descriptor)
            return
        try:
            pid = pid_of(descriptors[0])
        except (IndexError, OSError):
            # This process has no descriptor left; the sandbox ends when its control socket is closed.
            for descriptor in descriptors:
                os.close(descriptor)
            self._home.never_born(sandbox, {"error": "no descriptor is left to hold it by", "hint": _ROOM})
            return
        if pid == 0:
            self._unborn[sandbox.name] = sandbox
            raise ValueError("no descriptor of a process")
        sandbox.pidfd, sandbox.pid = descriptors[0], int(message["pid"])
        self._by_pid[message["pid"]] = sandbox
        self._home.born(sandbox)

    def _on_refused(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if (sandbox := self._unborn.pop(message["id"], None)) is not None:
            error: dict[str, object] = {"error": f"no further process can be made: {message['error']}"}
            self._home.never_born(sandbox, error)

    def _on_exited(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if (sandbox := self._by_pid.pop(message["pid"], None)) is not None:
            sandbox.code = as_code(message["code"])
            self._home.exited(sandbox)

    def _lost(self) -> None:
        """The zygote is gone, though not by our wish; its sandboxes are not, unless its namespace went with it."""
        was_starting = self.state == "starting"
        self.hang_up()
        unborn = list(self._unborn.values())
        self._unborn.clear()
        if was_starting:
            self._nursery.zygote_failed(self, {"error": "the zygote was killed while it started", "is_lost": True})
        self._nursery.zygote_lost(self, unborn)

    def _ended(self) -> None:
        self._home.reactor.unwatch(self.pidfd)
        os.close(self.pidfd)
        self.process.wait()
        self._home.reactor.children.discard(self.process.pid)
        if self.state != "gone":
            self._lost()
        self._nursery.zygotes.remove(self)
        self._nursery.on_ended()


class Nursery:
    """All zygotes and spares of one environment."""

    def __init__(self, key: str, order: dict[str, Any], home: Home, learned: Callable[[list[str]], None]) -> None:
        self.key = key
        self.order = order
        self.python: str = order["python"]
        self.environ: dict[str, str] = order["environ"]
        self.request: dict[str, Any] = order["request"]
        self.modules: list[str] = order["modules"]
        self.zygotes: list[ZygoteProcess] = []
        self.spares: deque[Sandbox] = deque()
        self.kit: Sandbox | None = None
        """The next sandbox, with all that it will need, but no process."""
        self.wanted_spares = 0
        self.starting = 0
        """Sandboxes that somebody waits for."""
        self.on_ended: Callable[[], None] = lambda: None
        self.knows_modules: bool = order["knows_modules"]
        self._learned = learned
        self._home = home
        self._queue: deque[Sandbox] = deque()
        self._failures = 0
        self._is_filling = False
        self.is_closed = False
        self.plan = gvisor.Plan.of(order, order["runsc"]) if order["isolation"] == "gvisor" else None
        """How gVisor starts its sandboxes, if that is asked for."""

    def place(self, sandbox: Sandbox) -> None:
        """Have it forked as soon as a zygote can, or started by gVisor if that is to hold it."""
        if self.plan is not None:
            self._start_guest(sandbox, self.plan)
            return
        zygote = self._roomy()
        if zygote is None:
            self._queue.append(sandbox)
            self._ensure_one_starts()
        else:
            zygote.ask(sandbox)
            if len(zygote.sandboxes) >= _NEXT_AT and self._roomy(_NEXT_AT) is None:
                self._ensure_one_starts()

    def _start_guest(self, sandbox: Sandbox, plan: gvisor.Plan) -> None:
        descriptors = self._home.descriptors_of(sandbox)
        sandbox.process = gvisor.start(plan, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._home.reactor.children.add(sandbox.process.pid)
        sandbox.pidfd = os.pidfd_open(sandbox.process.pid)
        self._home.born(sandbox)

    def withdraw(self, sandbox: Sandbox) -> bool:
        """Whether it was still waiting for a zygote, and now no longer is."""
        with contextlib.suppress(ValueError):
            self._queue.remove(sandbox)
            return True
        return False

    def learn(self, modules: list[str]) -> None:
        """What the first instance imported, the next zygote imports beforehand."""
        if self.knows_modules:
            return
        self.knows_modules = True
        self.modules = modules
        self._learned(modules)
        if modules:
            self._start()

    def keep_spares(self, count: int) -> None:
        """Hold so many from now on."""
        self.wanted_spares = count
        while len(self.spares) > count:
            self._home.release(self.spares.pop())
        self.refill()

    def refill(self) -> None:
        """Make missing spares, one by one, and only while nobody waits for a sandbox."""
        if not self._is_filling and len(self.spares) < self.wanted_spares:
            self._is_filling = True
            self._home.reactor.later(_REFILL_SECONDS if self.starting else 0.0, self._fill)

    def _fill(self) -> None:
        self._is_filling = False
        if self.starting:
            self.refill()
        elif len(self.spares) < self.wanted_spares:
            try:
                sandbox = self._home.new_sandbox(self)
                self.spares.append(sandbox)
                self.place(sandbox)
            except OSError as problem:
                # A spare is a convenience; it is made when the machine has room for it again.
                logger.warning("no spare can be made: %s", problem)
                self._home.reactor.later(1.0, self.refill)

    def close(self) -> None:
        """End everything, and begin nothing."""
        self.is_closed = True
        self.wanted_spares = 0
        for zygote in self.zygotes:
            zygote.kill()

    def _roomy(self, most: int = MOST_CHILDREN) -> ZygoteProcess | None:
        for zygote in self.zygotes:
            if zygote.state == "ready" and not zygote.is_retired and len(zygote.sandboxes) < most:
                return zygote
        return None

    def _ensure_one_starts(self) -> None:
        if not any(zygote.state == "starting" for zygote in self.zygotes):
            self._start()

    def _start(self) -> None:
        if self.is_closed:
            return
        try:
            self.zygotes.append(ZygoteProcess(self, self._home))
        except OSError as problem:
            # The machine has no room for it now; those that wait are told, everybody else goes on.
            logger.warning("a zygote cannot be started: %s", problem)
            self._give_up_waiting({"error": f"no zygote can be started: {problem}", "hint": _ROOM})

    # what zygotes report

    def zygote_ready(self, zygote: ZygoteProcess) -> None:
        """It can fork from now on; those that know fewer modules are let go."""
        self._failures = 0
        for other in self.zygotes:
            if other is not zygote and other.state == "ready" and other.modules != zygote.modules:
                other.retire()
                for spare in [spare for spare in self.spares if spare.zygote is other]:
                    self.spares.remove(spare)
                    self._home.release(spare)
        waiting, self._queue = self._queue, deque()
        for sandbox in waiting:
            self.place(sandbox)
        self.refill()

    def zygote_failed(self, zygote: ZygoteProcess, message: dict[str, Any]) -> None:
        """It never got ready: try again without what stood in the way, or give up on those that wait."""
        self._failures += 1
        culprit = (message.get("details") or {}).get("culprit")
        if culprit is not None and self.order["preload"] and culprit not in self.modules:
            # Its own code starts threads: it is loaded in each sandbox, as it is without `preload`.
            self.order["preload"] = False
            self._start()
        elif culprit is not None and self._failures < _SKIPS:
            self.modules = [name for name in self.modules if name.partition(".")[0] != culprit.partition(".")[0]]
            self._learned(self.modules)
            self._start()
        elif message.get("is_lost") and self._failures < _TRIES:
            self._start()
        elif zygote.modules and self._failures < _SKIPS:
            # Whatever it was, it came with the modules; they are imported where they are used.
            self.modules = []
            self._start()
        else:
            self._failures = 0
            self._give_up_waiting({"log": zygote.log.tail().decode("utf-8", "replace"), **message})

    def _give_up_waiting(self, error: dict[str, Any]) -> None:
        waiting, self._queue = self._queue, deque()
        for sandbox in waiting:
            self._home.never_born(sandbox, error)

    def zygote_lost(self, zygote: ZygoteProcess, unborn: list[Sandbox]) -> None:
        """It was killed: what it had not yet forked, another one forks."""
        for sandbox in unborn:
            zygote.sandboxes.discard(sandbox)
            self._home.never_born(sandbox, {"error": "the zygote was killed", "is_lost": True})
