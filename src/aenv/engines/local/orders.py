"""What zygotes and sandboxes are told, made from an environment's config.json and an instance's launch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from aenv._util import jsontext
from aenv.engines.local.box import PROXY_PORT
from aenv.engines.local.egress import variables
from aenv.engines.local.networks import Policy
from aenv.engines.local.prepared import Prepared
from aenv.engines.local.pythons import PythonEnvironment
from aenv.engines.local.rootfs import HOME, outermost
from aenv.engines.local.users import OUTER_USER, SANDBOX_USER
from aenv.engines.protocol import Launch
from aenv.model.spec import EnvSpec

__all__ = ["OUTER_USER", "activation", "order", "user_of"]

_ENTRY = "aenv.sandbox.instance"
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_POLICIES: dict[str, Policy] = {"public": "usernet", "no-network": "none", "allowlist": "proxy"}


def user_of(spec: EnvSpec) -> int:
    """Who code in the sandbox sees itself as."""
    return 0 if spec.deploy.run_as_root else SANDBOX_USER


def order(
    spec: EnvSpec, prepared: Prepared, python: PythonEnvironment, *, mode: str, closes_loopback: bool
) -> dict[str, Any]:
    """All that a zygote of the environment needs to know."""
    deploy = spec.deploy
    modules = prepared.modules(python.key)
    visible = outermost(str(path) for path in python.visible)
    return {
        "entry": _ENTRY,
        "python": python.python,
        "project": str(prepared.project),
        "visible": visible,
        "hidden": [path for path in visible if path.startswith("/tmp/")],  # noqa: S108 - what sandboxes have their own of
        "user": user_of(spec),
        "outer": SANDBOX_USER if mode == "root" else 0,
        "uid": os.geteuid(),
        "gid": os.getegid(),
        "nameservers": _nameservers(),
        "policy": _POLICIES[deploy.network] if closes_loopback or deploy.network != "public" else "host",
        "allow": list(deploy.network_allow),
        "preload": bool(deploy.preload),
        "forkable": deploy.forkable and not deploy.command and deploy.isolation != "gvisor",
        "isolation": deploy.isolation or "namespaces",
        "command": list(deploy.command),
        "modules": modules or [],
        "knows_modules": modules is not None,
        "limits": _limits(spec),
        "environ": _environ(spec, python),
        "request": {"hostname": spec.name[:63], "storage_bytes": _storage(spec), "project": str(prepared.project)},
    }


def activation(launch: Launch) -> dict[str, object]:
    """What makes a sandbox this instance."""
    own = {"AENV_INSTANCE_ID": launch.id, "AENV_ARGUMENTS": jsontext.dumps(list(launch.arguments)).decode()}
    return {"variables": {**launch.variables, **own}, "arguments": list(launch.arguments)}


def _environ(spec: EnvSpec, python: PythonEnvironment) -> dict[str, str]:
    """The variables that all instances of the environment have, whose zygote has them too."""
    return {
        "PATH": f"{Path(python.python).parent}:{_PATH}",
        "LANG": "C.UTF-8",
        "HOME": HOME,
        "USER": "root" if spec.deploy.run_as_root else "agent",
        "AENV_ENV_NAME": spec.name,
        "AENV_ENV_VERSION": spec.version,
        **(variables(PROXY_PORT) if spec.deploy.network == "allowlist" else {}),
        **spec.deploy.environment_variables,
    }


def _limits(spec: EnvSpec) -> dict[str, Any]:
    deploy = spec.deploy
    cores = deploy.cpu_bounds().limit
    return {
        "cpu_cores": cores,
        "memory_bytes": deploy.memory_bounds().limit,
        "storage_bytes": _storage(spec),
        "processes": deploy.processes,
        "open_files": deploy.open_files,
        "cpu_seconds": None,
    }


def _storage(spec: EnvSpec) -> int:
    """Files are held in memory, so there is no use in more of them than of that."""
    return min(spec.deploy.storage_bounds().limit, spec.deploy.memory_bounds().limit)


def _nameservers() -> str:
    try:
        return Path("/etc/resolv.conf").read_text("utf-8")
    except OSError:
        return ""
