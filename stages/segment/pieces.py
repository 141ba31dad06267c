"""Pieces of text under limits: their places, their text, their number of tokens; and the joining of small ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stages.segment.text import Flags, Indices, Text, ranges

COUNTED = 20_000  # texts whose tokens are in memory at once


@dataclass(frozen=True)
class Limits:
    """What no piece may exceed (None: no limit), and how tokens are counted: language tag and </s> included."""

    max_chars: int | None
    max_tokens: int | None
    count_tokens: Callable[[Sequence[str]], list[int]]

    def count(self, texts: Sequence[str]) -> Indices:
        """Return the number of tokens of each text."""
        parts = [self.count_tokens(texts[at : at + COUNTED]) for at in range(0, len(texts), COUNTED)]
        return np.array([count for part in parts for count in part], np.int64)

    @cached_property
    def overhead(self) -> int:
        """The number of tokens of an empty text: the language tag and </s>."""
        return self.count_tokens([""])[0]


class Pieces:
    """Neighbouring pieces that hold all ink of a `Text`: from ink character `first[k]` to `last[k]`.

    Args:
        text: the text.
        cut: (ink,) bool, whether a piece ends with each ink character.
        limits: the most characters and tokens of a piece.
    """

    def __init__(self, text: Text, cut: Flags, limits: Limits) -> None:
        self.text, self.limits, self.cut = text, limits, cut
        self.hard: Flags = np.zeros(len(cut), np.bool_)  # cuts that no boundary speaks for
        self.first, self.last = ranges(cut)
        self.written = text.slices(self.first, self.last)
        self.tokens = np.full(len(self.first), -1, np.int64)  # -1: not counted yet
        self._sentences = self.last  # where they end

    @property
    def chars(self) -> Indices:
        """The number of characters of each piece, as written."""
        return self.text.length(self.first, self.last)

    @property
    def cap_splits(self) -> int:
        """The number of sentences with a cut in them."""
        return len(np.unique(np.searchsorted(self._sentences, np.setdiff1d(self.last, self._sentences))))

    @property
    def sentence(self) -> Indices:
        """The number of the sentence that each piece is from."""
        return np.searchsorted(self._sentences, self.last)

    def too_long(self) -> Indices:
        """Return the pieces of more than max_chars."""
        limit = self.limits.max_chars
        return np.flatnonzero(self.chars > limit) if limit else np.empty(0, np.int64)

    def too_many_tokens(self) -> Indices:
        """Return the pieces of more than max_tokens; counts tokens that are not counted yet."""
        new = np.flatnonzero(self.tokens < 0)
        self.tokens[new] = self.limits.count([self.written[row] for row in new.tolist()])
        limit = self.limits.max_tokens
        return np.flatnonzero(self.tokens > limit) if limit else np.empty(0, np.int64)

    def recut(self, inside: Flags, places: Indices, hard: Flags) -> None:
        """Replace all cuts in some places by others; pieces that stay keep their token counts.

        Args:
            inside: (ink,) bool, where cuts are removed.
            places: the ink characters after which there is a cut now.
            hard: for each of `places`, whether no boundary speaks for it.
        """
        self.cut = self.cut & ~inside
        self.cut[places] = True
        self.hard &= ~inside
        self.hard[places] = hard
        old_first, old_last, tokens = self.first, self.last, self.tokens
        self.first, self.last = ranges(self.cut)
        row = np.minimum(np.searchsorted(old_last, self.last), len(old_last) - 1)
        stays = (old_last[row] == self.last) & (old_first[row] == self.first)
        new = np.flatnonzero(~stays)
        fresh = iter(self.text.slices(self.first[new], self.last[new]))
        pairs = zip(row.tolist(), stays.tolist(), strict=True)
        self.written = [self.written[at] if as_it_was else next(fresh) for at, as_it_was in pairs]
        self.tokens = np.where(stays, tokens[row], -1)


Test = Callable[[int, int], bool]  # of the pieces from one to another, both included


def joined(count: int, barrier: Sequence[bool], too_small: Test, fits: Test) -> list[bool]:
    """Join what is too small: such a piece joins the previous one, or else the next one joins it.

    Cost: one pass.

    Args:
        count: how many pieces there are.
        barrier: for each piece, whether nothing can be joined across its end.
        too_small: (first, last) → whether these pieces together are too small.
        fits: (first, last) → whether these pieces may become one.

    Returns:
        For each piece, whether it still ends something.
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
