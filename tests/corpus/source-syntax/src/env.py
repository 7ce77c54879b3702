from aenv import register_tool


@register_tool
def add(a: int, b: int) -> int
    """Add two numbers and return their sum."""
    return a + b
