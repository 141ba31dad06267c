"""Records of a corpus, changed as a person with an editor can not: so that their seals are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.storage.records import sealed


def change_record(path: Path, **values: Any) -> None:
    """Give some keys of a JSON record other values."""
    write_record(path, json.loads(path.read_text("utf-8")) | values)


def write_record(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON record with its seal."""
    path.write_bytes(sealed(json.dumps({key: one for key, one in value.items() if key != "seal"}, ensure_ascii=False)))
