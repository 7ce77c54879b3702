"""Other ways to get a tool that answers: the published server, and ours in what bubblewrap, crun and podman make."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from figures import tree
from peer import published_client
from sandbox_call import STRUCTURED, Client, check, free_port

import aenv

T = TypeVar("T")

PATIENCE = 60.0
_PAUSE = 0.0005
_PATH = "/usr/local/bin:/usr/bin:/bin"
_SYSTEM = ("bin", "sbin", "lib", "lib64")


class Peer(Protocol):
    """One way to get an instance; holds at most one."""

    name: str

    def obstacle(self) -> str | None:
        """Why it cannot be measured here, with what would change that."""
        ...

    def start(self) -> None:
        """Begin one, and do not wait for it."""
        ...

    def call(self) -> None:
        """Call the tool as soon as it listens, and check the answer."""
        ...

    def processes(self) -> list[int]:
        """Everything that it consists of."""
        ...

    def stop(self) -> None:
        """End it."""
        ...

    def close(self) -> None:
        """Let go of what all instances shared."""
        ...


def call(path: str, text: str) -> None:
    """Have the echo tool behind a unix socket say this; anything but that is an error."""
    request, wanted = echo(text)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(path)
        client.sendall(request)
        answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        while wanted not in answer:
            part = client.recv(65536)
            assert part, "the sandbox hung up"
            answer += part


def echo(text: str) -> tuple[bytes, bytes]:
    """The request, and what its answer must hold."""
    body = b'{"text":"%s"}' % text.encode()
    head = b"POST /tools/echo HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body, b'"data":' + body


def retry(attempt: Callable[[], T], is_alive: Callable[[], bool]) -> T:
    """Try until it listens: nobody tells us when."""
    deadline = time.perf_counter() + PATIENCE
    while True:
        try:
            return attempt()
        except (FileNotFoundError, ConnectionRefusedError) as problem:
            if time.perf_counter() > deadline or not is_alive():
                raise RuntimeError("it ended, or never listened") from problem
            time.sleep(_PAUSE)


class Published:
    """The published server as a plain process: no isolation at all."""

    name = "aenvironment==0.1.7"

    def __init__(self, project: Path) -> None:
        self._command = [str(published_client()), "-m", "aenv.main", str(project), "--host", "127.0.0.1", "--port"]
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def obstacle(self) -> str | None:
        return None

    def start(self) -> None:
        self._port = free_port()
        self._process = _spawn([*self._command, str(self._port)])

    def call(self) -> None:
        client = retry(lambda: Client(self._port), lambda: _is_running(self._process))
        check(client.ask(client.echo), STRUCTURED)
        client.socket.close()

    def processes(self) -> list[int]:
        return tree(self._process.pid) if self._process is not None else []

    def stop(self) -> None:
        _end(self._process)

    def close(self) -> None:
        """Nothing is shared."""


class Bubblewrap:
    """Our server in namespaces of bubblewrap: no limits, no filter of system calls."""

    name = "bwrap + python"

    def __init__(self, project: Path, folder: Path) -> None:
        folder.mkdir()
        self._socket = folder / "s"
        command = ["bwrap", "--unshare-all", "--die-with-parent", "--clearenv", "--setenv", "PATH", _PATH]
        command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/home"]
        for path in visible():
            command += ["--ro-bind", path, path]
        for name, target in system_links().items():
            command += ["--symlink", target, f"/{name}"]
        command += ["--ro-bind", str(project), "/app", "--bind", str(folder), "/box", "--chdir", "/app"]
        self._command = [*command, *server_command()]
        self._process: subprocess.Popen[bytes] | None = None

    def obstacle(self) -> str | None:
        return None if shutil.which("bwrap") else "missing: apt-get install bubblewrap"

    def start(self) -> None:
        self._process = _spawn(self._command)

    def call(self) -> None:
        retry(lambda: call(str(self._socket), "hello"), lambda: _is_running(self._process))

    def processes(self) -> list[int]:
        return tree(self._process.pid) if self._process is not None else []

    def stop(self) -> None:
        _end(self._process)
        self._socket.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is shared."""


