import aenv


@aenv.register_tool(name="add")
def add_again(a: int, b: int) -> int:
    """Add two numbers, in another file, under the same name.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b
