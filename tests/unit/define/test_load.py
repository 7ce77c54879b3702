"""Importing an author's project."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aenv.define.load import load, source_files
from aenv.errors import LoadError

TOOL = "from aenv import register_tool\n@register_tool\ndef {name}() -> str:\n    return '{name}'\n"


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """What a test imports must not be found by the next one."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_src_is_loaded_in_a_stated_order(tmp_path: Path) -> None:
    files = {f"src/{name}.py": TOOL.format(name=name.replace("/", "_")) for name in ("b", "a", "pkg/z", "pkg/c", "ab")}
    write(tmp_path, files)
    assert list(load(tmp_path).tools) == ["a", "ab", "b", "pkg_c", "pkg_z"]


def test_a_module_that_another_imports_is_executed_once(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/main.py": "import shared\nfrom aenv import register_tool\n"
            "@register_tool\ndef count() -> int:\n    return len(shared.runs)\n",
            "src/shared.py": TOOL.format(name="s") + "import builtins\n"
            "builtins.loads_seen = getattr(builtins, 'loads_seen', 0) + 1\nruns = [builtins.loads_seen]\n",
        },
    )
    registry = load(tmp_path)
    assert list(registry.tools) == ["s", "count"]
    assert registry.tools["count"].function() == 1


def test_lazy_imports_work_after_loading(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/lazy.py": "from aenv import register_tool\n@register_tool\ndef late() -> int:\n"
            "    from _hidden import VALUE\n    return VALUE\n",
            "src/_hidden.py": "VALUE = 7\n",
        },
    )
    assert load(tmp_path).tools["late"].function() == 7


def test_tests_private_files_and_virtual_environments_are_not_executed(tmp_path: Path) -> None:
    bomb = "raise SystemExit('executed')\n"
    write(
        tmp_path,
        {
            "src/good.py": TOOL.format(name="good"),
            "src/_private.py": bomb,
            "src/test_it.py": bomb,
            "src/it_test.py": bomb,
            "src/conftest.py": bomb,
            "src/tests/helper.py": bomb,
            "src/__pycache__/x.py": bomb,
            "src/.hidden/x.py": bomb,
            "src/venv/pyvenv.cfg": "",
            "src/venv/lib/x.py": bomb,
        },
    )
    assert [file.name for file in source_files(tmp_path)] == ["good.py"]
    assert list(load(tmp_path).tools) == ["good"]


def test_a_folder_without_src_and_a_single_file_can_be_loaded(tmp_path: Path) -> None:
    write(tmp_path, {"one/single_a.py": TOOL.format(name="a"), "two/single_b.py": TOOL.format(name="b")})
    assert list(load(tmp_path / "one").tools) == ["a"]
    assert list(load(tmp_path / "two" / "single_b.py").tools) == ["b"]


def test_a_file_that_fails_stops_the_load_with_the_authors_own_frames(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "src/deep.py": "import json\ndef work():\n    return json.loads('{')\n",
            "src/fails.py": "import deep\ndeep.work()\n",
            "src/zlater.py": "raise SystemExit('executed')\n",
        },
    )
    with pytest.raises(LoadError, match=r"src/fails.py: JSONDecodeError") as caught:
        load(tmp_path)
    lines = caught.value.details["traceback"]
    assert isinstance(lines, list)
    text = "\n".join(lines)
    assert "fails.py" in text
    assert "deep.py" in text
    assert "json/decoder.py" not in text
    assert "importlib" not in text


def test_a_syntax_error_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, {"src/broken.py": "x = 1\ny = (\n"})
    with pytest.raises(LoadError, match=r"src/broken.py: SyntaxError.*line 2") as caught:
        load(tmp_path)
    assert "importlib" not in str(caught.value.details["traceback"])


def test_a_missing_package_is_told_with_what_to_install(tmp_path: Path) -> None:
    write(tmp_path, {"src/needs.py": "import no_such_package_here\n"})
    with pytest.raises(LoadError, match="no module named 'no_such_package_here'") as caught:
        load(tmp_path)
    assert "pip install no_such_package_here" in str(caught.value.hint)


def test_sys_exit_at_import_is_an_error_not_an_exit(tmp_path: Path) -> None:
    write(tmp_path, {"src/script.py": "import sys\nsys.exit(4)\n"})
    with pytest.raises(LoadError, match=r"sys.exit\(4\)") as caught:
        load(tmp_path)
    assert "__main__" in str(caught.value.hint)


def test_a_wrong_registration_is_told_with_its_file_and_hint(tmp_path: Path) -> None:
    write(tmp_path, {"src/bad.py": "from aenv import register_tool\n@register_tool\ndef f(*names: str): ...\n"})
    with pytest.raises(LoadError, match=r"src/bad.py: tool 'f': parameter '\*names'") as caught:
        load(tmp_path)
    assert "list" in str(caught.value.hint)


def test_a_name_of_the_standard_library_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"src/json.py": TOOL.format(name="mine")})
    with pytest.raises(LoadError, match="module name 'json' belongs to"):
        load(tmp_path)


def test_a_file_name_with_a_dot_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"src/a.b.py": ""})
    with pytest.raises(LoadError, match="cannot hold a dot"):
        load(tmp_path)


def test_a_path_that_is_no_project_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="neither a folder nor a"):
        load(tmp_path / "missing")
