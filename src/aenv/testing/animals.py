"""The source code of the zoo: environments that misbehave, each in one way of its own.

Whatever takes something takes no more than it is told to, so that an engine without limits harms nobody either.
"""

from __future__ import annotations

from collections.abc import Mapping

_NEVER_HEALTHY = '''\
from aenv import register_health


@register_health
def health() -> bool:
    """Never."""
    return False
'''

_HANGS_AT_START = """\
import time

print("before the hang", flush=True)
time.sleep(3600)
"""

_DIES_AT_START = """\
import os

print("last words", flush=True)
os._exit(7)
"""

_RAISES_AT_IMPORT = """\
def prepare() -> None:
    raise RuntimeError("no such luck")


prepare()
"""

_SLOW_IMPORT = """\
import time

time.sleep(1.0)
"""

_DIES_MID_CALL = '''\
import ctypes
import os
import signal

from aenv import register_tool


@register_tool
def die(how: str) -> None:
    """End the serving process in the middle of a call."""
    print(f"dying by {how}", flush=True)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
        # The first process of a PID namespace cannot kill itself.
        os._exit(137)
    os._exit(int(how.removeprefix("exit ")))
'''

_IGNORES_SIGTERM = '''\
import atexit
import signal
import subprocess
import time

from aenv import register_tool

signal.signal(signal.SIGTERM, signal.SIG_IGN)
atexit.register(time.sleep, 3600)


@register_tool
def dig_in(mark: str) -> int:
    """Start a child that ignores SIGTERM as well."""
    return subprocess.Popen(["sh", "-c", f"trap '' TERM; sleep 1000; : {mark}"]).pid
'''

_FORKS_DAEMONS = '''\
import os
import subprocess
import time
from pathlib import Path

from aenv import register_tool


def leave_a_fork(mark: str) -> None:
    """A grandchild in a session of its own, known by its name alone."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    Path("/proc/self/comm").write_text(mark[-15:])
    os.closerange(0, 256)
    while True:
        time.sleep(10)


@register_tool
def daemonise(mark: str) -> None:
    """Leave processes behind that are nobody's children."""
    leave_a_fork(mark)
    orphan = ["sh", "-c", f"(setsid sh -c 'sleep 1000; : {mark}' >/dev/null 2>&1 </dev/null &)"]
    subprocess.run(orphan, check=True, env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")})
'''

_FILLS_DISK = '''\
import errno
import os
from pathlib import Path

from aenv import register_tool


@register_tool
def fill(folder: str, most_mb: int) -> dict[str, object]:
    """Write one big file, tell how far it came, and remove it."""
    file = Path(folder) / "filling"
    written = 0
    try:
        with file.open("wb", buffering=0) as stream:
            while written < most_mb:
                stream.write(b"x" * 2**20)
                written += 1
    except OSError as problem:
        return {"written_mb": written, "error": errno.errorcode.get(problem.errno or 0, "?")}
    finally:
        file.unlink(missing_ok=True)
    return {"written_mb": written, "error": None}
'''

_EATS_MEMORY = '''\
from aenv import register_tool


@register_tool
def eat(most_mb: int) -> dict[str, object]:
    """Take memory and touch it, tell how far it came, and let it go."""
    eaten: list[bytes] = []
    try:
        for _ in range(most_mb // 8):
            eaten.append(b"x" * (8 * 2**20))
    except MemoryError:
        return {"eaten_mb": len(eaten) * 8, "error": "MemoryError"}
    return {"eaten_mb": len(eaten) * 8, "error": None}


HELD: list[bytes] = []


@register_tool
def hold(mb: int) -> int:
    """Take memory and keep it."""
    HELD.append(b"x" * (mb * 2**20))
    return len(HELD)
'''

_FORK_BOMB = '''\
import os
import signal

from aenv import register_tool


@register_tool
def bomb(most: int) -> dict[str, object]:
    """Start processes until one is refused, tell how far it came, and end them."""
    started: list[int] = []
    error = None
    try:
        for _ in range(most):
            started.append(os.posix_spawn("/bin/sh", ["sh", "-c", "sleep 60; :"], dict(os.environ)))
    except OSError as problem:
        error = problem.strerror
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {"started": len(started), "error": error}
'''

_OPENS_FILES = '''\
from contextlib import ExitStack

from aenv import register_tool


@register_tool
def open_many(most: int) -> int:
    """Open files until one is refused, tell how far it came, and close them."""
    opened = 0
    with ExitStack() as stack:
        try:
            while opened < most:
                stack.enter_context(open("/dev/null", "rb"))
                opened += 1
        except OSError:
            pass
    return opened
'''

_SPINS = '''\
import resource
import subprocess
import time

from aenv import register_tool


def spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@register_tool
def spin(seconds: float, children: int) -> float:
    """Keep every core busy; seconds of CPU that were had for each second that passed."""
    before, began = spent(), time.monotonic()
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(children)]
    time.sleep(seconds)
    for child in busy:
        child.kill()
        child.wait()
    return (spent() - before) / (time.monotonic() - began)
'''

_PRINTS_A_GIGABYTE = '''\
import subprocess

from aenv import register_tool


@register_tool
def flood(mb: int) -> None:
    """Print that much, then one last line."""
    subprocess.run(["sh", "-c", f"yes 'one more line of sixty-four letters, to be printed millions x' | head -c {mb}M"])
    print("the flood is over", flush=True)
'''

_PRINTS_BINARY = '''\
import os

from aenv import register_tool


@register_tool
def splutter() -> None:
    """Print every byte there is, then a line."""
    os.write(1, bytes(range(256)) * 16 + b"\\n")
    print("after the bytes", flush=True)
'''

_CLOSES_STDIO = '''\
import os

from aenv import register_tool


@register_tool
def close_stdio() -> None:
    """Close the three standard descriptors."""
    for descriptor in (0, 1, 2):
        os.close(descriptor)
'''

_STARTS_THREADS = '''\
import threading
import time

from aenv import register_tool

TICKS = [0]


def tick() -> None:
    while True:
        TICKS[0] += 1
        time.sleep(0.01)


threading.Thread(target=tick, daemon=True).start()


@register_tool
def ticks() -> int:
    """How far the thread of the import has come."""
    return TICKS[0]
'''

ANIMALS: Mapping[str, str | None] = {
    "polite": None,
    "never_healthy": _NEVER_HEALTHY,
    "hangs_at_start": _HANGS_AT_START,
    "dies_at_start": _DIES_AT_START,
    "raises_at_import": _RAISES_AT_IMPORT,
    "slow_import": _SLOW_IMPORT,
    "dies_mid_call": _DIES_MID_CALL,
    "ignores_sigterm": _IGNORES_SIGTERM,
    "forks_daemons": _FORKS_DAEMONS,
    "fills_disk": _FILLS_DISK,
    "eats_memory": _EATS_MEMORY,
    "fork_bomb": _FORK_BOMB,
    "opens_files": _OPENS_FILES,
    "spins": _SPINS,
    "prints_a_gigabyte": _PRINTS_A_GIGABYTE,
    "prints_binary": _PRINTS_BINARY,
    "closes_stdio": _CLOSES_STDIO,
    "starts_threads": _STARTS_THREADS,
}
"""What each does beside the polite tools, which all of them have."""