class Container(ABC):
    """Our server in what an OCI program makes, started by a shell that does not see the second kind of control groups.

    Where both kinds are mounted, these programs refuse to work; the shell lives in a mount namespace of its own.
    """

    name = ""
    _package = ""

    def __init__(self, project: Path, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._project = project
        self._bundle = folder / "bundle"
        self._socket = folder / "box" / "s"
        self._socket.parent.mkdir()
        self._numbers = itertools.count(1)
        self._id = ""
        self._shell: subprocess.Popen[bytes] | None = None
        make_root(self._bundle / "rootfs")

    def obstacle(self) -> str | None:
        if shutil.which(self._package) is None:
            return f"missing: apt-get install {self._package}"
        return None if os.geteuid() == 0 else "needs root: without it, it takes a user namespace and a session"

    def start(self) -> None:
        self._id = f"bench-{os.getpid()}-{next(self._numbers)}"
        self._tell(f"{shlex.join(self._run())} &")

    def call(self) -> None:
        retry(lambda: call(str(self._socket), "hello"), lambda: _is_running(self._shell))

    def processes(self) -> list[int]:
        return tree(self._shell.pid)[1:] if self._shell is not None else []

    def stop(self) -> None:
        self._tell(f"{shlex.join(self._remove())}; wait; rm {shlex.quote(str(self._socket))}")
        deadline = time.perf_counter() + PATIENCE
        while self._socket.exists() and time.perf_counter() < deadline:
            time.sleep(_PAUSE)

    def close(self) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            self._shell.wait(PATIENCE)

    def _tell(self, line: str) -> None:
        if self._shell is None:
            log = (self._folder / "log").open("wb")
            command = ["unshare", "--mount", "sh"]
            self._shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
            line = f"umount /sys/fs/cgroup/unified 2>/dev/null\n{line}"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\n".encode())
        self._shell.stdin.flush()

    @abstractmethod
    def _run(self) -> list[str]:
        """The command that runs one."""

    @abstractmethod
    def _remove(self) -> list[str]:
        """The command that ends it and takes it away."""

    def _binds(self) -> list[tuple[str, str, str]]:
        """Source, target and whether it is `ro` or `rw`."""
        own = [(str(self._project), "/app", "ro"), (str(self._socket.parent), "/box", "rw")]
        return [*((path, path, "ro") for path in visible()), *own]


class Crun(Container):
    """Our server in namespaces of crun: no limits, no filter of system calls."""

    name = "crun + python"
    _package = "crun"

    def __init__(self, project: Path, folder: Path) -> None:
        super().__init__(project, folder)
        self._program = ["crun", "--root", str(folder / "state"), "--cgroup-manager=disabled"]
        (self._bundle / "config.json").write_text(json.dumps(self._config()))

    def _run(self) -> list[str]:
        return [*self._program, "run", "--bundle", str(self._bundle), self._id]

    def _remove(self) -> list[str]:
        return [*self._program, "delete", "--force", self._id]

    def _config(self) -> dict[str, object]:
        mounts: list[dict[str, object]] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
        ]
        for source, target, mode in self._binds():
            mounts.append({"destination": target, "type": "bind", "source": source, "options": ["bind", mode]})
        spaces = [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]
        process = {"args": server_command(), "env": [f"PATH={_PATH}"], "cwd": "/app", "noNewPrivileges": True}
        return {
            "ociVersion": "1.0.0",
            "process": {**process, "user": {"uid": 0, "gid": 0}, "capabilities": {}},
            "root": {"path": "rootfs", "readonly": True},
            "hostname": "box",
            "mounts": mounts,
            "linux": {"namespaces": spaces},
        }


class Podman(Container):
    """Our server in a container of podman, with what that does by itself."""

    name = "podman + python"
    _package = "podman"

    def _run(self) -> list[str]:
        command = ["podman", "run", "--detach", "--name", self._id, "--network=none", "--read-only", "--workdir=/app"]
        # What it would set by itself may be more than this process has.
        command += ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024", "--cgroups=disabled"]
        for source, target, mode in self._binds():
            command += ["--volume", f"{source}:{target}:{mode}"]
        return [*command, "--rootfs", str(self._bundle / "rootfs"), *server_command()]

    def _remove(self) -> list[str]:
        return ["podman", "rm", "--force", "--time=0", self._id]

    def processes(self) -> list[int]:
        """What stays of it: podman itself ends once the container runs, and its CPU is not seen."""
        command = ["podman", "inspect", "--format", "{{.State.ConmonPid}}", self._id]
        return tree(int(subprocess.run(command, check=True, capture_output=True).stdout))


def server_command() -> list[str]:
    """Our server inside a box that shows it the project and a folder for its socket."""
    python = f"{sys.prefix}/bin/{Path(sys.executable).name}"
    return [python, "-I", "-m", "aenv.sandbox", "/app", "--uds", "/box/s"]


def visible() -> list[str]:
    """What a box must show for our Python and package to run."""
    package = Path(aenv.__file__).parents[1]
    places = {Path("/usr"), Path("/etc"), Path(sys.prefix), Path(sys.base_prefix), package}
    places |= {Path(f"/{name}") for name in _SYSTEM if Path(f"/{name}").is_dir() and not Path(f"/{name}").is_symlink()}
    return sorted(str(one) for one in places if not any(other in one.parents for other in places))


def system_links() -> dict[str, str]:
    """Where /bin and the like lead on a system that has them all in /usr."""
    return {name: str(Path(f"/{name}").readlink()) for name in _SYSTEM if Path(f"/{name}").is_symlink()}


def make_root(folder: Path) -> None:
    """A root folder with the places that a container mounts something over."""
    folder.mkdir(parents=True)
    for path in (*visible(), "/app", "/box", "/proc", "/dev", "/tmp"):
        (folder / path[1:]).mkdir(parents=True, exist_ok=True)
    for name, target in system_links().items():
        (folder / name).symlink_to(target)


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)


def _is_running(process: subprocess.Popen[bytes] | None) -> bool:
    return process is not None and process.poll() is None


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.kill()
        process.wait()
