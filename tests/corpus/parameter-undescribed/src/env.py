from aenv import register_tool


@register_tool
def echo(text: str) -> str:
    """Return the text that was given."""
    return text
