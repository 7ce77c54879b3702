"""Make docs/reference, and the tables of measurements, from code and results; with --check, only compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import config_schema
from pages import api, cli, config, errors, http, measured, settings

from aenv.build.validate import page as findings

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "api.md": api.render,
    "cli.md": cli.render,
    "config.md": config.render,
    "config.schema.json": config_schema.render,
    "errors.md": errors.render,
    "findings.md": findings.render,
    "http.md": http.render,
    "settings.md": settings.render,
}


def stale() -> dict[Path, str]:
    """The files that are missing or old, with the text they should have."""
    wanted = {FOLDER / name: render() for name, render in PAGES.items()}
    wanted |= {file: measured.update(file) for file in measured.FILES}
    return {file: text for file, text in wanted.items() if not file.exists() or file.read_text("utf-8") != text}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not current")
    files = stale()
    if parser.parse_args().check:
        for file in files:
            print(f"error: {_shown(file)} is not current", file=sys.stderr)
        if files:
            print("hint: run `.venv/bin/python scripts/reference.py`", file=sys.stderr)
        return 1 if files else 0
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
        print(f"wrote {_shown(file)}")
    return 0


def _shown(file: Path) -> str:
    return str(file.relative_to(ROOT)) if file.is_relative_to(ROOT) else file.name


if __name__ == "__main__":
    sys.exit(main())
