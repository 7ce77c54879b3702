from __future__ import annotations

from pydantic import BaseModel

from aenv import register_tool


class Node(BaseModel):
    """A tree."""

    value: int
    children: list[Node] = []


@register_tool
def total(tree: Node) -> int:
    """Add up all values of a tree.

    Args:
        tree: The tree.
    """
    return tree.value + sum(total(child) for child in tree.children)
