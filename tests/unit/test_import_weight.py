"""What `import aenv`, `aenv --help` and a start of the sandbox server must not load."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "asyncio", "docstring_parser", "httptools", "httpx", "httpx2", "importlib.metadata", "json", "mcp", "orjson",
    "pydantic", "rich", "ssl", "starlette", "unittest", "urllib.request", "uvicorn", "yaml",
}  # fmt: skip


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_import_aenv_loads_nothing_but_itself() -> None:
    bare = loaded("import importlib, __future__")
    assert loaded("import aenv") - bare == {"aenv", "aenv._version"}


def test_help_loads_click_and_nothing_heavy() -> None:
    code = "from aenv.cli.main import main\nmain(['--help'])"
    modules = loaded(code)
    assert "click" in modules
    assert modules & (HEAVY | {"dataclasses", "logging", "traceback"}) == set()
    assert not {name for name in modules if name.startswith("aenv.cli.commands.")}


@pytest.mark.parametrize("module", ["aenv.sandbox.server", "aenv.sandbox.__main__"])
def test_the_sandbox_server_starts_without_asyncio_pydantic_or_ssl(module: str) -> None:
    assert loaded(f"import {module}") & {"asyncio", "click", "mcp", "pydantic", "rich", "ssl"} == set()


def test_every_public_name_can_be_had() -> None:
    code = (
        "import aenv\nassert [getattr(aenv, name) for name in aenv.__all__]\nassert set(aenv.__all__) <= set(dir(aenv))"
    )
    assert "aenv.define.decorators" in loaded(code)
    with pytest.raises(subprocess.CalledProcessError):
        loaded("import aenv\naenv.nonsense")
