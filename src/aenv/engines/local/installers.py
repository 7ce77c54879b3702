"""What a requirements.txt asks for, and the programs that install it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from aenv.errors import ConfigError, PythonFailed

PLATFORM = "aenvironment"
"""The distribution that is in every environment already."""

_KEPT_LINES = 40
_FLAGS = {"--no-index", "--pre", "--prefer-binary", "--require-hashes"}
_WORDS = {"--no-binary", "--only-binary", "--trusted-host", "--use-feature"}
_PLACES = {"-i": "--index-url", "-f": "--find-links", "--extra-index-url": "--extra-index-url"}
_PLACES |= {"--index-url": "--index-url", "--find-links": "--find-links"}
_FILES = {"-r", "--requirement", "-c", "--constraint"}
_EDITABLE = {"-e", "--editable"}

_OPTION = re.compile(r"(--[a-z-]+|-[a-z])=?(.*)", re.DOTALL)
_REMOTE = re.compile(r"(?!(?:[a-z]+\+)?file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_OWN_LINE = re.compile(rf"{PLATFORM}\s*(?:\[([^\]]*)\])?\s*(?:[<>=!~@(;].*|--.*)?", re.IGNORECASE)
_DIRECT = re.compile(r"[\w.-]+\s*(\[[^\]]*\])?\s*@\s*(\S+)(.*)", re.DOTALL)
_FILE = re.compile(r"^(?:[a-z]+\+)?file:(?://)?", re.IGNORECASE)
_PATH = re.compile(r"(\.[^\s;\[]*|[^\s;\[]*/[^\s;\[]*|[^\s;\[]+\.(?:whl|zip|tar\.\w+))((?:[\s;\[].*)?)", re.DOTALL)
_SKIPPED = {".git", ".hg", ".venv", "__pycache__", "node_modules"}

# What pip and uv say when one requirement is at fault, most telling first.
_BLAMES = (
    re.compile(r"No matching distribution found for ([^\s;]+)"),
    re.compile(r"\byou require ([^\s,]+)"),
    re.compile(r"Failed to (?:build|download|fetch|parse)(?: installable wheels for)?:? [`']?([^\s`',]+)"),
    re.compile(r"Failed building wheel for ([^\s;]+)"),
    re.compile(r"Cannot install (.+?) because these"),
    re.compile(r"Invalid requirement: ['\"](.+?)['\"]"),
)

# Kills a program with everything that it started when the pipe to us breaks, which it does however we end.
_KEEPER = """
import os, signal, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, close_fds=False, process_group=0)
def end():
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except OSError:
        pass
def watch():
    os.read(0, 1)
    end()
