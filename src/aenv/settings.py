"""What processes of the platform are told; the process environment is read here, once, and nowhere else."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from aenv._util.nearest import did_you_mean
from aenv.errors import ConfigError

Isolation = Literal["auto", "required", "namespaces", "process"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is told. Built once at start."""

    engine: str = "local"
    """Which engine starts sandboxes."""
    isolation: Isolation = "auto"
    """`auto` takes the strongest that the machine gives and warns when that is none, `required` refuses to start
    anything then; `namespaces` and `process` ask for exactly that."""
    data: Path = field(default_factory=lambda: default_data(os.environ))
    """Folder for prepared environments and Python environments; may be deleted when no engine runs."""
    run: Path = field(default_factory=lambda: default_run(os.environ))
    """Folder for sockets; its path must be short."""
    public_network: Literal["private", "host"] = "private"
    """What the policy `public` gives where pasta or slirp4netns is installed: `private` a network of each sandbox's own
    from which the host's loopback cannot be reached, `host` the host's network as it is, which is quicker."""
    spares: int = 0
    """Ready sandboxes held for every environment that is in use; `warm` sets it for a single one."""
    log_bytes: int = 1 << 20
    """Bytes kept of each sandbox's log, the newest."""
    python: str = sys.executable
    """Interpreter that sandboxes run on."""

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> EngineSettings:
        """From variables; ConfigError names the one that is wrong."""
        return cls(
            engine=environ.get("AENV_ENGINE") or "local",
            isolation=_word(environ, "AENV_ISOLATION", get_args(Isolation)),
            data=default_data(environ),
            run=default_run(environ),
            public_network=_word(environ, "AENV_PUBLIC_NETWORK", ("private", "host")),
            spares=_count(environ, "AENV_SPARES", 0),
            log_bytes=_count(environ, "AENV_LOG_BYTES", 1 << 20),
        )


def default_data(environ: Mapping[str, str]) -> Path:
    """`AENV_DATA`, else a folder in the user's cache."""
    if environ.get("AENV_DATA"):
        return Path(environ["AENV_DATA"]).absolute()
    home = environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir
    cache = environ.get("XDG_CACHE_HOME") or str(Path(home) / ".cache")
    return Path(cache).absolute() / "aenv"


def default_run(environ: Mapping[str, str]) -> Path:
    """`AENV_RUN`, else the user's runtime folder, else one of ours in /run or /tmp."""
    if environ.get("AENV_RUN"):
        return Path(environ["AENV_RUN"]).absolute()
    if environ.get("XDG_RUNTIME_DIR") and os.access(environ["XDG_RUNTIME_DIR"], os.W_OK):
        return Path(environ["XDG_RUNTIME_DIR"]) / "aenv"
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/aenv")
    return Path(f"/tmp/aenv-{os.geteuid()}")  # noqa: S108 - created with mode 700, and refused if somebody else's


def _word(environ: Mapping[str, str], name: str, words: tuple[Any, ...]) -> Any:
    value = environ.get(name) or words[0]
    if value not in words:
        raise ConfigError(f"{name} is {value!r}", hint=did_you_mean(value, words) or f"use one of {', '.join(words)}")
    return value


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name) or str(default)
    if not value.isascii() or not value.isdigit():
        raise ConfigError(f"{name} is {value!r}", hint="give a whole number")
    return int(value)
