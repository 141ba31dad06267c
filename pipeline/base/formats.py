"""Formats numbers, sizes, durations and text of documents for people, values of columns as JSON, rows as CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions
from rich.containers import Lines
from rich.measure import Measurement
from rich.text import Text

from pipeline.base.errors import STEERS

FEW = 10  # lines of a list that may have any length
Item = TypeVar("Item")
_INSIDE = re.compile(r"(?<=\d) (?=(?:\d{3}|s|h|min|[kMGT]?B)\b)|(?<=\d h) (?=\d\d min)|(?<=\d min) (?=\d\d s)")
_JOINED = "\ue000"  # of no meaning, as wide as a blank: Rich breaks lines at no-break spaces too


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


def first_few(items: Sequence[str], most: int, between: str = ", ") -> str:
    """Return the first items of a list that may have any length: `12, 13 and 5 more`.

    Args:
        items: the items.
        most: how many are shown.
        between: what separates them.

    Returns:
        The items, and how many there are besides.
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return between.join(items[:most]) + more


class Figures(Text):
    """Text without markup whose lines do not end within numbers, sizes and durations: of `1 500`, `1` can be read."""

    def wrap(self, *args: Any, **how: Any) -> Lines:
        """Break the text into lines as wide as a column."""
        lines = self._joined().wrap(*args, **how)
        for line in lines:
            line.plain = line.plain.replace(_JOINED, " ")
        return lines

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self._joined().__rich_measure__(console, options)

    def _joined(self) -> Text:
        return Text(_INSIDE.sub(_JOINED, self.plain))


def to_json(value: Any) -> str:
    """Convert to JSON that every parser reads: days and moments become ISO 8601, numbers that JSON cannot express null,
    and what else it has no word for the text that Python shows.
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


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV, a line each; None is an empty cell."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
