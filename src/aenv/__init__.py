"""Environment-as-Code for agents and reinforcement learning.

Names are loaded when first used, so that `import aenv` costs next to nothing.
"""

from __future__ import annotations

import importlib

from aenv._version import __version__

# Type checkers take the name for true; importing it from typing would double what `import aenv` costs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aenv.define.content import Audio, File, Image
    from aenv.define.context import Context, get_context
    from aenv.define.decorators import (
        register_fork,
        register_function,
        register_health,
        register_reward,
        register_tool,
    )
    from aenv.define.extend import extend_mcp
    from aenv.define.registry import Registry, Tool, get_registry
    from aenv.errors import AEnvError, ToolError

_HOMES = {
    "AEnvError": "aenv.errors",
    "Audio": "aenv.define.content",
    "Context": "aenv.define.context",
    "File": "aenv.define.content",
    "Image": "aenv.define.content",
    "Registry": "aenv.define.registry",
    "Tool": "aenv.define.registry",
    "ToolError": "aenv.errors",
    "extend_mcp": "aenv.define.extend",
    "get_context": "aenv.define.context",
    "get_registry": "aenv.define.registry",
    "register_fork": "aenv.define.decorators",
    "register_function": "aenv.define.decorators",
    "register_health": "aenv.define.decorators",
    "register_reward": "aenv.define.decorators",
    "register_tool": "aenv.define.decorators",
}

__all__ = [
    "AEnvError",
    "Audio",
    "Context",
    "File",
    "Image",
    "Registry",
    "Tool",
    "ToolError",
    "__version__",
    "extend_mcp",
    "get_context",
    "get_registry",
    "register_fork",
    "register_function",
    "register_health",
    "register_reward",
    "register_tool",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'aenv' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
