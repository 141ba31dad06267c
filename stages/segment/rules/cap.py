"""The hard cap by rules: breaks a piece at the best boundaries, so that none is longer than a limit (LCM 2.2).

Boundaries are searched by class: sentence ends, then semicolons, colons and dashes, then commas, then white space, in
the scripts of the world; if there is none, between grapheme clusters; inside a cluster only if the cluster alone is
longer than the limit. The pieces have about equal length. One round cuts one fragment off every piece that is too long,
on arrays over all of them: about 0.1 µs per character, and at least 0.3 ms per round.
"""

from __future__ import annotations

import re

import numpy as np

from stages.segment import marks
from stages.segment.characters import BREAKABLE, WORD_END, cluster_ends
from stages.segment.pieces import Pieces
from stages.segment.text import Flags, Indices, Text, all_between


def _after(spaced: str, anywhere: str) -> str:
    """Return a pattern of marks and the quotes and brackets that close after them; spaced marks only before space."""
    closers = rf"(?:[{re.escape(marks.CLOSERS)}]|\s»(?=\s))*+"
    return rf"(?:{spaced}{closers}(?=\s)|[{re.escape(anywhere)}]++{closers})"


# A full stop after three letters or fewer is an abbreviation more often than a sentence end.
_CLASSES = (
    _after(r"(?<![.!?…])(?:[!?…]|\.{2,}+|(?:(?<=[^\W_]{4})|(?<=[)\]\"”’»]))\.)++", marks.FINAL),
    _after(rf"(?:[{re.escape(marks.SPACED_BREAKS)}]|--+|(?<=\s)[-–])", marks.BREAKS) + "|--++",
    _after(re.escape(marks.SPACED_COMMAS), marks.COMMAS),
)
_BOUNDARY = re.compile("|".join(f"({pattern})" for pattern in _CLASSES))


def fit(pieces: Pieces) -> int:
    """Break what exceeds the limits. Returns how many single characters still have too many tokens."""
    long = pieces.too_long()
    if len(long):
        _break(pieces, long, np.full(len(long), pieces.limits.max_chars))
    while True:
        over = pieces.too_many_tokens()
        chars = pieces.chars[over]
        single = chars == 1
        if single.all():
            return len(over)
        over, chars = over[~single], chars[~single]
        _break(pieces, over, np.maximum(1, chars * (pieces.limits.max_tokens or 0) // pieces.tokens[over]))


def _break(pieces: Pieces, rows: Indices, limits: Indices) -> None:
    text = pieces.text
    places, hard = _fragments(text, pieces.first[rows], pieces.last[rows], limits)
    pieces.recut(np.zeros(len(text.ink), np.bool_), places, hard)


def _fragments(text: Text, first: Indices, last: Indices, limits: Indices) -> tuple[Indices, Flags]:
    """Return where to cut pieces of text, each to its own limit, and which of the cuts are at no boundary."""
    classes = [(found, text.written[found] + 1) for found in _boundaries(text, first, last)]
    begin, end = text.written[first], text.written[last] + 1
    places, hards = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    while True:
        rest = end - begin
        long = rest > limits
        begin, end, rest, limits, last = begin[long], end[long], rest[long], limits[long], last[long]
        if not len(begin):
            return np.concatenate(places), np.concatenate(hards)
        parts = -(-rest // limits)
        target = begin + (2 * rest + parts) // (2 * parts)
        furthest = begin + limits
        margin = np.maximum(1, (target - begin) // 2)
        cut = np.full(len(begin), -1)
        for low, high in ((begin + margin, np.minimum(furthest, end - margin)), (begin + 1, furthest)):
            for found, ends in classes:
                todo = np.flatnonzero(cut < 0)
                cut[todo] = _nearest(found, ends, low[todo], high[todo], target[todo])
        hard = cut < 0
        for row in np.flatnonzero(hard).tolist():
            cut[row] = _cluster_cut(text, int(begin[row]), int(target[row]), int(furthest[row]))
        places.append(cut)
        hards.append(hard)
        begin = text.written[cut + 1]


def _boundaries(text: Text, first: Indices, last: Indices) -> list[Indices]:
    """Return ink characters after which a cut is acceptable, best class first."""
    inside = all_between(first, last)
    kind = text.kind[text.ink[inside]]
    marked = inside[(kind & BREAKABLE) != 0]
    stops = text.ink[last[np.searchsorted(last, marked)]] + 1
    places: list[list[int]] = [[] for _ in _CLASSES]
    behind = 0
    for place, stop in zip(text.ink[marked].tolist(), stops.tolist(), strict=True):
        if place >= behind and (found := _BOUNDARY.match(text.text, place, stop)):
            behind = found.end()
            places[(found.lastindex or 0) - 1].append(behind)
    by_class = [np.unique(text.before(np.array(ends, np.int64))) for ends in places]
    by_class.append(inside[text.gap[inside] | ((kind & WORD_END) != 0)])
    return [found[~text.joins_next[found]] for found in by_class]


def _nearest(found: Indices, ends: Indices, low: Indices, high: Indices, target: Indices) -> Indices:
    """Return, among boundaries whose ends are from `low` to `high`, the one nearest to `target`; −1 if there
    is none.
    """
    from_, to = np.searchsorted(ends, low), np.searchsorted(ends, high, side="right")
    cut = np.full(len(low), -1)
    rows = np.flatnonzero(from_ < to)
    if len(rows):
        behind = np.searchsorted(ends, target[rows])
        left = np.clip(behind - 1, from_[rows], to[rows] - 1)
        right = np.clip(behind, from_[rows], to[rows] - 1)
        nearer = np.abs(ends[right] - target[rows]) < np.abs(ends[left] - target[rows])
        cut[rows] = found[np.where(nearer, right, left)]
    return cut


def _cluster_cut(text: Text, begin: int, target: int, furthest: int) -> int:
    """Return the last end of a grapheme cluster up to `target`; else the first up to `furthest`; else that.

    There is no white space between, so places as written and ink coincide.
    """
    first = int(np.searchsorted(text.written, begin))
    start = int(text.ink[first])
    run = text.text[start : start + furthest - begin + 1]
    wanted, most = target - begin, furthest - begin
    if run.isascii():  # every character is a cluster
        return first + wanted - 1
    length = 0
    for end in cluster_ends(run):
        if end > (wanted if length else most):
            break
        length = end
    return first + (length or most) - 1
