from aenv import register_tool


@register_tool
def echo(text):
    """Return the text that was given.

    Args:
        text: Any text.
    """
    return text
