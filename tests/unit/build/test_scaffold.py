from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from aenv.build import scaffold as module
from aenv.build.scaffold import TEMPLATES, scaffold
from aenv.cli.main import COMMANDS
from aenv.errors import ProjectError, RefError
from aenv.model.spec import EnvSpec

Replace = Callable[[Path, Path], Path]


def contents(folder: Path) -> dict[str, str]:
    """Every file below a folder, leftovers included."""
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def occupied(tmp_path: Path) -> Path:
    """A folder with two files that a template has too, and two that it has not."""
    target = tmp_path / "demo"
    (target / "src").mkdir(parents=True)
    (target / "src/mine.py").write_text("mine")
    (target / "src/custom_env.py").write_text("old code")
    (target / "config.json").write_text("old config")
    (target / "notes.txt").write_text("notes")
    return target


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_gives_a_project_that_says_what_it_is(template: str, tmp_path: Path) -> None:
    written = scaffold(tmp_path / "my-env", "my-env", "2.1.0", template)

    spec = EnvSpec.parse((tmp_path / "my-env/config.json").read_bytes())
    assert (spec.name, spec.version, spec.storage_name) == ("my-env", "2.1.0", "my-env")
    assert spec.description == TEMPLATES[template]
    assert spec.test.script == "pytest test"
    assert spec.unknown_keys() == []
    needed = {"README.md", "Dockerfile", "requirements.txt", ".gitignore", "config.json", "test/test_env.py"}
    assert needed <= contents(tmp_path / "my-env").keys()
    assert sorted(map(str, written)) == sorted(
        str(tmp_path / "my-env" / name) for name in contents(tmp_path / "my-env")
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_template_leaves_a_blank_or_a_file_that_does_not_compile(template: str, tmp_path: Path) -> None:
    for path in scaffold(tmp_path / "my-env", "my-env", "1.0.0", template):
        assert not re.search(r"\{\{\w+\}\}", path.read_text())
        assert path.suffix != ".tmpl"
        if path.suffix == ".py":
            compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_a_template_tells_to_run_exists(template: str, tmp_path: Path) -> None:
    scaffold(tmp_path / "my-env", "my-env", "1.0.0", template)
    named = set(re.findall(r"`?\baenv (\w+)", (tmp_path / "my-env/README.md").read_text()))
    assert {"run", "test", "validate"} <= named <= COMMANDS.keys()


def test_every_folder_of_templates_is_listed() -> None:
    folders = {path.name for path in Path(module.__file__).with_name("templates").iterdir()}
    assert folders == {*TEMPLATES, "every"}


def test_files_that_exist_are_named_and_nothing_is_written(occupied: Path) -> None:
    before = contents(occupied)
    with pytest.raises(ProjectError) as caught:
        scaffold(occupied, "demo", "1.0.0", "default")
    assert "already holds config.json, src/custom_env.py" in caught.value.message
    assert "--force" in str(caught.value.hint)
    assert contents(occupied) == before


def test_force_replaces_the_templates_files_and_no_others(occupied: Path) -> None:
    scaffold(occupied, "demo", "1.0.0", "default", force=True)
    after = contents(occupied)
    assert after["src/mine.py"] == "mine"
    assert after["notes.txt"] == "notes"
    assert "register_tool" in after["src/custom_env.py"]
    assert EnvSpec.parse(after["config.json"]).name == "demo"
    assert not [name for name in after if name.startswith(".aenv-init")]


def test_files_that_are_missing_are_added_without_force(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/LICENSE").write_text("mine")
    scaffold(tmp_path / "demo", "demo", "1.0.0", "default")
    assert contents(tmp_path / "demo")["LICENSE"] == "mine"


def test_config_only_writes_one_file_without_words_about_the_code(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("mine")
    assert scaffold(tmp_path, "demo", "1.0.0", "terminal", config_only=True) == [tmp_path / "config.json"]
    assert contents(tmp_path).keys() == {"app.py", "config.json"}
    assert EnvSpec.parse(contents(tmp_path)["config.json"]).description == ""


def test_a_new_folder_is_as_open_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    scaffold(tmp_path / "demo", "demo", "1.0.0", "default")
    assert (tmp_path / "demo").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("fails_at", range(1, 11))
def test_whichever_move_fails_the_folder_is_as_it_was(
    occupied: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    before, moves, real = contents(occupied), 0, Path.replace

    def replace(self: Path, target: Path) -> Path:
        nonlocal moves
        moves += 1
        if moves == fails_at:
            raise OSError(28, "No space left on device", str(self), None, str(target))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(ProjectError, match="No space left on device"):
        scaffold(occupied, "demo", "1.0.0", "default", force=True)
    assert contents(occupied) == before
    assert {path.name for path in occupied.iterdir()} == {"src", "config.json", "notes.txt"}


def test_an_interrupt_between_two_moves_leaves_the_folder_as_it_was(
    occupied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = contents(occupied), Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target.name == "requirements.txt":
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        scaffold(occupied, "demo", "1.0.0", "default", force=True)
    assert contents(occupied) == before


def test_a_file_that_cannot_be_put_back_is_not_thrown_away(occupied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target == occupied / "config.json":
            raise OSError(5, "Input/output error", str(self), None, str(target))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(ProjectError, match="cannot put back") as caught:
        scaffold(occupied, "demo", "1.0.0", "default", force=True)
    place = next(name for name, text in contents(occupied).items() if text == "old config")
    assert str((occupied / place).parent) in str(caught.value.hint)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A limit on the size of files: the kernel refuses the write, as it would on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ProjectError, match=r"cannot write .*demo"):
            scaffold(tmp_path / "demo", "demo", "1.0.0", "default")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_on_another_device_is_an_error_that_changes_nothing(occupied: Path) -> None:
    other = Path("/proc/self")
    if not other.is_dir():
        pytest.skip("needs /proc; run the tests on Linux")
    (occupied / "test").symlink_to(other)
    before = {path: path.read_text() for path in (occupied / "config.json", occupied / "src/custom_env.py")}
    with pytest.raises(ProjectError, match=r"test/conftest\.py"):
        scaffold(occupied, "demo", "1.0.0", "default", force=True)
    assert {path: path.read_text() for path in before} == before
    assert {path.name for path in occupied.iterdir()} == {"src", "test", "config.json", "notes.txt"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; run the tests as another user")
def test_a_folder_without_permission_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ProjectError, match="Permission denied"):
            scaffold(tmp_path / "demo", "demo", "1.0.0", "default")
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_does_not_exist_yet_cannot_hold_a_project(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="No such file or directory"):
        scaffold(tmp_path / "missing/demo", "demo", "1.0.0", "default")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_where_a_file_must_go_is_refused_even_with_force(tmp_path: Path, force: bool) -> None:
    (tmp_path / "demo/Dockerfile").mkdir(parents=True)
    with pytest.raises(ProjectError, match=r"demo/Dockerfile' is in the way: a file must go there"):
        scaffold(tmp_path / "demo", "demo", "1.0.0", "default", force=force)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("path", ["demo", "demo/src"])
def test_a_file_where_a_folder_must_go_is_refused_even_with_force(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text("mine")
    with pytest.raises(ProjectError, match="is in the way: a folder must go there"):
        scaffold(tmp_path / "demo", "demo", "1.0.0", "default", force=True)
    assert contents(tmp_path) == {path: "mine"}


def test_force_replaces_a_link_and_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.json").write_text("precious")
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/config.json").symlink_to(tmp_path / "elsewhere.json")
    scaffold(tmp_path / "demo", "demo", "1.0.0", "default", force=True)
    assert (tmp_path / "elsewhere.json").read_text() == "precious"
    assert not (tmp_path / "demo/config.json").is_symlink()


@pytest.mark.parametrize("name", ["", "Demo", "de mo", "../demo", "demo/", "-demo", "demo-", "d" * 64, "démo", "."])
def test_a_name_that_may_not_be_one_writes_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(RefError):
        scaffold(tmp_path / "x", name, "1.0.0", "default")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", ["", "1", "1.0", "v1.0.0", "latest", '1.0.0"'])
def test_a_version_that_is_none_writes_nothing(tmp_path: Path, version: str) -> None:
    with pytest.raises(RefError):
        scaffold(tmp_path / "x", "demo", version, "default")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_template_is_answered_with_the_nearest_and_with_all(tmp_path: Path) -> None:
    with pytest.raises(ProjectError) as caught:
        scaffold(tmp_path / "x", "demo", "1.0.0", "termnal")
    assert "did you mean 'terminal'?" in caught.value.message
    assert all(f"{name} " in caught.value.message for name in TEMPLATES)


@pytest.mark.parametrize("template", ["every", "../templates/default", ""])
def test_only_a_listed_template_is_one(tmp_path: Path, template: str) -> None:
    with pytest.raises(ProjectError, match="no template is called"):
        scaffold(tmp_path / "x", "demo", "1.0.0", template)
