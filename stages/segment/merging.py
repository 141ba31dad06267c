"""Joins neighbours that are too small, from left to right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stages.segment.pieces import Pieces
from stages.segment.text import Flags

Test = Callable[[int, int], bool]  # of the pieces from one to another, both included


def joined(count: int, barrier: Sequence[bool], too_small: Test, fits: Test) -> list[bool]:
    """Return whether each piece still ends something: a small one joins the previous one, or else the next one joins
    it.

    `barrier`: whether nothing can be joined across the end of a piece. Cost: one pass.
    """
    ends = [True] * count
    begin = 0
    for piece in range(1, count):
        if not barrier[piece - 1] and (too_small(begin, piece - 1) or too_small(piece, piece)) and fits(begin, piece):
            ends[piece - 1] = False
        else:
            begin = piece
    return ends


def merge_fragments(pieces: Pieces, min_chars: int) -> None:
    """Join pieces of fewer than min_chars characters to their neighbours, unless that exceeds a limit or crosses a
    blank line.
    """
    text, limits = pieces.text, pieces.limits
    if not (pieces.chars < min_chars).any():
        return
    begin, end = text.written[pieces.first].tolist(), (text.written[pieces.last] + 1).tolist()
    tokens = np.concatenate(([0], np.cumsum(pieces.tokens - limits.overhead))).tolist()
    max_chars, max_tokens = limits.max_chars or np.inf, limits.max_tokens or np.inf

    def too_small(first: int, last: int) -> bool:
        return bool(end[last] - begin[first] < min_chars)

    def fits(first: int, last: int) -> bool:
        few = tokens[last + 1] - tokens[first] + limits.overhead <= max_tokens
        return bool(few and end[last] - begin[first] <= max_chars)

    ends = joined(len(begin), text.ends[pieces.last].tolist(), too_small, fits)
    removed = pieces.last[~np.array(ends)]
    hard = pieces.hard[removed]
    nowhere: Flags = np.zeros(len(text.ink), np.bool_)
    inside = nowhere.copy()
    inside[removed] = True
    pieces.recut(inside, removed[:0], hard[:0])
    over = pieces.too_many_tokens()  # words that were cut may be more tokens together: these are taken apart again
    back = np.isin(np.searchsorted(pieces.last, removed), over)
    pieces.recut(nowhere, removed[back], hard[back])
    pieces.too_many_tokens()
