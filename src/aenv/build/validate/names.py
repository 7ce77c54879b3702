"""What a name in an author's file stands for, as far as its imports tell."""

from __future__ import annotations

import ast


def aliases(tree: ast.Module) -> dict[str, str]:
    """Each imported name with the dotted name it stands for: `from time import sleep as nap` is nap: time.sleep."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # `import a.b` binds a; `import a.b as c` binds c to all of it.
            known |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {name.asname or name.name: f"{node.module or ''}.{name.name}" for name in node.names}
    return known


def dotted(node: ast.expr, known: dict[str, str]) -> str:
    """`requests.get` for any spelling of it; the empty text for what is no plain name."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, known)
        return f"{owner}.{node.attr}" if owner else f".{node.attr}"
    return ""
