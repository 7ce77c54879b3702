"""Write docs/reference/config.schema.json, the schema that editors check a config.json with."""

from __future__ import annotations

import json
from pathlib import Path

from aenv.model.spec import config_schema

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "config.schema.json"


def render() -> str:
    """The text of the schema file."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    print(f"wrote {TARGET}")
