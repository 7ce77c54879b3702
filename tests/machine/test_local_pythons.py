"""Python environments made of requirements.txt, with real installers and packages written on the spot."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import pytest
from conftest import need, wait_for

from aenv.engines.local.pythons import PythonEnvironment, Pythons
from aenv.errors import ConfigError, EngineUnavailable, PythonFailed

Installer = Literal["uv", "pip"]

# A build backend without requirements. It tells of every build, and waits for a gate if it is given one.
BACKEND = """
import os, time, zipfile
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    if count := os.environ.get("PROBE_COUNT"):
        with open(count, "a") as file:
            file.write(f"{os.getpid()}\\n")
    gate = os.environ.get("PROBE_GATE")
    while gate and not Path(gate).exists():
        time.sleep(0.01)
    name = "vendored-1.0-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder) / name, "w") as wheel:
        wheel.writestr("vendored.py", Path("vendored.py").read_text())
        about = "vendored-1.0.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\\nName: vendored\\nVersion: 1.0\\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""

WORKER = """
import asyncio, sys
from pathlib import Path
from aenv.engines.local.pythons import Pythons

async def main():
    pythons = Pythons(Path(sys.argv[1]), installer=sys.argv[3])
    made = await asyncio.gather(*(pythons.ensure(Path(sys.argv[2])) for _ in range(4)))
    sys.stdout.write("\\n".join({one.python for one in made}))

asyncio.run(main())
"""


@pytest.fixture(params=["uv", "pip"])
def installer(request: pytest.FixtureRequest) -> Installer:
    has_uv = shutil.which("uv") or find_spec("uv")
    need(request.param == "pip" or has_uv, "uv is not installed; try `pip install uv`")
    need(request.param == "uv" or find_spec("pip"), "pip is not installed; try `python -m ensurepip`")
    return "uv" if request.param == "uv" else "pip"


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installers that see no index and no cache but the test's."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip-cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two wheels beside it, `leaf` 1.0 and `twig` 1.0."""
    folder = tmp_path / "a project"
    (folder / "wheels").mkdir(parents=True)
    write_wheel(folder / "wheels", "leaf")
    write_wheel(folder / "wheels", "twig", needs="leaf")
    return folder


@pytest.fixture
def vendored(project: Path) -> Path:
    """A project whose only requirement is a package of its own, built from source."""
    package = project / "vendored"
    package.mkdir()
    (package / "vendored.py").write_text("value = 1\n")
    (package / "backend.py").write_text(BACKEND)
    lines = ["[build-system]", "requires = []", 'build-backend = "backend"', 'backend-path = ["."]']
    (package / "pyproject.toml").write_text("\n".join(lines))
    return write(project, "--no-index", "./vendored")


@pytest.fixture
def count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line, the builder's pid, for every build begun."""
    monkeypatch.setenv("PROBE_COUNT", str(tmp_path / "count"))
    return tmp_path / "count"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that builds wait for."""
    monkeypatch.setenv("PROBE_GATE", str(tmp_path / "gate"))
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()


def write_wheel(folder: Path, name: str, version: str = "1.0", needs: str = "") -> None:
    about = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {needs}\n" if needs else ""
    )
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version!r}\n")
        wheel.writestr(f"{about}/METADATA", metadata)
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def write(project: Path, *lines: str) -> Path:
    (project / "requirements.txt").write_text("\n".join(lines) + "\n")
    return project / "requirements.txt"


def ask(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def ensure(pythons: Pythons, file: Path | None, progress: Callable[[str], None] | None = None) -> PythonEnvironment:
    return asyncio.run(pythons.ensure(file, progress=progress))


def is_gone(pid: int) -> bool:
    """Whether it has ended; one that nobody reaped yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def first_builder(count: Path) -> int:
    return int(wait_for(lambda: count.read_text() if count.exists() else "", 30).split()[0])


def start_worker(folder: Path, file: Path, installer: Installer) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(folder), str(file), installer]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("lines", [[], ["# nothing"], ["aenvironment"], ["AEnvironment>=0.1 # ours", "--no-index"]])
def test_requirements_that_name_nothing_new_give_the_interpreter_that_runs_us(
    lines: list[str], project: Path, tmp_path: Path
) -> None:
    made = ensure(Pythons(tmp_path / "pythons"), write(project, *lines))
    assert (made.key, made.python) == ("base", sys.executable)
    assert not (tmp_path / "pythons").exists()


