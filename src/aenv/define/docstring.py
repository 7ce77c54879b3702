"""Parameter descriptions out of Google, NumPy and Sphinx docstrings."""

from __future__ import annotations

from docstring_parser import ParseError, parse


def parameter_descriptions(doc: str) -> dict[str, str]:
    """Each documented parameter's description on one line; a docstring in no known style gives nothing."""
    try:
        found = parse(doc)
    except ParseError:
        return {}
    return {
        param.arg_name.lstrip("*"): " ".join(param.description.split()) for param in found.params if param.description
    }
