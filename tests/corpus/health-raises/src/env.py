from aenv import register_health, register_tool


@register_tool
def add(a: int, b: int) -> int:
    """Add two numbers and return their sum.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


@register_health
def check_health() -> bool:
    """Trip."""
    raise ConnectionError("no database")
