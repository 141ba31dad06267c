"""Numbers, sizes, durations and text of documents as people read them."""

from __future__ import annotations

import math

from pipeline.base.errors import STEERS


def number(value: float) -> str:
    """1234567 → `1 234 567`."""
    return f"{value:,.0f}".replace(",", " ")


def counted(value: float, noun: str) -> str:
    """`1 part`, `1 234 parts`."""
    return f"{number(value)} {noun}{'s' * (value != 1)}"


def size(value: float) -> str:
    """Bytes in words: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Seconds in words: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{number(whole // 3600)} h {whole % 3600 // 60:02d} min"


def plain(text: str, width: int) -> str:
    """One line of a document's text that cannot steer a terminal, cut to `width` characters."""
    safe = STEERS.sub(" ", text)
    return safe if len(safe) <= width else safe[: width - 1] + "…"
