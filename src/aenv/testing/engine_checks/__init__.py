"""The parts of the engine suite; `aenv.testing.engine_suite` is all of them."""

from __future__ import annotations

import pytest

PARTS = (
    "cancelling",
    "endings",
    "execution",
    "forking",
    "identity",
    "lifecycle",
    "limits",
    "logs",
    "sharing",
    "storms",
    "warming",
)

# Before they are imported: a failed assertion then shows both sides.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in PARTS))
