from pathlib import Path

from aenv import register_tool


@register_tool
def add(a: int, b: int) -> int:
    """Add two numbers and return their sum.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


(Path(__file__).parent.parent / "state.db").write_text("written on import")
