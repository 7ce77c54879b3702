from aenv import register_tool


@register_tool
def divide(a: int, b: int) -> int:
    """Divide a number by another.

    Args:
        a: The first number.
        b: The second number.
    """
    return a // b
