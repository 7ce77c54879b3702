"""Check that pyproject.toml, uv.lock and requirements-dev.txt belong together, without asking a network."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
EXPORT = ["export", "--quiet", "--frozen", "--no-hashes", "--no-emit-project", "--group", "dev"]


def problems() -> Iterator[str]:
    """A sentence for everything that does not fit."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lock = tomllib.loads((ROOT / "uv.lock").read_text("utf-8"))
    locked = {package["name"] for package in lock["package"]}
    for name in sorted(wanted(project) - locked):
        yield f"pyproject.toml depends on {name!r}, which uv.lock does not know"
    held = pins((ROOT / "requirements-dev.txt").read_text("utf-8"))
    for line in sorted(exported() ^ held):
        where = "uv.lock alone" if line not in held else "requirements-dev.txt alone"
        yield f"{line.partition(' ')[0]} is in {where}"


def wanted(project: dict[str, Any]) -> set[str]:
    """The names of everything that pyproject.toml depends on, in whatever group."""
    lists = [
        project["project"]["dependencies"],
        *project["project"].get("optional-dependencies", {}).values(),
        *project.get("dependency-groups", {}).values(),
    ]
    return {_name(requirement) for requirements in lists for requirement in requirements}


def exported() -> set[str]:
    """What uv makes of the lock for pip."""
    done = subprocess.run([UV, *EXPORT], cwd=ROOT, capture_output=True, text=True, check=True)
    return pins(done.stdout)


def pins(text: str) -> set[str]:
    """The lines of a requirements file, comments left out."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {line for line in lines if line}


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def main() -> int:
    if not UV.exists():
        print("error: there is no uv beside this Python to read uv.lock with", file=sys.stderr)
        print("hint: run `make setup`, then .venv/bin/python scripts/locks.py", file=sys.stderr)
        return 1
    found = list(problems())
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if found:
        print("hint: run `make lock`", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
