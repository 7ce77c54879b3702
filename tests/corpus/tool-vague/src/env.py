from aenv import register_tool


@register_tool
def roll_the_dice() -> int:
    """Roll the dice."""
    return 4
