"""How much does `import aenv`, and `aenv --help`, cost over a bare interpreter?   python bench/startup.py -n 30"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from figures import compile_package, machine, percentiles

AENV = str(Path(sys.executable).with_name("aenv"))
CASES = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import aenv": [sys.executable, "-c", "import aenv"],
    "aenv --help": [AENV, "--help"],
}


def once(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=30)
    n = parser.parse_args().n
    compile_package()
    took: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(n):
        for name, command in CASES.items():
            took[name].append(once(command))
    figures = {f"{name} (ms)": percentiles(seconds, 1e3) for name, seconds in took.items()}
    bare = figures["python -c pass (ms)"]["p50"]
    ratio = {name: round(figures[f"{name} (ms)"]["p50"] / bare, 2) for name in list(CASES)[1:]}
    print(json.dumps({"bench": "startup", "n": n, **machine(), **figures, "times_bare_python": ratio}))


if __name__ == "__main__":
    main()
