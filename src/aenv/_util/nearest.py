"""What a mistyped word was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

# Comparing takes time with the square of the length, and nobody mistypes a page.
_LONGEST = 256


def nearest(word: str, choices: Iterable[str], limit: int = 3) -> list[str]:
    """The choices that look most like `word`, best first; upper and lower case count as the same."""
    if len(word) > _LONGEST:
        return []
    folded: dict[str, list[str]] = {}
    for choice in choices:
        folded.setdefault(choice.casefold(), []).append(choice)
    close = difflib.get_close_matches(word.casefold(), folded, n=limit)
    return [choice for key in close for choice in folded[key]][:limit]


def ask(candidates: Sequence[str]) -> str:
    """`did you mean 'a', 'b' or 'c'?`, or nothing when there is nothing to offer."""
    if not candidates:
        return ""
    *others, last = (repr(candidate) for candidate in candidates)
    return f"did you mean {' or '.join([*([', '.join(others)] if others else []), last])}?"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """The question to ask whoever wrote `word`, or nothing when no choice is near."""
    return ask(nearest(word, choices))
