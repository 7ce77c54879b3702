"""The ValueError of every parser here: what was read, what is allowed, what was probably meant."""

from __future__ import annotations

import json

_SHOWN = 80


def shown(value: object) -> str:
    """The value as a message may carry it: text quoted as Python does, all else as JSON, never long."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


class Unreadable(ValueError):
    """`value` is not `allowed`; `hint`, if there is one, says what was probably meant."""

    def __init__(self, value: object, allowed: str, hint: str = "") -> None:
        super().__init__(f"{shown(value)} is not {allowed}" + (f"; {hint}" if hint else ""))
        self.value = value
        self.allowed = allowed
        self.hint = hint
