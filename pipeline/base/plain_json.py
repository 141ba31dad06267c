"""Converts values of columns to JSON that every parser reads."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any


def to_json(value: Any) -> str:
    """Convert to JSON: days and moments become ISO 8601, numbers that JSON cannot express null, and what else it has no
    word for the text that Python shows.
    """
    return json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.isoformat() if isinstance(value, dt.date) else value