def test_no_requirements_give_the_interpreter_that_runs_us(project: Path, tmp_path: Path) -> None:
    pythons = Pythons(tmp_path / "pythons")
    assert ensure(pythons, None) == ensure(pythons, project / "requirements.txt")
    assert ensure(pythons, None).key == "base"


def test_packages_import_beside_aenv_and_all_it_needs(installer: Installer, project: Path, tmp_path: Path) -> None:
    file = write(project, "aenvironment==0.0.1", "--no-index --find-links wheels", "twig")
    lines: list[str] = []
    made = ensure(Pythons(tmp_path / "deep" / "pythons", installer=installer), file, lines.append)
    code = "import leaf, twig, aenv.sandbox.server, aenv, pydantic; print(leaf.version, aenv.__version__)"
    assert ask(made.python, code) == f"1.0 {ask(sys.executable, 'import aenv; print(aenv.__version__)')}"
    assert any("twig" in line for line in lines)


def test_the_second_time_nothing_is_built(installer: Installer, vendored: Path, count: Path, tmp_path: Path) -> None:
    first = ensure(Pythons(tmp_path / "pythons", installer=installer), vendored)
    lines: list[str] = []
    assert ensure(Pythons(tmp_path / "pythons", installer=installer), vendored, lines.append) == first
    assert lines == []
    assert len(count.read_text().split()) == 1


def test_pip_takes_what_the_interpreter_already_has(project: Path, tmp_path: Path) -> None:
    file = write(project, "--no-index", "--find-links=wheels", "leaf", "pydantic>=2")
    made = ensure(Pythons(tmp_path / "pythons", installer="pip"), file)
    assert ask(made.python, "import pydantic; print(pydantic.__file__)") == ask(
        sys.executable, "import pydantic; print(pydantic.__file__)"
    )


def test_a_package_that_needs_aenvironment_gets_the_one_that_is_there(
    installer: Installer, project: Path, tmp_path: Path
) -> None:
    write_wheel(project / "wheels", "bough", needs="aenvironment")
    made = ensure(
        Pythons(tmp_path / "pythons", installer=installer), write(project, "--no-index", "-f wheels", "bough")
    )
    assert ask(made.python, "import bough, aenv; print(aenv.__file__)") == ask(
        sys.executable, "import aenv; print(aenv.__file__)"
    )


def test_an_extra_of_aenvironment_asks_for_what_the_extra_needs(
    installer: Installer, project: Path, tmp_path: Path
) -> None:
    write_wheel(project / "wheels", "mcp", "2.5")
    write_wheel(project / "wheels", "mcp", "3.5")
    file = write(project, "--no-index", "-f wheels", "aenvironment[mcp]>=0.1")
    made = ensure(Pythons(tmp_path / "pythons", installer=installer), file)
    assert ask(made.python, "import importlib.metadata as m; print(m.version('mcp'))").startswith("2.")


def test_included_files_and_constraints_hold(installer: Installer, project: Path, tmp_path: Path) -> None:
    write_wheel(project / "wheels", "leaf", "2.0")
    (project / "more").mkdir()
    (project / "more" / "other.txt").write_text("--find-links ../wheels\ntwig\n-c limits.txt\n")
    (project / "more" / "limits.txt").write_text("leaf<2\n")
    made = ensure(Pythons(tmp_path / "pythons", installer=installer), write(project, "--no-index", "-r more/other.txt"))
    assert ask(made.python, "import leaf; print(leaf.version)") == "1.0"


def test_an_editable_package_of_the_project_is_installed_as_it_is(
    installer: Installer, vendored: Path, tmp_path: Path
) -> None:
    file = write(vendored.parent, "--no-index", "-e ./vendored")
    before = sorted(path.name for path in (vendored.parent / "vendored").iterdir())
    pythons = Pythons(tmp_path / "pythons", installer=installer)
    first = ensure(pythons, file)
    assert sorted(path.name for path in (vendored.parent / "vendored").iterdir()) == before
    (vendored.parent / "vendored" / "vendored.py").write_text("value = 2\n")
    second = ensure(pythons, file)
    assert [ask(made.python, "import vendored; print(vendored.value)") for made in (first, second)] == ["1", "2"]


def test_comments_and_blanks_change_nothing_but_order_does(project: Path, tmp_path: Path) -> None:
    pythons = Pythons(tmp_path / "pythons")
    plain = ensure(pythons, write(project, "--no-index", "-f wheels", "leaf", "twig==1.0"))
    noted = ensure(pythons, write(project, "# why", "", "--no-index", "-f  wheels", "leaf  # green", "twig==\\", "1.0"))
    turned = ensure(pythons, write(project, "--no-index", "-f wheels", "twig==1.0", "leaf"))
    assert noted == plain
    assert turned.key != plain.key


