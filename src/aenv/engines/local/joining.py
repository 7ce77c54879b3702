"""Commands that are run inside a live sandbox, with its rights and limits, beside its server."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from functools import partial
from typing import Any, NoReturn, Protocol

from aenv.engines.local import linux, seccomp
from aenv.engines.local.plain import PLAIN_ENVIRON
from aenv.engines.local.reactor import Reactor
from aenv.engines.local.rootfs import ENVIRON, HOME, PROJECT
from aenv.engines.local.sandbox import Sandbox

_ALL = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)
_AT_ONCE = 1 << 16
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Done(Protocol):
    """Told once, when the command has ended."""

    def __call__(self, code: int, stdout: bytes, stderr: bytes, *, is_late: bool, is_truncated: bool) -> None: ...


class _Kept:
    """The first bytes of a stream."""

    def __init__(self, descriptor: int, most: int) -> None:
        self.descriptor = descriptor
        self.content = bytearray()
        self.is_cut = False
        self._most = most

    def read(self) -> bool:
        """Take what is there; False at the end."""
        try:
            part = os.read(self.descriptor, _AT_ONCE)
        except BlockingIOError:
            return True
        room = self._most - len(self.content)
        self.content += part[:room]
        self.is_cut = self.is_cut or len(part) > room
        return bool(part)


class Command:
    """One command, from its start to the answer."""

    def __init__(
        self, reactor: Reactor, sandbox: Sandbox, request: dict[str, Any], stdin: bytes, done: Done, *, is_boxed: bool
    ) -> None:
        self._reactor = reactor
        self._sandbox = sandbox
        self._request = request
        self._stdin = memoryview(stdin)
        self._done = done
        self._is_boxed = is_boxed
        self._pidfd = self._pid = -1
        self._input = -1
        self._streams: list[_Kept] = []
        self._rlimits: list[tuple[int, int, int]] = sandbox.nursery.request["rlimits"]
        self._filter = seccomp.program()
        self._is_late = False
        self._is_over = False

    def start(self) -> None:
        """Fork the process that goes into the sandbox."""
        stdin_out, self._input = os.pipe2(os.O_CLOEXEC)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(2)]
        entries = self._sandbox.group.open_entries() if self._sandbox.group is not None else []
        self._pid = os.fork()
        if self._pid == 0:
            self._be_outside([stdin_out, *(theirs for _, theirs in pipes)], entries)
        self._reactor.children.add(self._pid)
        self._pidfd = os.pidfd_open(self._pid)
        for descriptor in (stdin_out, *(theirs for _, theirs in pipes), *entries):
            os.close(descriptor)
        self._streams = [_Kept(ours, self._request["keep"]) for ours, _ in pipes]
        for stream in self._streams:
            os.set_blocking(stream.descriptor, False)
            self._reactor.watch(stream.descriptor, partial(self._read, stream))
        os.set_blocking(self._input, False)
        self._feed()
        self._reactor.watch(self._pidfd, self._ended)
        self._reactor.later(self._request["timeout"], self._too_late)

    def _read(self, stream: _Kept) -> None:
        if not stream.read():
            self._drop(stream)

    def _drop(self, stream: _Kept) -> None:
        if stream.descriptor >= 0:
            self._reactor.unwatch(stream.descriptor)
            os.close(stream.descriptor)
            stream.descriptor = -1

    def _feed(self) -> None:
        """Write what the command wants to read; pipes have no event that says so without being watched for reading."""
        try:
            while self._stdin:
                self._stdin = self._stdin[os.write(self._input, self._stdin) :]
        except BlockingIOError:
            self._reactor.later(0.005, self._feed)
            return
        except OSError:
            # It does not read, or has ended.
            self._stdin = self._stdin[:0]
        if self._input >= 0:
            os.close(self._input)
            self._input = -1

    def _too_late(self) -> None:
        if not self._is_over:
            self._is_late = True
            self.cancel()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        if not self._is_over:
            # The outer half ends the whole group and then itself.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def _ended(self) -> None:
        self._is_over = True
        self._reactor.unwatch(self._pidfd)
        os.close(self._pidfd)
        status = os.waitpid(self._pid, 0)[1]
        self._reactor.children.discard(self._pid)
        code = os.waitstatus_to_exitcode(status)
        self._stdin = self._stdin[:0]
        for stream in self._streams:
            # What was printed is there by now; a daemon may hold the pipe open for ever.
            while stream.descriptor >= 0 and stream.read() and not stream.is_cut and self._has_more(stream):
                pass
            self._drop(stream)
        # What it was told and given is nobody's any more, though its deadline is still to come.
        self._request = {"variables": {}}
        out, err = self._streams
        is_truncated = out.is_cut or err.is_cut
        self._streams = []
        self._done(
            code if code >= 0 else 128 - code,
            bytes(out.content),
            bytes(err.content),
            is_late=self._is_late,
            is_truncated=is_truncated,
        )

    @staticmethod
    def _has_more(stream: _Kept) -> bool:
        before = len(stream.content)
        return stream.read() and len(stream.content) > before

    # in the processes that this one forks

    def _be_outside(self, streams: list[int], entries: list[int]) -> NoReturn:
        """The half outside the sandbox: goes in with a fork, waits, and says how it ended."""
        code = 126
        try:
            for place, descriptor in enumerate(streams):
                os.dup2(descriptor, place)
            # Everything else that the supervisor has open is no business of a command.
            _close_all_but([*entries, self._sandbox.pidfd])
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            if self._is_boxed:
                if os.geteuid() == 0:
                    os.setgroups([])
                linux.setns(self._sandbox.pidfd, _ALL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            inner = os.fork()
            if inner == 0:
                self._be_inside(entries)
            signal.signal(signal.SIGTERM, lambda number, frame: self._end_group(inner))
            code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            code = code if code >= 0 else 128 - code
        except OSError as problem:
            os.write(2, f"the sandbox cannot be entered: {problem}\n".encode())
        os._exit(code)

    @staticmethod
    def _end_group(inner: int) -> NoReturn:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(inner, signal.SIGKILL)
        os._exit(124)

    def _be_inside(self, entries: list[int]) -> NoReturn:
        try:
            # This half alone belongs to the sandbox: were the other to die of its limits, nobody would end this one.
            for descriptor in entries:
                os.write(descriptor, b"0")
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.closerange(3, 1 << 16)
            for kind, soft, hard in self._rlimits:
                resource.setrlimit(kind, (soft, hard))
            if self._is_boxed:
                self._shed()
            # A change of identity takes this back, so it comes after.
            linux.die_with_parent(signal.SIGKILL)
            self._exec()
        except BaseException as problem:  # noqa: BLE001 - whatever it is, this process is the command's
            os.write(2, f"{self._request['command'][0]}: {problem}\n".encode())
            os._exit(127 if isinstance(problem, FileNotFoundError) else 126)

    def _shed(self) -> None:
        """Become the sandbox's own user, with no right and the same filter."""
        user = self._request["user"]
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        linux.keep_capabilities()
        linux.forbid_new_privileges()
        seccomp.install(self._filter)

    def _exec(self) -> NoReturn:
        note = ENVIRON if self._is_boxed else f"{self._sandbox.folder}/{PLAIN_ENVIRON}"
        variables = _read_variables(note) | self._request["variables"]
        folder = PROJECT if self._is_boxed else f"{self._sandbox.folder}/app"
        os.chdir(self._request["cwd"] or folder)
        command = self._request["command"]
        os.execvpe(command[0], command, variables)  # noqa: S606 - the very point


def _close_all_but(kept: list[int]) -> None:
    lowest = 3
    for descriptor in sorted(kept):
        os.closerange(lowest, descriptor)
        lowest = descriptor + 1
    os.closerange(lowest, 1 << 16)


def _read_variables(note: str) -> dict[str, str]:
    """What the instance's own server has in its environment, as it noted it when it began."""
    variables = {"PATH": _PATH, "HOME": HOME, "LANG": "C.UTF-8"}
    with contextlib.suppress(OSError), open(note, "rb") as file:  # noqa: PTH123 - strings, as everywhere here
        for line in file.read().split(b"\0"):
            name, sign, value = line.partition(b"=")
            if sign:
                variables[os.fsdecode(name)] = os.fsdecode(value)
    return variables
