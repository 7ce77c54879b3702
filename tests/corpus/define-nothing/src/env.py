from aenv import register_tool


def add(a: int, b: int) -> int:
    """The decorator was forgotten."""
    return a + b
