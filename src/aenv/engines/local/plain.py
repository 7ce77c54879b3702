"""A plain process in place of a sandbox, for machines that give no namespaces: own folders, own group, nothing held."""

from __future__ import annotations

import os
import resource
import shutil
from typing import Any

from aenv.engines.local.processes import VARIABLE

PLAIN_ENVIRON = "environ"
"""As in rootfs, in the sandbox's own folder."""


def enter(request: dict[str, Any], entries: list[int]) -> tuple[str, dict[str, str]]:
    """Make this process the leader of a session, with a copy of the project; where that is, and variables."""
    for descriptor in entries:
        os.write(descriptor, b"0")
        os.close(descriptor)
    os.setsid()
    folder = request["folder"]
    for name in ("home", "tmp"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)  # noqa: PTH103 - strings: pathlib would cost every sandbox
    app = f"{folder}/app"
    shutil.copytree(request["project"], app, symlinks=True)
    for kind, soft, hard in request["rlimits"]:
        resource.setrlimit(kind, (soft, hard))
    os.chdir(app)
    places = {"HOME": f"{folder}/home", "TMPDIR": f"{folder}/tmp", VARIABLE: folder}  # noqa: S108 - its own
    return app, {"PATH": os.environ["PATH"], **places}
