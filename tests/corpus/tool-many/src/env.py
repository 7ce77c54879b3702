from aenv import get_registry


def add(a: int, b: int) -> int:
    """Add two numbers and return their sum.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


for number in range(129):
    get_registry().add_tool(add, name=f"add_{number}")
