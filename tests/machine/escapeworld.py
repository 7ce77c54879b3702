"""Two instances of an environment that tries to break out, in one mode of the local engine, and a host to reach for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import TypeVar

from conftest import need

from aenv.engines.local.engine import LocalEngine
from aenv.engines.protocol import Exit, Handle, Launch, Usage
from aenv.errors import ExecTimedOut, SandboxGone
from aenv.model.spec import EnvSpec
from aenv.settings import EngineSettings, Isolation
from aenv.testing import calls

T = TypeVar("T")

PROJECT = Path(__file__).parents[1] / "fixtures" / "escape"
SECRET = f"owner-{uuid.uuid4().hex}"
"""In the environment of whoever owns the engines, and in files of theirs."""
VARIABLE = "AENV_ESCAPE_SECRET"
PATIENCE = 50.0
TIGHT = {"memory": "256Mi", "ephemeralStorage": "64Mi", "processes": 64, "openFiles": 256}
"""Limits for instances that try to use everything up."""
FOLDERS = ["/tmp", "/app", "/home/agent", "/dev/shm", "/run"]
"""All that a sandbox may write."""
NOBODY = 65533
"""A user who owns nothing; not the one that the kernel shows for those it cannot map."""


def new_folder() -> Path:
    """A folder with a path that is short enough for sockets, and that sandboxes of another user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="aenv-"))
    folder.chmod(0o755)
    return folder


class World:
    """One engine, with an instance that attacks and one that must not notice."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.folder = new_folder()
        isolation: Isolation = "process" if mode == "process" else "namespaces"
        self.settings = EngineSettings(isolation=isolation, data=self.folder / "data", run=self.folder / "run")
        self.engine = LocalEngine(self.settings)
        self._runner = asyncio.Runner()
        self._numbers = 0
        self.project = self._copy_project()
        try:
            self.attacker = self.start()
            self.neighbour = self.start()
            assert self.engine._link is not None
            self.supervisor = self.engine._link.pid
            found = self.engine._link.hello.result()
            assert found["mode"] == mode, f"{mode} was asked for, and {found} came"
        except BaseException:
            self.close()
            raise

    def _copy_project(self) -> Path:
        project = self.folder / "project"
        shutil.copytree(PROJECT, project)
        for name in ("prey.txt", "linked.txt"):
            (project / "src" / name).write_text("original")
        return project

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Await it on the world's own loop."""
        return self._runner.run(asyncio.wait_for(work, PATIENCE))

    def close(self) -> None:
        """End all of it."""
        self.run(self.engine.aclose())
        self._runner.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, deploy: Mapping[str, object] | None = None, project: Path | None = None) -> Handle:
        """Another instance; what is said of its deployment goes over `no-network`."""
        self._numbers += 1
        config = {"network": "no-network", **(deploy or {})}
        spec = EnvSpec.from_dict({"name": "escape", "version": "1.0.0", "deployConfig": config})
        digest = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([config, str(project)])).hex
        launch = Launch(f"ins_{self._numbers}", spec, project or self.project, digest)
        return self.run(self.engine.start(launch))

    def stop(self, handle: Handle) -> None:
        self.run(self.engine.stop(handle))

    def poll(self, handle: Handle) -> Exit | None:
        return self.run(self.engine.poll(handle))

    def usage(self, handle: Handle) -> Usage:
        return self.run(self.engine.usage(handle))

    def by_server(self, name: str, handle: Handle | None = None, **arguments: object) -> list[str]:
        """What author code could do in the server itself."""
        body = {"name": name, "arguments": arguments}
        done = self.run(calls.call((handle or self.attacker).address, "attempt", body))
        assert isinstance(done, list)
        return [f"server: {one}" for one in done]

    def by_command(self, name: str, handle: Handle | None = None, **arguments: object) -> list[str]:
        """What a command in the sandbox could do."""
        command = [sys.executable, "-B", "src/tools.py", name, json.dumps(arguments)]
        done = self.run(self.engine.exec(handle or self.attacker, command))
        assert done.code == 0, done.stderr.decode()
        return [f"command: {one}" for one in json.loads(done.stdout)]

    def by_both(self, name: str, handle: Handle | None = None, **arguments: object) -> list[str]:
        """What either could do; a plain server is this very process's sibling, so only its commands try."""
        by_server = [] if self.mode == "process" else self.by_server(name, handle, **arguments)
        return by_server + self.by_command(name, handle, **arguments)

    def explode(
        self, name: str, deploy: Mapping[str, object] = TIGHT, **arguments: object
    ) -> tuple[list[str], set[str]]:
        """Have instances of their own use something up; what was beyond the limit, and the breaches that were told."""
        found: list[str] = []
        told: set[str] = set()
        for attempt in (self.by_server, self.by_command):
            handle = self.start(deploy)
            # To die of it is one way to be held.
            with contextlib.suppress(OSError, AssertionError, SandboxGone, ExecTimedOut):
                found += attempt(name, handle, **arguments)
            assert self.by_server("own_pid", self.neighbour), "the neighbour does not answer"
            told |= {reason for reason, count in self.usage(handle).breaches.items() if count}
            if (end := self.run(self._end_of(handle))) is not None:
                told.add(end.reason)
            self.stop(handle)
        self.stop(self.start())
        return found, told

    async def _end_of(self, handle: Handle) -> Exit | None:
        """How it ended, if it does soon."""
        for _ in range(50):
            if (end := await self.engine.poll(handle)) is not None:
                return end
            await asyncio.sleep(0.01)
        return None


def ordinary_command(folder: Path) -> list[str]:
    """The start of a command by which a user who owns nothing runs a Python that has what tests need."""
    need(shutil.which("setpriv"), "setpriv is not installed; try `apt install util-linux`")
    become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "prlimit", "--nofile=4096:4096"]
    if _imports([*become, sys.executable], folder):
        return [*become, sys.executable]
    made = folder / "python"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", made], check=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sites = made / "lib" / version / "site-packages"
    if sites.is_dir():
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        (sites / "tests.pth").write_text(f"import site; site.addsitedir({packages!r})\n")
    python = str(made / "bin" / "python3")
    reason = f"no {version} here that other users may read has pytest and aenv; try `apt install python3-venv`"
    need(_imports([*become, python], folder), reason)
    return [*become, python]


def _imports(python: list[str], folder: Path) -> bool:
    command = [*python, "-c", "import aenv.engines.local.engine, pytest"]
    return subprocess.run(command, cwd=folder, env={"PATH": os.environ["PATH"]}, check=False).returncode == 0
