"""The hard cap: breaks a sentence at the best boundaries so that no fragment is longer than a limit (LCM 2.2).

Boundaries are sought by class: sentence ends, then semicolons, colons and dashes, then commas, then white space, in the
scripts of the world; where there is none, between grapheme clusters; inside a cluster only if the cluster alone is
longer than the limit. The cost is linear in the text, about 1 µs per character, and only sentences over the cap pay it.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import regex

from stages.segment import marks


class Fragment(NamedTuple):
    start: int
    end: int
    hard: bool  # it ends where there is no boundary of any class


def _after(spaced: str, anywhere: str) -> str:
    """Marks with the quotes and brackets that close after them; the spaced ones only before white space."""
    closers = rf"(?:[{re.escape(marks.CLOSERS)}]|\s»(?=\s))*+"
    return rf"(?:{spaced}{closers}(?=\s)|[{re.escape(anywhere)}]++{closers})"


# A full stop after three letters or fewer is an abbreviation more often than a sentence end.
_CLASSES = (
    _after(r"(?<![.!?…])(?:[!?…]|\.{2,}+|(?:(?<=[^\W_]{4})|(?<=[)\]\"”’»]))\.)++", marks.FINAL),
    _after(rf"(?:[{re.escape(marks.SPACED_BREAKS)}]|--+|(?<=\s)[-–])", marks.BREAKS) + "|--++",
    _after(re.escape(marks.SPACED_COMMAS), marks.COMMAS),
    rf"[\s{marks.WORD_ENDS}]++",
)
_MARKS = marks.SPACED_FINAL + marks.FINAL + marks.SPACED_BREAKS + marks.BREAKS + marks.COMMAS + marks.WORD_ENDS + ",-–"
_BOUNDARY = re.compile(
    rf"(?=[\s{re.escape(_MARKS)}])(?:"  # for speed: letters are passed over at once
    + "|".join(f"(?P<class{rank}>{pattern})" for rank, pattern in enumerate(_CLASSES))
    + ")"
)
_CLUSTER = regex.compile(r"\X")


def fragments(text: str, limit: int) -> list[Fragment]:
    """Covers a collapsed text with fragments of at most `limit` characters, white space between them left out.

    They come out of about equal length: never one at the limit followed by a tiny rest, if that can be helped.
    """
    boundaries = _boundaries(text)
    found = []
    start = 0
    while len(text) - start > limit:
        cut, hard = _cut(text, start, limit, boundaries)
        found.append(Fragment(start, cut - (text[cut - 1] == " "), hard))
        start = cut + (text[cut] == " ")
    found.append(Fragment(start, len(text), False))
    return found


def _boundaries(text: str) -> tuple[array[int], ...]:
    """Positions after which a cut is acceptable, best class first."""
    positions = tuple(array("q") for _ in _CLASSES)
    for found in _BOUNDARY.finditer(text):
        if found.end() < len(text) and not marks.EXTENDS.match(text, found.end()):
            positions[int(str(found.lastgroup)[-1])].append(found.end())
    return positions


def _cut(text: str, start: int, limit: int, boundaries: tuple[array[int], ...]) -> tuple[int, bool]:
    """The end of the fragment that starts at `start`, and whether it had to be a hard one."""
    rest = len(text) - start
    target = start + round(rest / -(-rest // limit))
    last = start + limit
    margin = max(1, (target - start) // 2)
    for low, high in ((start + margin, min(last, len(text) - margin)), (start + 1, last)):
        for positions in boundaries:
            within = positions[bisect_left(positions, low) : bisect_right(positions, high)]
            if within:
                return min(within, key=lambda position: (abs(position - target), position)), False
    return _cluster_cut(text, start, target, last), True


def _cluster_cut(text: str, start: int, target: int, last: int) -> int:
    """The last end of a grapheme cluster up to `target`; else the first one up to `last`; else `last`."""
    if text[start : last + 1].isascii():  # every character is a cluster
        return target
    cut = start
    for cluster in _CLUSTER.finditer(text[start : last + 1]):  # a slice: to pair flags, \X reads from the beginning
        end = start + cluster.end()
        if end > (target if cut > start else last):
            break
        cut = end
    return cut if cut > start else last