threading.Thread(target=watch, daemon=True).start()
code = child.wait()
end()
os._exit(code if code >= 0 else 128 - code)
"""
_LOCK = "import fcntl, sys; fcntl.flock(int(sys.argv[1]), fcntl.LOCK_EX)"


class Stopped(Exception):
    """The programs were told to stop."""


class Place(NamedTuple):
    """A file or folder of the project that a line points to, and its name where the installer runs."""

    name: str
    source: Path
    is_copied: bool


@dataclass(slots=True)
class Wanted:
    """What is to be installed; empty `packages` mean nothing is."""

    packages: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    """Lines that only say which version, should the package be needed."""
    options: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)
    """Extras of our own package."""
    places: list[Place] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)
    """One digest for each place."""

    @property
    def is_hashed(self) -> bool:
        """Whether every package must come with a hash, so that no line of ours may be among them."""
        return "--require-hashes" in self.options or any("--hash" in line for line in self.packages)


def read_requirements(file: Path) -> Wanted:
    """What the file and all it includes say; ConfigError for lines that lead out of its folder."""
    reader = _Reader(file.parent.resolve())
    reader.read(reader.find(file.parent, file.name, file.name), reader.wanted.packages)
    return reader.wanted


class _Reader:
    def __init__(self, project: Path) -> None:
        self.project = project
        self.wanted = Wanted()
        self._open: list[Path] = []

    def read(self, file: Path, into: list[str]) -> None:
        if file in self._open:
            raise ConfigError(f"{file.name} includes itself", hint="remove one of its -r or -c lines")
        try:
            text = file.read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as problem:
            hint = "make it a text file in UTF-8 that this user may read"
            raise ConfigError(f"{file.name} cannot be read: {problem}", hint=hint) from problem
        self._open.append(file)
        for raw in re.sub(r"\\\r?\n", "", text).splitlines():
            if line := " ".join(re.sub(r"(^|\s)#.*", "", raw).split()):
                self._line(line, file, into)
        self._open.pop()

    def _line(self, line: str, file: Path, into: list[str]) -> None:
        if line.startswith("-"):
            words = _split(line, file)
            while words:
                self._option(words, line, file, into)
        elif own := _OWN_LINE.fullmatch(line):
            self.wanted.extras += [extra.strip().lower() for extra in (own[1] or "").split(",") if extra.strip()]
        else:
            into.append(self._package(line))

    def _option(self, words: list[str], line: str, file: Path, into: list[str]) -> None:
        match = _OPTION.fullmatch(words.pop(0))
        name, value = (match[1], match[2]) if match else ("", "")
        if name in _FLAGS:
            self.wanted.options.append(name)
            return
        if not value and words:
            value = words.pop(0)
        if name in _FILES:
            target = self.wanted.limits if name in ("-c", "--constraint") else into
            self.read(self.find(file.parent, value, line), target)
        elif name in _EDITABLE:
            # The environment is shared and read-only: what others would be linked to is installed as it is now.
            into.append(self._package(value))
        elif name in _WORDS:
            self.wanted.options.append(f"{name} {value}")
        elif name in _PLACES:
            self.wanted.options.append(f"{_PLACES[name]} {self._address(value, file)}")
        else:
            hint = f"use one of {', '.join(sorted(_FLAGS | _WORDS | set(_PLACES) | _FILES | _EDITABLE))}"
            raise ConfigError(f"{file.name} has an option that is not supported: {line!r}", hint=hint)

    def _package(self, line: str) -> str:
        if _REMOTE.match(line):
            return line
        if direct := _DIRECT.fullmatch(line):
            if _REMOTE.match(direct[2]):
                return line
            return self._place(self.find(self.project, direct[2], line)) + (direct[1] or "") + direct[3]
        if path := _PATH.fullmatch(line):
            return self._place(self.find(self.project, path[1], line)) + path[2]
        return line

    def _address(self, value: str, file: Path) -> str:
        if _REMOTE.match(value):
            return value
        folder = file.parent if (file.parent / value).exists() else self.project
        return self._place(self.find(folder, value, value), is_copied=False)

    def _place(self, source: Path, *, is_copied: bool = True) -> str:
        number = len(self.wanted.places)
        name = f"{number}" if source.is_dir() else f"{number}/{source.name}"
        self.wanted.places.append(Place(name, source, is_copied))
        self.wanted.contents.append(_digest(source))
        return f"./{name}"

    def find(self, folder: Path, path: str, line: str) -> Path:
        """The real path; ConfigError if it is none of the project's."""
        path = _FILE.sub("", path, count=1)
        real = (folder / path).resolve()
        if Path(path).is_absolute() or not real.is_relative_to(self.project):
            hint = "give a path relative to the project's folder, to something inside it"
            raise ConfigError(f"requirements.txt leads out of the project: {line!r}", hint=hint)
        if not real.exists():
            raise ConfigError(f"requirements.txt names what is not there: {line!r}", hint="correct the path")
        return real


def _split(line: str, file: Path) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise ConfigError(f"{file.name} has a line that cannot be read: {line!r}", hint="close the quotes") from problem


def _digest(source: Path) -> str:
    """Of a file, or of all names and contents in a folder."""
    total = hashlib.sha256()
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(set(folders) - _SKIPPED)
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        for path in sorted(Path(folder) / name for name in [*names, *links]):
            total.update(f"{path.relative_to(source)}\0{_content(path)}\0".encode(errors="surrogateescape"))
    return total.hexdigest() if source.is_dir() else _content(source)


def _content(path: Path) -> str:
    if path.is_symlink():
        return f"-> {path.readlink()}"
    if not path.is_file():
        return "special"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Programs:
    """Runs one program after another; each ends with all that it started when we are told to stop, or are killed."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self._guard = threading.Lock()
        self._is_stopped = False
        self._running: subprocess.Popen[str] | None = None

    def run(
        self, command: Sequence[str], *, lock: int, cwd: Path | None = None, is_told: bool = True
    ) -> tuple[int, list[str]]:
        """Exit code and what it printed, told line by line. The lock is held until its last process ends."""
        with self._guard:
            if self._is_stopped:
                raise Stopped
            process = self._running = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=_environ(os.environ),
                pass_fds=(lock,),
                start_new_session=True,
                umask=0o022,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        lines: list[str] = []
        with process:
            for line in process.stdout or ():
                lines.append(line.rstrip())
                if is_told:
                    self.tell(lines[-1])
            with self._guard:
                code = process.wait()
                self._running = None
        if self._is_stopped:
            raise Stopped
        return code, lines

    def take(self, lock: int) -> None:
        """Hold the lock alone, however long others hold it."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.tell("waiting for another build of the same requirements")
            # A flock belongs to the open file, which a child shares; and a child can be killed, unlike a thread.
            code, lines = self.run([sys.executable, "-I", "-S", "-c", _LOCK, str(lock)], lock=lock)
            if code:
                raise OSError("\n".join(lines)) from None

    def stop(self) -> None:
        """End what runs; nothing is run any more."""
        with self._guard:
            self._is_stopped = True
            if self._running is not None and self._running.stdin is not None:
                self._running.stdin.close()


