"""Who sandboxes run as, inside and, on a machine where we are root, outside."""

from __future__ import annotations

SANDBOX_USER = 1000
FIRST_USER = 1_900_000_000
"""Above what other programs take for users of their own."""
USERS = 65536
OUTER_USER = FIRST_USER + SANDBOX_USER
