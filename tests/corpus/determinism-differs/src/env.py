import random

from aenv import register_tool


@register_tool(annotations={"readOnlyHint": True})
def look() -> dict[str, float]:
    """Look at the world without touching it."""
    return {"temperature": random.random()}
