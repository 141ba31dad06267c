"""Formats numbers, sizes, durations and text of documents for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

from pipeline.base.errors import STEERS

FEW = 10  # lines of a list that may have any length
Item = TypeVar("Item")


def number(value: float) -> str:
    """Format a whole number in groups of three digits: 1234567 → `1 234 567`."""
    return f"{value:,.0f}".replace(",", " ")


def counted(value: float, noun: str) -> str:
    """Format a number with its noun: `1 part`, `1 234 parts`."""
    return f"{number(value)} {noun}{'s' * (value != 1)}"


def size(value: float) -> str:
    """Format a number of bytes: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Format a number of seconds: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{number(whole // 3600)} h {whole % 3600 // 60:02d} min"


def plain(text: str, width: int) -> str:
    """Shorten a document's text to one line of `width` characters that cannot control a terminal."""
    safe = STEERS.sub(" ", text)
    return safe if len(safe) <= width else safe[: width - 1] + "…"


def last_few(items: Sequence[Item], others: str) -> tuple[Sequence[Item], str]:
    """Return the last items of a list that may have any length, and a line about the others: empty if there are none.

    `others`: where they are to be found.
    """
    left = len(items) - FEW
    return items[-FEW:], f"… and {left} more ({others})" if left > 0 else ""
