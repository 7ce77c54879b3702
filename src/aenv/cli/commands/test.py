"""`aenv test`: run a project's own tests against a freshly started instance of it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import click

from aenv.build.project import Project, read
from aenv.build.serving import served
from aenv.cli.options import work_dir_option
from aenv.cli.output import say
from aenv.cli.signals import ending_orderly
from aenv.errors import ProjectError

TAIL = 40

EXAMPLES = """
\b
Examples:
  aenv test                  what testConfig.script says, or pytest in test/
  aenv test -- -k reward -x  with further arguments for it
"""


@click.command(epilog=EXAMPLES, context_settings={"ignore_unknown_options": True})
@work_dir_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def test(work_dir: Path, arguments: tuple[str, ...]) -> int:
    """Serve a project and run its tests against it.

    The tests find its address in AENV_TEST_URL, and in DUMMY_INSTANCE_IP.
    """
    project = read(work_dir)
    command = _command(project, arguments)
    log: deque[str] = deque(maxlen=TAIL)
    with ending_orderly(), served(work_dir, log=log.append) as server:
        environ = {**os.environ, "AENV_TEST_URL": server.url, "DUMMY_INSTANCE_IP": server.url}
        # The tools beside this Python, pytest above all, before whatever else the PATH has.
        environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
        say(f"{server.name}@{server.version} at {server.url}: {_shown(command)}", style="dim")
        code = subprocess.run(command, cwd=work_dir, env=environ, check=False).returncode
    if code != 0:
        say(f"the tests failed with exit code {code}; the last lines of the instance log:", style="red")
        for line in log or ["(it is empty)"]:
            say(f"  {line}")
    return 0 if code == 0 else 1


def _command(project: Project, arguments: tuple[str, ...]) -> list[str]:
    script = project.spec.test.script
    if script:
        # A script is a shell line, as in the original's documentation; "$@" hands the further arguments on whole.
        return ["sh", "-c", f'{script} "$@"', "sh", *arguments]
    folder = next((name for name in ("test", "tests") if (project.folder / name).is_dir()), None)
    if folder is None:
        raise ProjectError(
            "there is nothing to run: no testConfig.script in config.json, no test/ folder",
            hint="write test/test_env.py, which finds the environment's address in AENV_TEST_URL",
        )
    if importlib.util.find_spec("pytest") is None:
        raise ProjectError("pytest is not installed", hint="pip install pytest")
    return [sys.executable, "-m", "pytest", folder, *arguments]


def _shown(command: list[str]) -> str:
    return command[2].removesuffix(' "$@"') if command[0] == "sh" else " ".join(command[1:])
