"""What stands in the way of a copy, how it is told, and how an author takes it away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_for
from forkfamily import SOURCE, Found, families

HOOKED = (
    SOURCE
    + '''
from aenv import register_fork

told = []

@register_fork
def outer():
    told.append("outer before")
    told.append(f"outer {(yield)}")

@register_fork
def inner():
    told.append("inner before")
    if "fail" in counts:
        raise ValueError("not now")
    let_go()
    where = yield
    hold("thread")
    told.append(f"inner {where}")

@register_tool
def heard() -> list[str]:
    """What the hooks said."""
    return told
'''
)


@pytest.fixture
def found(tmp_path: Path) -> Iterator[Found]:
    with families(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("thread", "thread 'ticker' runs"),
        ("process", "(sleep), a child, is alive"),
        ("socket", "descriptor {} is a socket"),
        ("pipe", "descriptor {} is a pipe"),
        ("event", "descriptor {} is a kernel object"),
        ("nameless", "descriptor {} is a file without a name"),
    ],
)
def test_what_cannot_be_copied_is_named(found: Found, what: str, named: str) -> None:
    one = found()
    descriptor = one.source.tool("hold", {"what": what}).data
    assert named.format(descriptor) in one.obstacles()
    one.source.tool("let_go")
    assert one.copy("copy").tool("add").data == 1
    assert one.source.tool("add").data == 1


@pytest.mark.parametrize(("what", "named"), [("task", "async task 'pulse' (sleep) is not done"), ("timer", "a timer")])
def test_async_code_with_something_to_do_is_named(found: Found, what: str, named: str) -> None:
    one = found()
    one.source.tool("hold_async", {"what": what})
    assert named in one.obstacles()
    assert one.source.tool("add_async").data == 1
    one.source.tool("let_go")
    copy = one.copy("copy")
    assert [server.tool("add_async").data for server in (copy, one.source)] == [2, 2]


def test_a_gpu_in_use_is_named(found: Found) -> None:
    source = """
import sys, types
cuda = sys.modules["torch.cuda"] = types.ModuleType("torch.cuda")
cuda.is_initialized = lambda: counts.get("gpu", 0) > 0
"""
    one = found(SOURCE + source)
    one.copy("copy")
    one.source.tool("add", {"key": "gpu"})
    assert one.obstacles() == "torch has initialised CUDA"


def test_a_call_that_was_given_up_and_still_runs_is_named(found: Found, tmp_path: Path) -> None:
    one = found()
    answer = one.source.tool("add_when", {"path": str(tmp_path / "go")}, headers={"aenv-timeout": "0.1"})
    assert answer.json["code"] == "tool.timed_out"
    assert "still runs author code of a call that was given up" in one.obstacles()
    (tmp_path / "go").touch()
    wait_for(lambda: one.source.tool("count", {"key": "when"}).data)
    assert one.copy("copy").tool("count", {"key": "when"}).data == 1


def test_every_obstacle_is_listed_and_the_first_has_a_hint(found: Found) -> None:
    one = found()
    for what in ("thread", "pipe"):
        one.source.tool("hold", {"what": what})
    refused = one.refusal()
    assert len(refused["details"]["obstacles"]) == 3
    assert "(and 2 more)" in refused["error"]
    assert "@register_fork" in refused["hint"]


def test_hooks_take_away_what_stands_in_the_way_and_bring_it_back(found: Found) -> None:
    one = found(HOOKED)
    one.source.tool("hold", {"what": "thread"})
    copy = one.copy("copy")
    before = ["outer before", "inner before"]
    assert one.source.tool("heard").data == [*before, "inner source", "outer source"]
    assert copy.tool("heard").data == [*before, "inner copy", "outer copy"]
    assert one.copy("second", of="copy").tool("heard").data[-2:] == ["inner copy", "outer copy"]


def test_a_child_process_that_a_hook_starts_in_the_copy_can_be_ended(found: Found) -> None:
    source = """
from aenv import register_fork
children = [subprocess.Popen(["sleep", "60"])]

@register_fork
def child():
    children.pop().kill()
    yield
    children.append(subprocess.Popen(["sleep", "60"]))

@register_tool
def end() -> int:
    "End the child."
    children[0].terminate()
    return children[0].wait(5)
"""
    one = found(SOURCE + source)
    copy = one.copy("copy")
    assert [server.tool("end").data for server in (one.source, copy)] == [-15, -15]


def test_a_hook_that_fails_in_the_copy_ends_it_and_leaves_the_source(found: Found) -> None:
    source = """
from aenv import register_fork

@register_fork
def picky():
    if (yield) == "copy":
        raise ValueError("not here")
"""
    one = found(SOURCE + source)
    one.order("never")
    wait_for(lambda: "ValueError: not here" in one.log)
    assert one.source.tool("add").data == 1


def test_a_hook_that_raises_refuses_the_copy_and_the_others_are_undone(found: Found) -> None:
    one = found(HOOKED)
    one.source.tool("add", {"key": "fail"})
    refused = one.refusal()
    assert refused["details"]["obstacles"] == ["the fork hook 'inner' raised ValueError: not now"]
    assert any("author.py" in line for line in refused["details"]["traceback"])
    assert one.source.tool("heard").data == ["outer before", "inner before", "outer source"]
    assert one.source.tool("add").data == 1


def test_what_hooks_leave_in_the_way_is_refused_after_they_are_undone(found: Found) -> None:
    one = found(SOURCE + "\nfrom aenv import register_fork\nregister_fork(lambda: counts.update(asked=1))\n")
    one.source.tool("hold", {"what": "pipe"})
    assert "is a pipe" in one.obstacles()
    assert one.source.tool("count", {"key": "asked"}).data == 1


def test_a_hook_that_hangs_refuses_the_copy_and_is_finished_when_it_comes_to_it(found: Found) -> None:
    source = """
from aenv import register_fork
go_on = threading.Event()

@register_fork
def slow():
    go_on.wait()
    counts["where"] = (yield) == "source"

@register_tool
def release() -> None:
    "End the wait."
    go_on.set()
"""
    one = found(SOURCE + source)
    assert one.obstacles(wait=0.2) == "the fork hook 'slow' still runs"
    one.source.tool("release")
    wait_for(lambda: one.source.tool("count", {"key": "where"}).data)
    assert one.copy("copy").tool("add").data == 1
