from aenv import register_tool

written: list[str] = []


@register_tool(annotations={"idempotentHint": True})
def write(text: str) -> int:
    """Write a text down and return how many there are.

    Args:
        text: What to write.
    """
    written.append(text)
    return len(written)
