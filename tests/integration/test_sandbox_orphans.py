"""A server that is process 1 reaps what nobody else can, and never the children of author code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import need, wait_for
from forkfamily import SOURCE, Found, families

PARENT = '''
import multiprocessing, sys

early = subprocess.Popen(["sh", "-c", "exit 7"])
late = {}

def leave():
    sys.exit(7)

@register_tool
def abandon() -> None:
    """Leave a process behind whose parent has ended."""
    subprocess.run(["sh", "-c", "sleep 0.01 & exit 0"], check=True)

@register_tool
async def bear() -> None:
    """Start a child in every way there is; each ends with 7 at once."""
    command = ["sh", "-c", "exit 7"]
    late["popen"] = subprocess.Popen(command)
    late["thread"] = await asyncio.to_thread(subprocess.Popen, command, start_new_session=True)
    late["forked"] = os.fork()
    if late["forked"] == 0:
        os._exit(7)
    late["spawned"] = os.posix_spawn("/bin/sh", command, os.environ)
    late["spawn"] = multiprocessing.get_context("spawn").Process(target=leave)
    late["fork"] = multiprocessing.get_context("fork").Process(target=leave)
    late["spawn"].start()
    late["fork"].start()

@register_tool
async def statuses() -> list[int]:
    """How each of them ended."""
    found = [late[name].wait() for name in ("popen", "thread")]
    found += [os.waitstatus_to_exitcode(os.waitpid(late[name], 0)[1]) for name in ("forked", "spawned")]
    for name in ("spawn", "fork"):
        late[name].join()
        found.append(late[name].exitcode)
    await asyncio.sleep(0)
    later = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
    return [*found, early.wait(), await later.wait()]

@register_tool
def zombies() -> list[int]:
    """The ended processes that nobody has waited for."""
    stats = [path.read_text() for path in __import__("pathlib").Path("/proc").glob("[0-9]*/stat")]
    return sorted(int(text.split()[0]) for text in stats if ") Z " in text)

@register_tool
def me() -> int:
    """The server's own number."""
    return os.getpid()
'''


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Found]:
    with families(tmp_path) as found:
        yield found


@pytest.fixture
def namespace() -> list[str]:
    """The command that makes what follows it process 1."""
    command = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--fork", "--pid", "--mount-proc"]
    works = shutil.which("unshare") and subprocess.run([*command, "true"], capture_output=True).returncode == 0
    need(works, "no pid namespace is to be had here; try as root, or sysctl kernel.unprivileged_userns_clone=1")
    return command


def test_orphans_are_reaped_and_children_keep_their_status_for_author_code(found: Found, namespace: list[str]) -> None:
    source = found(SOURCE + PARENT, *namespace).source
    assert source.tool("me").data == 1
    source.tool("bear")
    for _ in range(5):
        source.tool("abandon")
    children = 7
    wait_for(lambda: len(source.tool("zombies").data) == children + 5)
    wait_for(lambda: len(source.tool("zombies").data) == children, 20)
    assert source.tool("statuses").data == [7] * 8
    assert source.tool("zombies").data == []


def test_an_orphan_is_reaped_though_no_further_call_comes(found: Found, namespace: list[str]) -> None:
    one = found(SOURCE + PARENT, *namespace)
    one.source.tool("abandon")
    wait_for(lambda: len(one.source.tool("zombies").data) == 2)
    # Seen from outside; the one that stays is a child that the author's code has not asked for.
    (server,) = _children(one.process.pid)
    wait_for(lambda: len(_children(server)) == 1, 20)


def _children(pid: int) -> list[int]:
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def test_copies_of_process_1_are_reaped_when_they_end(found: Found, namespace: list[str]) -> None:
    one = found(SOURCE + PARENT, *namespace)
    one.source.tool("add_async")
    assert one.copy("copy").tool("add_async").data == 2
    (server,) = _children(one.process.pid)
    (copy,) = [child for child in _children(server) if _is_alive(child)]
    os.kill(copy, signal.SIGKILL)
    wait_for(lambda: not _is_alive(copy))
    one.source.tool("add")
    wait_for(lambda: copy not in _children(server), 20)


def _is_alive(pid: int) -> bool:
    return ") Z " not in Path(f"/proc/{pid}/stat").read_text()


def test_children_that_were_waited_for_are_forgotten() -> None:
    code = """
import os, subprocess
from aenv.sandbox.loop import Loop
from aenv.sandbox.orphans import Orphans
orphans = Orphans(Loop())
for _ in range(300):
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
kept = subprocess.Popen(["sleep", "60"])
print(len(orphans._born) < 100, kept.pid in orphans._born)
kept.kill()
kept.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
