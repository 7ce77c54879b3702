"""What commands print: results on stdout, messages on stderr. The only module that knows rich."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from types import TracebackType
from typing import Literal, Self, TypeAlias

from rich.console import Console, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from aenv.cli.report import report

Output: TypeAlias = Literal["table", "json", "yaml"]
Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | int | float | bool | None"
Row: TypeAlias = Mapping[str, Json]

# Wide enough that nothing is cut or wrapped when the reader is a program.
_UNBOUNDED = 100_000


def show(data: Json, *, output: Output, columns: Mapping[str, str] | None = None) -> None:
    """Print a result on stdout: a table for people, or one JSON or YAML document and nothing else.

    `columns` maps keys to headings, in order; without it a table has every key of the first row. JSON and YAML are
    always whole.
    """
    if output == "json":
        write(_json(data))
    elif output == "yaml":
        write("\n".join(_yaml(data)))
    elif isinstance(data, Mapping):
        table([{"key": label, "value": data.get(key)} for key, label in (columns or _headings(data)).items()], {})
    elif isinstance(data, Sequence) and not isinstance(data, str):
        rows = [row if isinstance(row, Mapping) else {"value": row} for row in data]
        table(rows, columns or _headings(rows[0] if rows else {}))
    else:
        write(_cell(data))


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Print rows on stdout, one line each where the terminal is wide enough; without columns, no heading.

    Nothing is ever cut off: a cell too wide for the terminal goes on in the next line.
    """
    grid = Table(box=None, show_header=bool(columns), header_style="bold", pad_edge=False, padding=(0, 1))
    keys = columns or dict.fromkeys(key for row in rows for key in row)
    for key in keys:
        grid.add_column(columns.get(key, ""), overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(row.get(key)) for key in keys))
    if keys:
        _print(grid)


def tree(root: str, paths: Sequence[PurePath]) -> None:
    """Print relative paths on stdout as the folder tree they make."""
    top = Tree(Text(_plain(root), style="bold"), guide_style="dim")
    branches = {PurePath(): top}
    for path in sorted(paths):
        for folder in reversed(path.parents):
            if folder not in branches:
                branches[folder] = branches[folder.parent].add(Text(f"{_plain(folder.name)}/", style="bold"))
        branches[path.parent].add(Text(_plain(path.name)))
    _print(top)


def write(text: str) -> None:
    """Print text on stdout as it is."""
    print(text)


def say(message: str = "", *, style: str = "") -> None:
    """Print a message on stderr."""
    _console(stderr=True).print(Text(_plain(message), style=style), soft_wrap=True)


def fail(message: str, *, hint: str | None = None) -> None:
    """Print an error that does not end the command, such as one bad file of many; one that does is raised."""
    report(message, hint)


class Progress:
    """Shows on stderr that long work goes on, while the block lasts; silent where stderr is not a terminal."""

    def __init__(self, description: str, *, total: float | None = None) -> None:
        console = _console(stderr=True)
        columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False)]
        bar = [BarColumn()] if total is not None else []
        self._display = Display(
            *columns, *bar, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
        )
        self._task: TaskID = self._display.add_task(_plain(description), total=total)

    def __enter__(self) -> Self:
        if not self._display.disable:
            self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        if not self._display.disable:
            self._display.stop()

    def advance(self, amount: float = 1) -> None:
        """So much more of `total` is done."""
        self._display.advance(self._task, amount)

    def describe(self, description: str) -> None:
        """Say what is being done now."""
        self._display.update(self._task, description=_plain(description))


def _console(*, stderr: bool = False) -> Console:
    # A new one each time: it looks at the stream and at NO_COLOR when it is made.
    console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _UNBOUNDED
    return console


def _print(picture: RenderableType) -> None:
    console = _console()
    with console.capture() as captured:
        console.print(picture)
    # rich fills each line up to the column's width, which a program that reads it would have to undo.
    write("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _headings(row: Row) -> dict[str, str]:
    return {key: key.replace("_", " ") for key in row}


def _cell(value: Json) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _plain(value) if isinstance(value, str) else _json(value, indent=None)


def _plain(text: str) -> str:
    """The text without control characters: a description from elsewhere must not steer the reader's terminal."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text)


def _json(data: Json, *, indent: int | None = 2) -> str:
    text = json.dumps(data, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(data, indent=indent)
    return text


def _yaml(data: Json, depth: int = 0) -> Iterator[str]:
    """Block structure around JSON scalars, which are YAML scalars too."""
    pad = "  " * depth
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            if _is_block(value):
                yield f"{pad}{_yaml_key(key)}:"
                yield from _yaml(value, depth + 1)
            else:
                yield f"{pad}{_yaml_key(key)}: {_yaml_scalar(value)}"
    elif isinstance(data, Sequence) and not isinstance(data, str) and data:
        for value in data:
            first, *rest = _yaml(value, depth + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest
    else:
        yield f"{pad}{_yaml_scalar(data)}"


def _is_block(value: Json) -> bool:
    return isinstance(value, Mapping | Sequence) and not isinstance(value, str) and bool(value)


def _yaml_key(key: str) -> str:
    # YAML 1.1 reads some bare words as booleans and null.
    word = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", key)
    return (
        key
        if word and key.lower() not in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
        else _yaml_scalar(key)
    )


def _yaml_scalar(value: Json) -> str:
    text = _json(value, indent=None)
    if isinstance(value, float):
        # YAML 1.1 wants a point in what it takes for a float: 1e+16 would be a string.
        return re.sub(r"^(-?\d+)e", r"\1.0e", text)
    # Line and control characters that JSON lets stand, but YAML does not.
    return re.sub(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda sign: f"\\u{ord(sign[0]):04x}", text)