def _environ(outer: Mapping[str, str]) -> dict[str, str]:
    """The user's own, so that PIP_* and UV_* hold, without what would lead Python elsewhere."""
    ours = {name: value for name, value in outer.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return {"UV_SYSTEM_CERTS": "true", **ours, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}


class Target(NamedTuple):
    """The environment to install into."""

    python: str
    has_pip: bool
    limits: Sequence[str]
    """Which versions our own package can live with."""


def install(
    wanted: Wanted, target: Target, uv: Sequence[str] | None, programs: Programs, *, lock: int, cwd: Path
) -> None:
    """Install all that is wanted from within `cwd`, an empty folder; PythonFailed with the installer's words."""
    _lay_out(wanted, target.limits, cwd)
    if uv is None and not target.has_pip:
        _check(programs.run([target.python, "-m", "ensurepip"], lock=lock, cwd=cwd), "ensurepip")
    command = _pip(target.python) if uv is None else _uv(uv, target.python, wanted.options)
    programs.tell(f"installing {', '.join(wanted.packages)} with {'pip' if uv is None else 'uv'}")
    _check(programs.run(command, lock=lock, cwd=cwd), "pip" if uv is None else "uv")


def _lay_out(wanted: Wanted, limits: Sequence[str], cwd: Path) -> None:
    for name, source, is_copied in wanted.places:
        (cwd / name).parent.mkdir(exist_ok=True)
        # A build writes into the folder it builds, and the project is not ours to write to.
        if is_copied and source.is_dir():
            shutil.copytree(source, cwd / name, symlinks=True, ignore=shutil.ignore_patterns(*_SKIPPED))
        else:
            (cwd / name).symlink_to(source)
    for file, lines in {
        "requirements.txt": [*wanted.options, *wanted.packages],
        "constraints.txt": [*wanted.limits, *([] if wanted.is_hashed else limits)],
        # A marker that never holds: whoever depends on our package gets the one that is there, which uv cannot see.
        "overrides.txt": [f"{PLATFORM} ; python_version < '3'"],
    }.items():
        (cwd / file).write_text("".join(f"{line}\n" for line in lines), "utf-8")


def _pip(python: str) -> list[str]:
    quiet = ["--no-input", "--no-color", "--progress-bar", "off", "--disable-pip-version-check"]
    files = ["-r", "requirements.txt", "-c", "constraints.txt"]
    return [python, "-m", "pip", "install", "--no-user", "--compile", *quiet, *files]


def _uv(uv: Sequence[str], python: str, options: Sequence[str]) -> list[str]:
    # uv takes these two on its command line only.
    more = ["--prerelease=allow"] if "--pre" in options else []
    for option in options:
        if option.startswith("--trusted-host "):
            more += option.split(" ", 1)
    files = ["-r", "requirements.txt", "-c", "constraints.txt", "--override", "overrides.txt"]
    return [
        *uv,
        "pip",
        "install",
        "--python",
        python,
        "--compile-bytecode",
        "--no-progress",
        "--color=never",
        *more,
        *files,
    ]


def _check(ended: tuple[int, list[str]], installer: str) -> None:
    code, lines = ended
    if code == 0:
        return
    output = "\n".join(lines[-_KEPT_LINES:])
    found = next((match[1] for blame in _BLAMES if (match := blame.search(output))), None)
    what = f"{found.rstrip('.')!r} of requirements.txt" if found else "the packages of requirements.txt"
    raise PythonFailed(
        f"{installer} cannot install {what} (exit code {code})",
        hint="correct requirements.txt, or see that this machine reaches the package index; its output says more",
        output=output,
    )


def open_to_all(place: Path) -> int:
    """Let every user read it, as sandboxes run as another one; returns its bytes."""
    size = 0
    for folder, _, names in os.walk(place):
        for path in (Path(folder), *(Path(folder) / name for name in names)):
            status = path.lstat()
            mode = status.st_mode
            size += status.st_size
            # Whatever its owner may execute, or enter, others may.
            wanted = mode | 0o444 | (0o111 if mode & 0o100 else 0)
            if wanted != mode and not path.is_symlink():
                path.chmod(wanted)
    return size
