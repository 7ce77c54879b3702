from aenv import register_reward, register_tool


@register_tool
def add(a: int, b: int) -> int:
    """Add two numbers and return their sum.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


@register_reward
def score() -> dict[str, float]:
    """What the agent has earned."""
    return {"steps": 3.0, "score": 7.5}
