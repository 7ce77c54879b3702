"""Ids that nobody can guess and that say what they are of."""

from __future__ import annotations

import os


def new_id(prefix: str) -> str:
    """`prefix_` and 128 random bits in hexadecimal."""
    return f"{prefix}_{os.urandom(16).hex()}"
