"""The elements of a page: sections of figures, tables and texts, as the template shows them.

The template escapes every text. `Said` is text from a document, whose direction is isolated as well.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import fsspec

from pipeline.base import formats
from pipeline.base.errors import CorpusError, PipelineError
from pipeline.corpus.reader import Corpus
from pipeline.corpus.tombstones import tombstone_paths
from pipeline.storage.remote import translate_errors
from pipeline.storage.replacing import replacing_file


@dataclass(frozen=True)
class Said:
    """Text of a document, or of anything else that a stranger wrote; `place` says where it is from."""

    text: str
    place: str = ""


Cell = str | Said


@dataclass(frozen=True)
class Figure:
    """A plot. `svg` is made by `pipeline/quality/report/plots.py`, which has escaped its text."""

    svg: str
    title: str
    caption: str = ""
    kind: str = "figure"


@dataclass(frozen=True)
class Table:
    """A table. `text`: how many of the first columns are text; the others are numbers. `folded`: shown on demand."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    text: int = 1
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True)
class Listing:
    """Preformatted lines, shown on demand."""

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
    """A part of the page with a heading; `lead` says what to look for in it."""

    anchor: str
    title: str
    lead: str = ""
    blocks: list[Block] = field(default_factory=list)


@dataclass(frozen=True)
class Headline:
    """A number at the top of the page: its value, what it counts, and a detail."""

    value: str
    label: str
    more: str = ""


def number(value: float) -> str:
    """Format a whole number: 1234567 → `1 234 567`, without line breaks."""
    return "–" if math.isnan(value) else formats.number(value).replace(" ", "\u202f")


def decimal(value: float, digits: int = 1) -> str:
    """Format with `digits` digits after the point; a dash for a missing value."""
    return f"{value:.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def share(part: float, whole: float) -> str:
    """Format as `12 %`; nearly none and nearly all are distinguished from none and all."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "< 0.01\u202f%"
    if 1 <= percent <= 99 or percent in (0, 100):
        return f"{percent:.0f}\u202f%"
    return f"{min(percent, 99.99):.2f}\u202f%"


def counted(value: float, noun: str) -> str:
    """Format a number with its noun: `1 part`, `1 234 parts`."""
    return f"{number(value)} {noun}{'s' * (value != 1)}"


def listed(names: Sequence[str], most: int = 8) -> str:
    """List names, only the first of many."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def write_page(corpus: Corpus, place: str, page: bytes) -> None:
    """Write a page that quotes documents of a corpus.

    Args:
        corpus: the corpus, as it was read.
        place: the file, at any URL.
        page: the HTML.

    Raises:
        CorpusError: if documents were purged since the corpus was read; the page is deleted then.
        PipelineError: if the file cannot be written; an older file then stays as it was.
    """
    seen, failed = corpus.tombstones.paths, None
    try:
        with replacing_file(place) as file:
            file.write(page)
    except PipelineError as error:  # `purge` deletes what is being written in the corpus
        failed = error
    if tombstone_paths(corpus.store) - seen:  # a later purge finds the page
        if not failed:
            with translate_errors(place), contextlib.suppress(FileNotFoundError):
                fs, path = fsspec.core.url_to_fs(place)
                fs.rm_file(path)
        raise CorpusError(
            f"documents were purged from {corpus.url} while this report was made, so {place}, which may quote them, is "
            "not kept; make the report again"
        ) from failed
    if failed:
        raise failed
