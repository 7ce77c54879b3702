"""The pytest plugin of the engine suite: the option `--engine`, the bench, gaps and leaks."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping
from importlib import import_module

import pytest

from aenv._util.ids import new_id
from aenv.testing.engine_bench import OWNERS_VARIABLE, Bench, Loop, Subject
from aenv.testing.zoo import Zoo


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--engine`."""
    parser.addoption(
        "--engine",
        metavar="MODULE:NAME",
        help="engine to try: a function or class that makes one, or an aenv.testing.engine_bench.Subject",
    )


def load_subject(home: str) -> Subject:
    """The subject that `module:name` says."""
    module, colon, name = home.partition(":")
    if not colon:
        raise pytest.UsageError(f"--engine is {home!r}; write it as module:name")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise pytest.UsageError(f"--engine {home}: {problem}") from problem
    return found if isinstance(found, Subject) else Subject(found)


@pytest.fixture(scope="module")
def subject(request: pytest.FixtureRequest) -> Subject:
    """The engine that the command line names; a test module may put its own fixture in place of this one."""
    home: str | None = request.config.getoption("--engine", None)
    if home is None:
        raise pytest.UsageError("say which engine: --engine my_package:MyEngine")
    # As with `python -m`, what lies in the current folder can be named.
    sys.path.insert(0, str(request.config.invocation_params.dir))
    return load_subject(home)


def check_gaps(gaps: Mapping[str, str]) -> None:
    """Refuse a gap that names no test: it would hide nothing today, and something tomorrow."""
    known = vars(import_module("aenv.testing.engine_suite"))
    if unknown := sorted(set(gaps) - set(known)):
        raise pytest.UsageError(f"gaps name tests that the suite does not have: {', '.join(unknown)}")


@pytest.fixture(scope="module")
def bench_of_module(subject: Subject, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One engine for all tests of a module, closed with nothing left behind."""
    check_gaps(subject.gaps)
    folder = tmp_path_factory.mktemp("zoo")
    # An engine may start sandboxes under another user.
    for place in (folder, *folder.parents[:2]):
        place.chmod(0o755)
    loop = Loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OWNERS_VARIABLE, new_id("own"))
        bench = Bench(subject, Zoo(folder), loop)
        try:
            yield bench
            bench.close()
        finally:
            loop.close()


@pytest.fixture
def bench(bench_of_module: Bench) -> Bench:
    """The engine in use, for one test."""
    return bench_of_module


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Sweep as part of the test, so that a leak is the failure of the test that made it, and a gap can name it.

    A gap is no `xfail` mark, for that would forgive failures of fixtures as well.
    """
    bench = pyfuncitem.funcargs.get("bench")
    if not isinstance(bench, Bench):
        return (yield)
    why = bench.subject.gaps.get(pyfuncitem.originalname)
    try:
        result = yield
        bench.sweep()
    except (Exception, pytest.fail.Exception):
        if why is None:
            bench.renew()
            raise
        bench.sweep()
        pytest.xfail(why)
    if why is not None:
        pytest.fail(f"{pyfuncitem.originalname} is listed as a gap ({why}), and holds: take it off the list")
    return result
