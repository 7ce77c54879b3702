"""The Python environments that sandboxes run on: made once from a requirements.txt, kept on disk, shared by all."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from aenv.engines.local.installers import (
    PLATFORM,
    Programs,
    Stopped,
    Target,
    Wanted,
    install,
    open_to_all,
    read_requirements,
)
from aenv.errors import ConfigError, EngineUnavailable, PythonFailed

Progress = Callable[[str], None]

_MARK = "aenv.json"
# Part of every key: raise it when environments are laid out differently.
_LAYOUT = 1
_KEY = re.compile(r"[0-9a-f]{32}")
_PROBE_SECONDS = 60.0
# The server is what a sandbox imports first, and it imports all that we depend on.
_PROBE = f"""
import importlib.metadata, importlib.util, json, platform, site, sys
import aenv, aenv.sandbox.server
sites = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
try:
    needs = importlib.metadata.requires({PLATFORM!r}) or []
except importlib.metadata.PackageNotFoundError:
    needs = []
print(json.dumps({{
    "executable": sys.executable,
    "kind": [platform.python_version(), sys.implementation.name, platform.machine()],
    "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    "path": [entry for entry in sys.path if entry],
    "sites": [entry for entry in sites if entry in sys.path],
    "package": aenv.__path__[0],
    "version": aenv.__version__,
    "needs": needs,
    "modules": [name for name in ("pip", "uv") if importlib.util.find_spec(name)],
}}))
"""


@dataclass(frozen=True, slots=True)
class PythonEnvironment:
    """An interpreter and the packages it imports."""

    key: str
    """`base` for the one that runs us, else a hash."""
    python: str
    """The interpreter to start."""
    visible: tuple[Path, ...]
    """What a sandbox must see, read-only, for the interpreter and all its packages; /usr is taken for granted."""


@dataclass(frozen=True, slots=True)
class _Interpreter:
    """What an interpreter tells of itself."""

    executable: str
    kind: Sequence[str]
    prefixes: Sequence[str]
    path: Sequence[str]
    sites: Sequence[str]
    package: str
    version: str
    needs: Sequence[str]
    modules: Sequence[str]

    @classmethod
    def parse(cls, output: str) -> _Interpreter | None:
        """From what the probe printed, last line first; None if that is something else."""
        try:
            return cls(**json.loads(output.strip().rpartition("\n")[2]))
        except (ValueError, TypeError):
            return None

    def visible(self) -> tuple[Path, ...]:
        """Every folder it reads, by each of its names, without those inside another."""
        folders = {Path(name) for name in (*self.prefixes, *self.path, *self.sites, self.package)}
        folders |= {Path(name).parent for name in _links(self.executable)}
        kept: list[Path] = []
        for folder in sorted(folders | {folder.resolve() for folder in folders}):
            # A sandbox that sees the root sees everything, whoever put it on the path.
            is_needed = folder.exists() and folder != Path("/") and not folder.resolve().is_relative_to("/usr")
            if is_needed and not any(folder.is_relative_to(other) for other in kept):
                kept.append(folder)
        return tuple(kept)

    def needs_for(self, extra: str) -> list[str]:
        """What our own package needs for this extra."""
        clause = re.compile(rf"\s*(?:\band\b\s*)?\(?extra\s*==\s*['\"]{re.escape(extra)}['\"]\)?")
        found = [clause.sub("", need).rstrip("; ") for need in self.needs if clause.search(need)]
        return [need for need in found if need]

    def limits(self) -> list[str]:
        """Versions that our own package can live with, itself included, as constraints: without extras."""
        needs = [re.sub(r"\[[^\]]*\]", "", need) for need in self.needs if "extra ==" not in need]
        return [f"{PLATFORM}=={self.version}", *needs]


class Pythons:
    """Makes, finds and removes the environments in one folder. Any number of processes may share the folder."""

    def __init__(
        self, folder: Path, *, python: str = sys.executable, installer: Literal["uv", "pip"] | None = None
    ) -> None:
        self._folder = folder.absolute()
        self._python = python
        self._installer = installer
        self._own: _Interpreter | None = None
        self._builds: dict[str, _Build] = {}

    async def ensure(self, requirements: Path | None, *, progress: Progress | None = None) -> PythonEnvironment:
        """The environment for a requirements.txt, built if it is not there yet; without one, the interpreter's own.

        Raises ConfigError for a file that cannot be, PythonFailed when the installer gives up, EngineUnavailable when
        the interpreter cannot run sandboxes. A build ends when nobody waits for it any more.
        """
        if self._own is None:
            self._own = await asyncio.to_thread(_probe, self._python)
        own = self._own
        wanted = await asyncio.to_thread(_read, requirements, own)
        if not wanted.packages:
            return PythonEnvironment("base", own.executable, own.visible())
        key = _key(wanted, own)
        if (ready := await asyncio.to_thread(self._find, key)) is not None:
            return ready
        if (build := self._builds.get(key)) is None:
            build = self._builds[key] = _Build(partial(self._make, key, wanted, own))
        elif progress is not None:
            progress("waiting for another build of the same requirements")
        return await self._join(key, build, progress)

    def unused(self, older_than: float) -> list[str]:
        """Keys of what nobody asked for in so many seconds, unfinished ones included."""
        if not self._folder.is_dir():
            return []
        keys = [path.name for path in self._folder.iterdir() if _KEY.fullmatch(path.name)]
        return [key for key in keys if self._idle_seconds(key) >= older_than]

    async def remove(self, key: str, *, older_than: float = 0.0) -> bool:
        """Delete it, unless it is being built or was asked for within `older_than` seconds; whether it was deleted.

        Sandboxes that run on it lose their files: ask for nothing younger than the longest of them.
        """
        return await asyncio.to_thread(self._remove, key, older_than)

    async def _join(self, key: str, build: _Build, progress: Progress | None) -> PythonEnvironment:
        listener = progress or _ignore
        build.listeners.append(listener)
        try:
            return await asyncio.shield(build.outcome)
        finally:
            build.listeners.remove(listener)
            if build.outcome.done() or not build.listeners:
                # Whoever comes from now on starts anew; the lock on disk lets one begin when the other has cleaned up.
                if self._builds.get(key) is build:
                    del self._builds[key]
                await build.end()

    def _make(self, key: str, wanted: Wanted, own: _Interpreter, programs: Programs) -> PythonEnvironment:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folder.chmod(0o755)
        with self._locked(key, programs.take) as lock:
            if (ready := self._read_mark(key)) is not None:
                return ready
            try:
                return self._build(key, wanted, own, programs, lock)
            except BaseException:
                shutil.rmtree(self._folder / key, ignore_errors=True)
                self._lock_file(key).unlink(missing_ok=True)
                raise

    def _build(self, key: str, wanted: Wanted, own: _Interpreter, programs: Programs, lock: int) -> PythonEnvironment:
        # Scripts hold their environment's path, so it is built where it stays; its mark, written last, makes it valid.
        place = self._folder / key
        if place.exists():
            programs.tell("removing what an interrupted build left")
            shutil.rmtree(place)
        python = str(place / "bin" / "python")
        code, output = programs.run([own.executable, "-I", "-m", "venv", "--without-pip", str(place)], lock=lock)
        if code:
            hint = "see that the interpreter has the venv module; its output says more"
            raise PythonFailed(f"{own.executable} cannot make an environment", hint=hint, output="\n".join(output))
        site = next(place.glob("lib/*/site-packages"))
        lines = [f"import site; site.addsitedir({entry!r})\n" for entry in own.sites]
        # Last in the alphabet: paths that packages bring come before ours.
        (site / "zz_aenv.pth").write_text("".join(lines), "utf-8")
        (work := place / "work").mkdir()
        target = Target(python, "pip" in own.modules, own.limits())
        install(wanted, target, self._uv(own), programs, lock=lock, cwd=work)
        shutil.rmtree(work)
        size = open_to_all(place)
        code, output = programs.run([python, "-P", "-c", _PROBE], lock=lock, is_told=False)
        if code or (made := _Interpreter.parse("\n".join(output))) is None:
            hint = "remove or loosen the requirement that its output tells of"
            raise PythonFailed("aenv does not import beside these packages", hint=hint, output="\n".join(output))
        environment = PythonEnvironment(key, python, made.visible())
        self._write_mark(environment, wanted, size)
        return environment

    def _uv(self, own: _Interpreter) -> list[str] | None:
        if self._installer == "pip":
            return None
        if (found := shutil.which("uv")) is not None:
            return [found]
        if "uv" in own.modules:
            return [own.executable, "-m", "uv"]
        if self._installer == "uv":
            raise EngineUnavailable("uv is not installed", hint=f"run `{own.executable} -m pip install uv`")
        return None

    def _find(self, key: str) -> PythonEnvironment | None:
        """The finished environment, marked as used now, under a lock that keeps removals away meanwhile."""
        if not (self._folder / key / _MARK).exists():
            return None
        with suppress(OSError), self._locked(key, partial(_try_lock, fcntl.LOCK_SH)):
            if (found := self._read_mark(key)) is not None:
                (self._folder / key / _MARK).touch()
            return found
        return None

    def _remove(self, key: str, older_than: float) -> bool:
        if not _KEY.fullmatch(key) or not (self._folder / key).exists():
            return False
        with suppress(BlockingIOError), self._locked(key, partial(_try_lock, fcntl.LOCK_EX)):
            if self._idle_seconds(key) < older_than:
                return False
            # Without its mark it is no environment, should we be killed half way.
            (self._folder / key / _MARK).unlink(missing_ok=True)
            shutil.rmtree(self._folder / key)
            self._lock_file(key).unlink()
            return True
        return False

    def _idle_seconds(self, key: str) -> float:
        for path in (self._folder / key / _MARK, self._folder / key):
            with suppress(FileNotFoundError):
                return time.time() - path.stat().st_mtime
        return 0.0

    def _lock_file(self, key: str) -> Path:
        return self._folder / f"{key}.lock"

    @contextmanager
    def _locked(self, key: str, take: Callable[[int], None]) -> Iterator[int]:
        file = self._lock_file(key)
        while True:
            lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                take(lock)
                # Who removes an environment removes its lock too, perhaps while we waited: then ours locks nothing.
                if os.fstat(lock).st_nlink:
                    yield lock
                    return
            finally:
                os.close(lock)

    def _read_mark(self, key: str) -> PythonEnvironment | None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            mark = json.loads((self._folder / key / _MARK).read_bytes())
            environment = PythonEnvironment(key, mark["python"], tuple(map(Path, mark["visible"])))
            if mark["key"] == key and all(path.exists() for path in (Path(environment.python), *environment.visible)):
                return environment
        return None

    def _write_mark(self, environment: PythonEnvironment, wanted: Wanted, size: int) -> None:
        mark = {
            "key": environment.key,
            "requirements": [*wanted.options, *wanted.packages],
            "python": environment.python,
            "visible": [str(path) for path in environment.visible],
            "created": time.time(),
            "size": size,
        }
        draft = self._folder / environment.key / f"{_MARK}.draft"
        draft.write_text(json.dumps(mark, indent=1))
        draft.chmod(0o644)
        draft.rename(draft.with_suffix(""))


class _Build:
    """One build under way in a thread of its own, and all who listen to it."""

    def __init__(self, work: Callable[[Programs], PythonEnvironment]) -> None:
        self._loop = asyncio.get_running_loop()
        self._programs = Programs(self._tell)
        self.outcome: asyncio.Future[PythonEnvironment] = self._loop.create_future()
        self.listeners: list[Progress] = []
        # Not in a pool: a build takes minutes, and must not keep an interpreter from ending.
        threading.Thread(target=self._run, args=(work,), name="aenv-python", daemon=True).start()

    async def end(self) -> None:
        """Stop what still runs; returns when it has cleaned up after itself, also when cancelled meanwhile."""
        self._programs.stop()
        while not self.outcome.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self.outcome])
        if not self.outcome.cancelled():
            # Whether anybody is left to hear of a failure or not, asyncio need not complain.
            self.outcome.exception()

    def _run(self, work: Callable[[Programs], PythonEnvironment]) -> None:
        settle: Callable[[], object]
        try:
            settle = partial(self.outcome.set_result, work(self._programs))
        except Stopped:
            settle = self.outcome.cancel
        except OSError as problem:
            hint = "see that its disk has room and may be written to"
            failure = PythonFailed(f"the Python environment cannot be written: {problem}", hint=hint)
            settle = partial(self.outcome.set_exception, failure)
        except BaseException as problem:  # noqa: BLE001 - raised where the environment is waited for
            settle = partial(self.outcome.set_exception, problem)
        with suppress(RuntimeError):  # the loop is closed, and nobody waits
            self._loop.call_soon_threadsafe(settle)

    def _tell(self, line: str) -> None:
        with suppress(RuntimeError):  # the same
            self._loop.call_soon_threadsafe(self._spread, line)

    def _spread(self, line: str) -> None:
        for listener in tuple(self.listeners):
            listener(line)


def _read(requirements: Path | None, own: _Interpreter) -> Wanted:
    if requirements is None or not requirements.exists():
        return Wanted()
    try:
        wanted = read_requirements(requirements)
    except OSError as problem:
        hint = "see that this user may read the whole project"
        raise ConfigError(f"what {requirements.name} points to cannot be read: {problem}", hint=hint) from problem
    wanted.packages += [need for extra in wanted.extras for need in own.needs_for(extra)]
    return wanted


def _key(wanted: Wanted, own: _Interpreter) -> str:
    ours = [_LAYOUT, *own.kind, own.executable, own.version, *own.sites, *map(str, own.visible())]
    asked = [wanted.options, wanted.packages, wanted.limits, wanted.contents]
    return hashlib.sha256(json.dumps([ours, asked]).encode()).hexdigest()[:32]


def _probe(python: str) -> _Interpreter:
    hint = f"run `{python} -m pip install {PLATFORM}`, or use the interpreter that has it"
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        ended = subprocess.run(
            [python, "-P", "-c", _PROBE],
            capture_output=True,
            text=True,
            env=environ,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise EngineUnavailable(f"{python} cannot be run: {problem}", hint=hint) from problem
    if (told := _Interpreter.parse(ended.stdout)) is None:
        raise EngineUnavailable(f"{python} does not import aenv", hint=hint, output=ended.stderr)
    return told


def _links(file: str) -> Iterator[str]:
    """What the path is a link to, and what that is a link to, and so on."""
    while Path(file).is_symlink():
        file = os.path.normpath(Path(file).parent / Path(file).readlink())
        yield file


def _try_lock(how: int, lock: int) -> None:
    fcntl.flock(lock, how | fcntl.LOCK_NB)


def _ignore(line: str) -> None:
    """Listen to nothing."""
