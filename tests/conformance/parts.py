"""Real parts from outside, installed once into `.cache/`: Python clients in venvs, Node and npm packages."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import need

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache"

NPM = {
    "node": "22.23.3",
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/client": "2.4.0",
    "@modelcontextprotocol/sdk": "1.32.2",
}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One installer at a time, whatever else runs."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def python_with(name: str, *requirements: str) -> Path:
    """The interpreter of a venv that holds these packages; made if it is not there."""
    folder = CACHE / "venvs" / name
    python = folder / "bin" / "python"
    marker = folder / "holds.json"
    wanted = json.dumps(requirements)
    with _alone(folder):
        if not marker.exists() or marker.read_text() != wanted:
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            done = subprocess.run(
                [python, "-m", "pip", "install", "--quiet", *requirements], capture_output=True, text=True, check=False
            )
            need(done.returncode == 0, f"pip cannot install {' '.join(requirements)}: {done.stderr[-300:]}")
            marker.write_text(wanted)
    return python


def npm_packages() -> Path:
    """The folder whose node_modules holds Node 22, the conformance suite and the TypeScript clients."""
    npm = shutil.which("npm")
    need(npm, "npm is not installed; try `apt install npm`")
    assert npm is not None
    folder = CACHE / "npm"
    marker = folder / "holds.json"
    wanted = json.dumps(NPM)
    with _alone(folder):
        if not marker.exists() or marker.read_text() != wanted:
            folder.mkdir(exist_ok=True)
            (folder / "package.json").write_text(json.dumps({"private": True, "type": "module", "dependencies": NPM}))
            command = [npm, "install", "--no-audit", "--no-fund", "--no-package-lock"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            need(done.returncode == 0, f"npm cannot install {', '.join(NPM)}: {done.stderr[-300:]}")
            marker.write_text(wanted)
    return folder


def node(folder: Path) -> Path:
    """Node 22 from npm: the suite does not run on older ones."""
    found = folder / "node_modules" / "node" / "bin" / "node"
    need(found.exists(), f"the npm package node@{NPM['node']} brought no binary for this platform")
    return found
