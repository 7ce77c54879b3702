"""docs/reference is what scripts/reference.py makes of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_generated_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_page_that_is_not_current_is_named(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "scripts")!r})
import reference
reference.FOLDER = Path({str(tmp_path)!r})
sys.argv = ["reference.py", "--check"]
sys.exit(reference.main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "error: errors.md is not current" in done.stderr
    assert "hint: run `.venv/bin/python scripts/reference.py`" in done.stderr
    assert list(tmp_path.iterdir()) == []
