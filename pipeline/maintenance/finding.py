"""What verify finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that is not as its receipt says. `receipt`: delete it, and the next run makes the thing again."""

    path: str
    what: str
    receipt: str | None
