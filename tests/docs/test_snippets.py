"""What the documentation shows is what happens: examples are loaded, commands are run, outputs are compared.

A comment on the line above a block says what a reader would do with it; the blocks of one page share a folder.

    <!-- file: PATH -->      save it there; a project made this way must pass `aenv validate`, or be called broken
    <!-- run -->             run the script, or each command after a `$`, and see what is shown
    <!-- run: exit 1 -->     the same, and the last command ends with that code
    <!-- serve -->           keep the one command running while the rest of the page is read

In shown output `...` stands for anything. Port 8081 is replaced by a free one.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import need, wait_for

from aenv.sandbox.server import open_listener

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BIN = Path(sys.executable).parent

_FENCE = re.compile(r"^```(\w*)")
# A command goes on after a backslash, and on lines that are indented by four.
_COMMAND = re.compile(r"(?:.*\\\n)*.*\n(?: {4}.*\n)*")
_MARK = re.compile(r"^<!-- (file|run|serve)(?:: (.+))? -->$")


class Block(NamedTuple):
    """A fenced block, and what its mark says."""

    line: int
    language: str
    mark: str
    detail: str
    text: str


def read_blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text("utf-8").splitlines()
    position = 0
    while position < len(lines):
        if (fence := _FENCE.match(lines[position])) is not None:
            end = lines.index("```", position + 1)
            mark = _MARK.match(lines[position - 1])
            words = (mark[1], mark[2] or "") if mark else ("", "")
            yield Block(position + 1, fence[1], *words, "\n".join(lines[position + 1 : end]) + "\n")
            position = end
        position += 1


def is_marked(page: Path) -> bool:
    return any(block.mark for block in read_blocks(page))


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Reader:
    """Somebody who does what a page says, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / ".curlrc").write_text("silent\nshow-error\n")
        self.top = self.folder = folder / "work"
        self.top.mkdir()
        with open_listener("127.0.0.1", 0) as probe:
            self.port = str(probe.getsockname()[1])
        self.running: subprocess.Popen[str] | None = None

    def follow(self, block: Block) -> None:
        text = block.text.replace("8081", self.port)
        if block.mark == "file":
            self._save(self.top / block.detail, text)
        elif block.mark == "serve":
            self._serve(text)
        elif block.language == "python":
            self._check(self._shell(f"{sys.executable} -c {shlex.quote(text)}"), "...", 0, block)
        elif block.mark == "run":
            self._type_all(text, block)

    def projects(self) -> list[Path]:
        return sorted(folder.parent for folder in self.top.rglob("src") if folder.parent.name != "broken")

    def leave(self) -> None:
        if self.running is not None:
            self.running.terminate()
            self.running.wait(10)
            assert self.running.stdout is not None
            self.running.stdout.close()
            self.running = None

    def _save(self, file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        config = file.parents[1] / "config.json"
        if file.parent.name == "src" and not config.exists():
            config.write_text('{"name": "example", "version": "1.0.0"}')

    def _type_all(self, text: str, block: Block) -> None:
        *commands, last = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
        for typed in commands:
            self._type(typed, 0, block)
        self._type(last, int(block.detail.removeprefix("exit ") or 0), block)

    def _type(self, typed: str, code: int, block: Block) -> None:
        found = _COMMAND.match(typed)
        assert found is not None, typed
        self._check(self._shell(found[0]), typed[found.end() :], code, block)

    def _shell(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command where the last one ended, both streams in one as on a terminal."""
        place = self.home / "cwd"
        done = subprocess.run(
            ["sh", "-c", f'{command}\ncode=$?; pwd > "{place}"; exit $code'],
            cwd=self.folder,
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        if place.exists():
            self.folder = Path(place.read_text().strip())
        return done

    def _environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)])
        return {**os.environ, "PATH": path, "HOME": str(self.home), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}

    def _check(self, done: subprocess.CompletedProcess[str], shown: str, code: int, block: Block) -> None:
        where = f"line {block.line}: {block.text.splitlines()[0]}"
        assert done.returncode == code, f"{where}\nended with {done.returncode}:\n{done.stdout}"
        assert pattern(shown).fullmatch(tidy(done.stdout)), f"{where}\nis shown as\n{shown}\nbut says\n{done.stdout}"

    def _serve(self, text: str) -> None:
        """One at a time: a reader presses Ctrl-C before the next."""
        self.leave()
        command, _, shown = text.removeprefix("$ ").partition("\n")
        words = [*shlex.split(command), "--port", self.port]
        self.running = subprocess.Popen(
            words,
            cwd=self.folder,
            env=self._environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said: list[str] = []
        stream = self.running.stdout
        assert stream is not None
        threading.Thread(target=lambda: said.extend(stream), daemon=True).start()
        wanted = pattern(shown)
        try:
            wait_for(lambda: " is served at " in "".join(said) and wanted.match(tidy("".join(said))), 20)
        except AssertionError:
            pytest.fail(f"`{command}` is shown as\n{shown}\nbut says\n{''.join(said)}")


def tidy(text: str) -> str:
    """Without blank lines and spaces at line ends."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def pattern(shown: str) -> re.Pattern[str]:
    """What is shown, as an expression in which `...` is anything."""
    parts = tidy(shown).split("...")
    return re.compile(".*".join(re.escape(part) for part in parts), re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if is_marked(page)], ids=relative)
def test_a_reader_who_does_what_a_page_says_sees_what_it_shows(page: Path, tmp_path: Path) -> None:
    need(shutil.which("curl"), "curl is not installed; try `apt install curl`")
    reader = Reader(tmp_path)
    try:
        for block in read_blocks(page):
            if block.mark:
                reader.follow(block)
    finally:
        reader.leave()
    for project in reader.projects():
        done = subprocess.run(
            [BIN / "aenv", "validate", "-o", "json", project], capture_output=True, text=True, check=False, timeout=60
        )
        errors = [finding for finding in json.loads(done.stdout)["findings"] if finding["severity"] == "error"]
        assert errors == [], project.name


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_python_and_json_that_is_shown_can_be_read(page: Path) -> None:
    for block in read_blocks(page):
        if block.language == "json":
            json.loads(block.text)
        # The reference shows bare signatures, which are no statements.
        if block.language == "python" and page.name != "api.md":
            ast.parse(block.text)


def test_no_page_names_a_mark_that_is_none() -> None:
    for page in PAGES:
        marks = re.findall(r"^<!-- (?:file|run|serve|project)\b.*$", page.read_text("utf-8"), re.MULTILINE)
        marked = [block for block in read_blocks(page) if block.mark]
        assert len(marks) == len(marked), f"{relative(page)}: a mark is not directly above its block"
