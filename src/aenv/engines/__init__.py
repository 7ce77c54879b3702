"""Engines start, watch and stop sandboxes; `open_engine` makes one by name, and imports no other."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from aenv._util.nearest import did_you_mean
from aenv.errors import ConfigError

if TYPE_CHECKING:
    from aenv.engines.protocol import Engine
    from aenv.settings import EngineSettings

_HOMES = {"local": "aenv.engines.local.engine:LocalEngine"}


def open_engine(settings: EngineSettings) -> Engine:
    """The engine that the settings name; nothing is started before its first use."""
    home = _HOMES.get(settings.engine)
    if home is None:
        raise ConfigError(
            f"there is no engine {settings.engine!r}", hint=did_you_mean(settings.engine, _HOMES) or "use local"
        )
    module, _, name = home.partition(":")
    engine: Engine = getattr(import_module(module), name)(settings)
    return engine
