"""The source code of an environment that behaves: tools that show what a sandbox is and has."""

from __future__ import annotations

POLITE = '''\
"""Does what it is asked."""

import atexit
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from aenv import register_tool

AT_IMPORT = dict(os.environ)
LOCK = threading.Lock()
COUNTED = [0]
atexit.register(lambda: print("goodbye"))


@register_tool
def echo(text: str) -> str:
    """Return the text."""
    return text


@register_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@register_tool
def count() -> int:
    """How often this was called."""
    with LOCK:
        COUNTED[0] += 1
        return COUNTED[0]


@register_tool
def variables() -> dict[str, str]:
    """The process environment."""
    return dict(os.environ)


@register_tool
def variable_at_import(name: str) -> str | None:
    """A variable as the code saw it while it was imported."""
    return AT_IMPORT.get(name)


@register_tool
def arguments() -> list[str]:
    """What stands in sys.argv after the program."""
    return sys.argv[1:]


@register_tool
def shell(command: str, seconds: float = 30.0) -> dict[str, object]:
    """Run a shell command and keep what it prints."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=seconds, stdin=subprocess.DEVNULL)
    return {"code": done.returncode, "output": (done.stdout + done.stderr).decode("utf-8", "replace")}


@register_tool
def read_file(path: str) -> str | None:
    """The text of a file, or nothing if there is none."""
    file = Path(path)
    return file.read_text("utf-8") if file.exists() else None


@register_tool
def write_file(path: str, text: str) -> str:
    """Write a file; its absolute path."""
    file = Path(path)
    file.write_text(text, "utf-8")
    return str(file.absolute())


@register_tool
def temporary_folder() -> str:
    """Where temporary files go."""
    return tempfile.gettempdir()


@register_tool
async def nap(seconds: float) -> float:
    """Answer later."""
    import asyncio

    await asyncio.sleep(seconds)
    return seconds


@register_tool
def pid() -> int:
    """The process that serves, as it sees itself."""
    return os.getpid()


@register_tool
def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


@register_tool
def have_child_say(text: str) -> None:
    """Have a child process print a line on the same output."""
    subprocess.run(["echo", text], check=True, stdin=subprocess.DEVNULL)
'''
