"""The published `aenvironment==0.1.7` in a venv of its own, to be measured beside ours in the same run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parent.parent / ".cache" / "bench"


def python_with(*requirements: str) -> Path:
    """The interpreter of a cached venv that holds exactly these packages and what they need."""
    folder = CACHE / "+".join(requirements).replace("/", "_")
    python = folder / "bin" / "python"
    marker = folder / "complete"
    if not marker.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *requirements], check=True, stderr=subprocess.PIPE)
        marker.touch()
    return python


def published_client() -> Path:
    """The interpreter that has the published package."""
    return python_with("aenvironment==0.1.7")
