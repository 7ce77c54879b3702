"""A project served by a sandbox server in a child process, which ends with whoever started it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aenv.errors import AEnvError, ProjectError

Log = Callable[[str], None]

STOP_SECONDS = 8.0


class StartFailed(ProjectError):
    """The project's server did not start; the author's traceback is in the details."""

    code = "project.start_failed"


@dataclass(frozen=True, slots=True)
class Served:
    """A sandbox server that answers."""

    url: str
    name: str
    version: str
    pid: int
    tools: list[str]
    rewards: list[str]
    functions: list[str]
    health: str | None
    process: subprocess.Popen[str]


@contextmanager
def served(
    project: Path,
    *,
    log: Log,
    host: str = "127.0.0.1",
    port: int = 0,
    environ: Mapping[str, str] | None = None,
    options: tuple[str, ...] = (),
    patience: float = 120.0,
    python: str = sys.executable,
) -> Iterator[Served]:
    """Start it, wait until it answers, stop it and all that it started.

    `log` receives each line of the instance log, from a thread of its own. Raises StartFailed, or the error that the
    server itself met (a port in use, code that does not import), with nothing left behind.
    """
    project = project.resolve()
    ready_out, ready_in = os.pipe()
    lifeline_out, lifeline_in = os.pipe()
    command = [python, "-m", "aenv.sandbox", str(project), "--host", host, "--port", str(port)]
    command += ["--ready-fd", str(ready_in), "--lifeline-fd", str(lifeline_out), *options]
    try:
        process = subprocess.Popen(
            command,
            # As in the image: what author code opens by a relative path is looked for in the project.
            cwd=project if project.is_dir() else project.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            env={**os.environ, **(environ or {})},
            pass_fds=(ready_in, lifeline_out),
            # Its own group, so that a Ctrl-C here is told to it once, by us, and that its children can be found.
            start_new_session=True,
        )
    except BaseException:
        os.close(ready_out)
        os.close(lifeline_in)
        raise
    finally:
        os.close(ready_in)
        os.close(lifeline_out)
    reader = threading.Thread(target=_copy, args=(process.stdout, log), daemon=True)
    reader.start()
    try:
        yield _await_ready(process, ready_out, project, patience)
    finally:
        _stop(process)
        os.close(lifeline_in)
        reader.join(1.0)


def _copy(stream: IO[str] | None, log: Log) -> None:
    assert stream is not None
    with stream:
        for line in stream:
            log(line.rstrip("\n"))


def _await_ready(process: subprocess.Popen[str], channel: int, project: Path, patience: float) -> Served:
    with os.fdopen(channel, encoding="utf-8") as stream:
        if not select.select([stream], [], [], patience)[0]:
            raise StartFailed(
                f"{project}: the server was not ready after {patience:g} s", hint="see what the project does on import"
            )
        line = stream.readline()
    if not line:
        # The pipe is closed: it died before it could say why.
        code = process.wait(STOP_SECONDS)
        raise StartFailed(f"{project}: the server ended with {_exit(code)} before it was ready", hint="see its log")
    message = json.loads(line)
    if "error" in message:
        raise _told(message)
    return Served(process=process, **message)


def _told(message: Mapping[str, object]) -> AEnvError:
    details = message.get("details")
    hint = message.get("hint")
    error = StartFailed(str(message["error"]), hint=None if hint is None else str(hint))
    error.details = {**(details if isinstance(details, dict) else {}), "cause": message.get("code")}
    return error


def _exit(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _stop(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    # What the tools started and left behind, and the server itself if it did not end.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
