"""Whatever a user can name is in the reference, under that name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest

import aenv
from aenv.build.validate.catalog import RUN, SERVED, STATIC
from aenv.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
CODES = [*(check.code for check in STATIC), *(check.code for check in RUN), *(check.code for check in SERVED)]


Pages = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def pages() -> Iterator[Pages]:
    """The modules that make the reference know best what there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield lambda name: importlib.import_module(f"pages.{name}")


def page(name: str) -> str:
    return (REFERENCE / name).read_text("utf-8")


@pytest.mark.parametrize("name", aenv.__all__)
def test_every_public_name_has_a_heading(name: str) -> None:
    assert f"\n## {name}\n" in page("api.md")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_heading_and_all_its_options(name: str) -> None:
    text = page("cli.md")
    section = text.partition(f"\n## aenv {name}\n")[2].partition("\n## ")[0]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("-")]
    assert [option for option in options if not re.search(rf"`[^`]*{option}\b", section)] == []


def test_every_error_code_is_listed_once_for_each_class(pages: Pages) -> None:
    errors = pages("errors")
    text = page("errors.md")
    for kind in errors.errors():
        assert f"| `{kind.code}` | {kind.status} | {kind.exit_code} |" in text
    for _, number in errors.rpc_codes():
        assert f"| {number} |" in text


def test_every_route_is_listed(pages: Pages) -> None:
    text = page("http.md")
    for method, path in pages("http").exact_routes():
        assert f"| {method} | `{path}` |" in text
    for path in ("/mcp", "/tools/{name}", "/task/reward/{name}", "/functions/{name}"):
        assert f"| `{path}` |" in text


def test_every_key_of_config_json_is_listed(pages: Pages) -> None:
    text = page("config.md")
    for path in pages("config").paths():
        section, _, key = path.rpartition(".")
        block = text.partition(f"\n## {section or 'Top level'}\n")[2].partition("\n## ")[0]
        assert f"| `{key}` |" in block, path


@pytest.mark.parametrize("code", CODES)
def test_every_finding_is_listed(code: str) -> None:
    assert f"| `{code}`" in page("findings.md")
