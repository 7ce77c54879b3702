import time as clock

from aenv import register_tool


@register_tool
async def pause(seconds: float) -> str:
    """Wait for a while, then say so.

    Args:
        seconds: How long to wait.
    """
    clock.sleep(seconds)
    return "done"
