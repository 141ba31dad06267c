"""What a page is made of: sections of figures, tables and texts, as the template shows them.

Every text is escaped by the template. `Said` is text from a document: it is also kept in a direction of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.base import formats


@dataclass(frozen=True)
class Said:
    """Text of a document, or of anything else that a stranger wrote; `place`: where it stands."""

    text: str
    place: str = ""


Cell = str | Said


@dataclass(frozen=True)
class Figure:
    """`svg`: as `pipeline/quality/report/plots.py` makes it, which has escaped its text."""

    svg: str
    title: str
    caption: str = ""
    kind: str = "figure"


@dataclass(frozen=True)
class Table:
    """`text`: how many of the first columns are text; the others are numbers. `folded`: shown on demand."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    text: int = 1
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Listing:
    """Lines as they are, shown on demand."""

    title: str
    lines: Sequence[str]
    kind: str = "listing"


@dataclass(frozen=True)
class Note:
    """A remark. `level`: good, look, bad, or plain."""

    text: str
    level: str = "look"
    kind: str = "note"


Block = Figure | Table | Listing | Note


@dataclass
class Section:
    """A part of the page with a heading; `lead`: what to look for in it."""

    anchor: str
    title: str
    lead: str = ""
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Headline:
    """A number at the top of the page: its value, what it counts, and what belongs to it."""

    value: str
    label: str
    more: str = ""


def number(value: float) -> str:
    """1234567 → `1 234 567`, on one line."""
    return "–" if math.isnan(value) else formats.number(value).replace(" ", "\u202f")


def decimal(value: float, digits: int = 1) -> str:
    """With so many digits after the point; a dash where there is none."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def share(part: float, whole: float) -> str:
    """`12 %`; what is nearly none or nearly all is told from none and all."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "< 0.01\u202f%"
    if 1 <= percent <= 99 or percent in (0, 100):
        return f"{percent:.0f}\u202f%"
    return f"{min(percent, 99.99):.2f}\u202f%"


def counted(value: float, noun: str) -> str:
    """`1 part`, `1 234 parts`."""
    return f"{number(value)} {noun}{'s' * (value != 1)}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names, the first of many."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
