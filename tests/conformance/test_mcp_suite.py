"""The public MCP conformance suite against a fixture environment served by our core."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Environment, open_environment
from not_applicable import REASONS, REQUIRED
from parts import ROOT, node, npm_packages

FIXTURE = ROOT / "tests" / "fixtures" / "conformance"


@pytest.fixture(scope="module")
def env() -> Iterator[Environment]:
    environment = open_environment(FIXTURE)
    yield environment
    environment.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("revision", sorted(REASONS))
def test_everything_that_applies_passes(env: Environment, tmp_path: Path, revision: str) -> None:
    packages = npm_packages()
    expected = tmp_path / "expected.yml"
    # JSON is YAML. The suite fails on an entry that passes, so the list cannot grow stale.
    expected.write_text(json.dumps({"server": sorted(REASONS[revision])}))
    suite = packages / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    command = [str(node(packages)), str(suite), "server", "--url", f"{env.url}/mcp", "--requirements", revision]
    command += ["--expected-failures", str(expected), "--output-dir", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = done.stdout + done.stderr
    passed = set(re.findall(r"^✓ ([a-z0-9-]+): [1-9]\d* passed, 0 failed", report, re.MULTILINE))
    failed = set(re.findall(r"^✗ ([a-z0-9-]+): ", report, re.MULTILINE))
    assert passed >= REQUIRED[revision], f"{sorted(REQUIRED[revision] - passed)} did not pass:\n{report}"
    unexplained = failed - {name.partition(":")[0] for name in REASONS[revision]}
    assert not unexplained, f"{sorted(unexplained)} failed without a reason in not_applicable.py:\n{report}"
    assert done.returncode == 0, report