@pytest.mark.parametrize(
    "line",
    [
        "-r ../other.txt",
        "-r/etc/hostname",
        "-c ../other.txt",
        "-e ..",
        "--editable=../outside",
        "../outside",
        "/tmp",
        "./link",
        "outside @ file:///tmp",
        "outside@../outside",
        "file:///tmp",
        "git+file:///tmp",
        "--find-links /tmp",
        "--index-url file:///tmp",
        "{project}/wheels/leaf-1.0-py3-none-any.whl",
    ],
)
def test_a_line_that_leads_out_of_the_project_is_refused(line: str, project: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("leaf\n")
    (tmp_path / "outside").mkdir()
    (project / "link").symlink_to("../outside")
    with pytest.raises(ConfigError, match="leads out of the project"):
        ensure(Pythons(tmp_path / "pythons"), write(project, line.format(project=project)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-r requirements.txt", "includes itself"),
        ("./nowhere", "not there"),
        ("--target=here", "not supported"),
        ("-f 'wheels", "cannot be read"),
    ],
)
def test_a_line_that_cannot_be_is_refused(line: str, words: str, project: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        ensure(Pythons(tmp_path / "pythons"), write(project, line))


def test_a_failure_names_the_requirement_and_is_not_kept(installer: Installer, project: Path, tmp_path: Path) -> None:
    pythons = Pythons(tmp_path / "pythons", installer=installer)
    file = write(project, "--no-index", "-f wheels", "leaf", "bark==9")
    with pytest.raises(PythonFailed, match="bark") as caught:
        ensure(pythons, file)
    assert "bark" in str(caught.value.details["output"])
    assert caught.value.hint
    assert list((tmp_path / "pythons").iterdir()) == []
    with pytest.raises(PythonFailed, match="bark==9"):
        ensure(pythons, file)


def test_a_version_that_aenv_cannot_live_with_is_refused(installer: Installer, project: Path, tmp_path: Path) -> None:
    write_wheel(project / "wheels", "orjson", "1.0")
    with pytest.raises(PythonFailed, match="orjson"):
        ensure(
            Pythons(tmp_path / "pythons", installer=installer), write(project, "--no-index", "-f wheels", "orjson==1.0")
        )


def test_an_interpreter_without_aenv_is_refused(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    with pytest.raises(EngineUnavailable, match="does not import aenv"):
        ensure(Pythons(tmp_path / "pythons", python=str(tmp_path / "bare" / "bin" / "python")), None)


def test_everybody_may_read_an_environment_whatever_the_umask(
    installer: Installer, project: Path, tmp_path: Path
) -> None:
    before = os.umask(0o077)
    try:
        file = write(project, "--no-index", "-f wheels", "leaf")
        made = ensure(Pythons(tmp_path / "pythons", installer=installer), file)
    finally:
        os.umask(before)
    place = Path(made.python).parents[1]
    assert (tmp_path / "pythons").stat().st_mode & 0o777 == 0o755
    for path in (place, *place.rglob("*")):
        wanted = 0o555 if path.is_dir() else 0o444
        assert path.is_symlink() or path.stat().st_mode & wanted == wanted, path
    assert list(place.glob("lib/*/site-packages/__pycache__/leaf.*.pyc"))


@pytest.mark.parametrize("lines", [["aenvironment"], ["--no-index", "-f wheels", "twig"]])
def test_what_is_visible_is_enough_to_import_everything(lines: list[str], project: Path, tmp_path: Path) -> None:
    box = ["bwrap", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev", "--clearenv"]
    for name in ("bin", "lib", "lib64"):
        box += ["--symlink", f"usr/{name}", f"/{name}"]
    has_box = shutil.which("bwrap") and subprocess.run([*box, "/usr/bin/true"], capture_output=True).returncode == 0
    need(has_box, "bwrap does not run here; try `apt install bubblewrap`")
    made = ensure(Pythons(tmp_path / "pythons"), write(project, *lines))
    for path in made.visible:
        box += ["--ro-bind", str(path), str(path)]
    code = "import aenv.sandbox.server" + ("" if made.key == "base" else ", leaf, twig")
    subprocess.run([*box, made.python, "-c", code], check=True, timeout=30)


def test_eight_at_once_in_two_processes_make_one_build(
    installer: Installer, vendored: Path, count: Path, gate: Path, tmp_path: Path
) -> None:
    workers = [start_worker(tmp_path / "pythons", vendored, installer) for _ in range(2)]
    first_builder(count)
    gate.touch()
    outputs = [worker.communicate(timeout=60)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], outputs
    assert outputs[0] == outputs[1]
    assert len(count.read_text().split()) == 1
    assert ask(outputs[0], "import vendored; print(vendored.value)") == "1"


def test_a_build_that_was_killed_is_made_anew(
    installer: Installer, vendored: Path, count: Path, gate: Path, tmp_path: Path
) -> None:
    worker = start_worker(tmp_path / "pythons", vendored, installer)
    builder = first_builder(count)
    worker.send_signal(signal.SIGKILL)
    worker.communicate(timeout=10)
    wait_for(lambda: is_gone(builder))
    gate.touch()
    lines: list[str] = []
    made = ensure(Pythons(tmp_path / "pythons", installer=installer), vendored, lines.append)
    assert "removing what an interrupted build left" in lines
    assert ask(made.python, "import vendored; print(vendored.value)") == "1"


def test_a_build_goes_on_while_somebody_waits_for_it(vendored: Path, count: Path, gate: Path, tmp_path: Path) -> None:
    async def give_up_one_of_two() -> tuple[PythonEnvironment, list[str]]:
        pythons = Pythons(tmp_path / "pythons", installer="pip")
        lines: list[str] = []
        first = asyncio.create_task(pythons.ensure(vendored))
        await asyncio.to_thread(first_builder, count)
        second = asyncio.create_task(pythons.ensure(vendored, progress=lines.append))
        await asyncio.to_thread(wait_for, lambda: lines)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await asyncio.to_thread(gate.touch)
        return await second, lines

    made, lines = asyncio.run(give_up_one_of_two())
    assert lines[0].startswith("waiting for another build")
    assert any("vendored" in line for line in lines[1:])
    assert len(count.read_text().split()) == 1
    assert ask(made.python, "import vendored; print(vendored.value)") == "1"


@pytest.mark.usefixtures("gate")
def test_a_build_that_nobody_waits_for_ends_and_leaves_nothing(
    installer: Installer, vendored: Path, count: Path, tmp_path: Path
) -> None:
    async def give_up() -> None:
        task = asyncio.create_task(Pythons(tmp_path / "pythons", installer=installer).ensure(vendored))
        await asyncio.to_thread(first_builder, count)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert is_gone(first_builder(count))
    assert list((tmp_path / "pythons").iterdir()) == []


def test_who_waits_for_another_process_may_give_up(
    installer: Installer, vendored: Path, count: Path, gate: Path, tmp_path: Path
) -> None:
    async def give_up() -> None:
        lines: list[str] = []
        task = asyncio.create_task(Pythons(tmp_path / "pythons").ensure(vendored, progress=lines.append))
        await asyncio.to_thread(wait_for, lambda: lines)
        assert lines[0].startswith("waiting for another build")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    worker = start_worker(tmp_path / "pythons", vendored, installer)
    first_builder(count)
    asyncio.run(give_up())
    gate.touch()
    python = worker.communicate(timeout=60)[0]
    assert ask(python, "import vendored; print(vendored.value)") == "1"
    assert len(count.read_text().split()) == 1


def test_only_what_was_not_used_for_long_is_removed(project: Path, tmp_path: Path) -> None:
    pythons = Pythons(tmp_path / "pythons")
    assert pythons.unused(0) == []
    file = write(project, "--no-index", "-f wheels", "leaf")
    made = ensure(pythons, file)
    assert pythons.unused(3600) == []
    assert not asyncio.run(pythons.remove(made.key, older_than=3600))
    long_ago = time.time() - 7200
    os.utime(Path(made.python).parents[1] / "aenv.json", (long_ago, long_ago))
    assert pythons.unused(3600) == [made.key]
    assert ensure(pythons, file) == made
    assert pythons.unused(3600) == []
    assert asyncio.run(pythons.remove(made.key))
    assert not asyncio.run(pythons.remove(made.key))
    assert list((tmp_path / "pythons").iterdir()) == []
    assert ask(ensure(pythons, file).python, "import leaf; print(leaf.version)") == "1.0"


@pytest.mark.parametrize("key", ["base", "..", "../..", "nothing"])
def test_a_key_that_is_none_removes_nothing(key: str, tmp_path: Path) -> None:
    assert not asyncio.run(Pythons(tmp_path / "pythons").remove(key))
    assert tmp_path.exists()
