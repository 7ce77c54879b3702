from aenv import register_tool


@register_tool
def roll() -> int:
    return 4
