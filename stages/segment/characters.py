"""Classifies every character for segmentation, as bits in tables over the planes of Unicode; each is built at its first
character, in some 50 ms. Grapheme clusters, what readers perceive as one character, are found at 0.1 µs per character.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache

import numpy as np
import regex
from numpy.typing import NDArray

from stages.segment import marks

BLANK, LINE_END, PARAGRAPH_END, EXTENDS, JOINS, UNSPACED, PUNCTUATION = (1 << n for n in range(7))
FINAL, BREAKABLE, EAST_ASIAN, WORD_END = (1 << n for n in range(7, 11))

PLANE = 1 << 16  # code points; nearly all text is in the first plane, and emoji in the second
SURROGATES = slice(0xD800, 0xE000)
_UTF_32 = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"

_CLASSES: dict[int, re.Pattern[str] | regex.Pattern[str]] = {
    BLANK: marks.BLANKS,
    LINE_END: re.compile("[\n\r\x85\u2028]+"),
    PARAGRAPH_END: re.compile("\u2029+"),
    EXTENDS: regex.compile(rf"(?:{marks.EXTENDS.pattern})+"),
    JOINS: regex.compile(rf"(?:{marks.JOINS.pattern})+"),
    # scripts that write no spaces between words: between any two letters may be a boundary
    UNSPACED: regex.compile(
        r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Tai_Le}\p{New_Tai_Lue}"
        r"\p{Tai_Tham}\p{Tai_Viet}\p{Javanese}\p{Balinese}\p{Yi}]+"
    ),
    PUNCTUATION: regex.compile(r"\p{P}+"),
    FINAL: re.compile(f"[{re.escape(marks.SPACED_FINAL + marks.FINAL + marks.GREEK_QUESTION_MARK)}…\u1361]+"),
    BREAKABLE: re.compile(  # the cap by rules may cut there
        f"[{re.escape(marks.SPACED_FINAL + marks.FINAL + marks.SPACED_BREAKS + marks.BREAKS + marks.COMMAS + ',-–')}]+"
    ),
    EAST_ASIAN: re.compile(f"[{marks.EAST_ASIAN}]+"),
    WORD_END: re.compile(f"[{marks.WORD_ENDS}]+"),
}


def classes(codes: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return (characters,) bits of each of these code points; surrogates have none."""
    found = _plane(0)[codes % PLANE]
    beyond = np.flatnonzero(codes >= PLANE)
    planes = codes[beyond] // PLANE
    for plane in np.unique(planes).tolist():
        there = beyond[planes == plane]
        found[there] = _plane(plane)[codes[there] % PLANE]
    return found


@cache
def _plane(number: int) -> NDArray[np.uint16]:
    """Return (65 536,) bits of each code point of a plane."""
    table = np.zeros(PLANE, np.uint16)
    characters = "".join(map(chr, range(number * PLANE, (number + 1) * PLANE)))
    for bit, pattern in _CLASSES.items():
        for found in pattern.finditer(characters):
            table[found.start() : found.end()] |= bit
    if number == 0:
        table[SURROGATES] = 0
    return table


def code_points(text: str) -> NDArray[np.uint32]:
    """Return (characters,) the code points of a text. Raises UnicodeEncodeError for lone surrogates, which are not
    text.
    """
    return np.frombuffer(text.encode(_UTF_32), np.uint32)


PART = 256  # characters looked at together, for `\\X` takes quadratic time among flags

_CLUSTER = regex.compile(r"\X")


def cluster_ends(text: str) -> Iterator[int]:
    """Yield where the grapheme clusters of a text end, in order."""
    start, size = 0, PART
    while start < len(text):
        ends = [start + found.end() for found in _CLUSTER.finditer(text[start : start + size])]
        if start + size < len(text):
            ends.pop()  # what follows may belong to it
        yield from ends
        start, size = (ends[-1], PART) if ends else (start, 2 * size)
