"""Markdown tables, and the line that says where a page came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MADE = (
    "<!-- Made by scripts/reference.py from the code; a test keeps it current. Edit the code, then run `make docs`. -->"
)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a bar inside a cell is escaped, a line break becomes a space."""
    lines = [_row(headings), _row(["---"] * len(headings)), *(_row(row) for row in rows)]
    return "\n".join(lines)


def code(text: str) -> str:
    """The text as inline code; nothing for no text."""
    return f"`{text}`" if text else ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"
