"""The methods that find where sentences end: spaCy's rules, or a SaT model; and paragraphs (LCM 4.3).

Both process many documents at once. Paragraphs stand between blank lines; with the method `paragraphs` they are SaT's,
fewer than ten sentences each, single sentences joined.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from stages.segment.pieces import Pieces, joined
from stages.segment.rules import cap as rules_cap
from stages.segment.sat import cap as sat_cap
from stages.segment.sat.cap import best_cuts
from stages.segment.settings import SegmentSettings
from stages.segment.text import Flags, Indices, Text

if TYPE_CHECKING:
    from stages.segment.rules.spacy_rules import SpacyRules
    from stages.segment.sat.runner import SatRunner


class FoundCuts(Protocol):
    """What a method found in a text."""

    cut: Flags  # (ink,) whether a sentence ends

    def fit(self, pieces: Pieces) -> int:
        """Break what exceeds the limits. Returns how many single characters still have too many tokens."""

    def paragraph_ends(self, text: Text, pieces: Pieces) -> Flags:
        """Return (pieces,) whether a paragraph ends."""


class Method(Protocol):
    def find(self, text: Text, langs: Sequence[str]) -> FoundCuts:
        """Find where the sentences of documents end; langs: a SONAR code for each document."""


class FoundByRules:
    def __init__(self, cut: Flags) -> None:
        self.cut = cut

    def fit(self, pieces: Pieces) -> int:
        return rules_cap.fit(pieces)

    def paragraph_ends(self, text: Text, pieces: Pieces) -> Flags:
        return text.ends[pieces.last]


@functools.cache
def spacy_rules(code: str) -> SpacyRules:
    """Return a language's rules, which take a third of a second to load once per process; spaCy takes one more."""
    from stages.segment.rules.spacy_rules import SpacyRules

    return SpacyRules(code)


class SpacyMethod:
    """Segments by the rules of each document's language, which are loaded with the first document in it."""

    def find(self, text: Text, langs: Sequence[str]) -> FoundByRules:
        from stages.segment.rules.spacy_rules import spacy_code

        cut = text.ends.copy()
        first = 0
        for code, group in groupby(map(spacy_code, langs)):
            last = first + len(list(group))
            starts = np.array(spacy_rules(code).starts(text, first, last), np.int64)
            cut[text.before(starts)] = True
            first = last
        return FoundByRules(cut)


class FoundByModel:
    """What SaT found in a text.

    Args:
        text: the text.
        logits: (ink,) log odds of a sentence's end after each ink character, −inf for none.
        threshold: the probability from which a sentence ends.
        paragraph_threshold: the probability from which a paragraph ends; None: only blank lines end one.
    """

    def __init__(
        self, text: Text, logits: NDArray[np.float32], threshold: float, paragraph_threshold: float | None
    ) -> None:
        self._logits = np.where(text.joins_next, np.float32(-np.inf), logits)
        self._odds = self._logits - np.float32(_log_odds(threshold))
        self._paragraph_threshold = paragraph_threshold
        self.cut = text.ends | (self._odds > 0)

    def fit(self, pieces: Pieces) -> int:
        return sat_cap.fit(pieces, self._odds)

    def paragraph_ends(self, text: Text, pieces: Pieces) -> Flags:
        if self._paragraph_threshold is None:
            return text.ends[pieces.last]
        odds = self._logits[pieces.last] - np.float32(_log_odds(self._paragraph_threshold))
        return paragraph_ends(odds, text.ends[pieces.last], text.owner(pieces.last))


class SatMethod:
    def __init__(self, settings: SegmentSettings, device: str) -> None:
        # torch takes seconds to import, and spaCy's rules do without
        from stages.device import compute_dtype, prepare_cuda
        from stages.segment.sat.card import load_sat_card
        from stages.segment.sat.load import load
        from stages.segment.sat.runner import SatRunner

        prepare_cuda(device)
        card = load_sat_card(settings.sat)
        network, tokenizer = load(card, compute_dtype(settings.precision, device), device)
        self._runner = SatRunner(
            network, tokenizer, stride=settings.stride, batch_tokens=settings.batch_tokens, device=device
        )
        self._threshold = settings.threshold or card.threshold
        own = settings.paragraph_threshold or card.paragraph_threshold
        self._paragraph_threshold = own if settings.method == "paragraphs" else None

    def find(self, text: Text, langs: Sequence[str]) -> FoundByModel:
        return FoundByModel(text, ink_logits(self._runner, text), self._threshold, self._paragraph_threshold)


def ink_logits(runner: SatRunner, text: Text) -> NDArray[np.float32]:
    """Return (ink,) the log odds of a sentence's end after each ink character; −inf where no token ends."""
    places, found = runner.logits(text.documents, text.edges[:-1])
    logits = np.full(len(text.ink), -np.inf, np.float32)
    ink = text.before(places + 1)
    logits[ink[ink >= 0]] = found[ink >= 0]
    return logits


def make_method(settings: SegmentSettings, device: str) -> Method:
    """Load what the settings ask for onto the device."""
    if settings.uses_sat:
        return SatMethod(settings, device)
    importlib.import_module("stages.segment.rules.spacy_rules")  # now, not in the time of the first document
    return SpacyMethod()


def _log_odds(probability: float) -> float:
    return math.log(probability / (1 - probability))


MOST, LEAST = 9, 2  # sentences of a paragraph
SILENT = -1e2


def paragraph_ends(odds: NDArray[np.float32], blank_line: Flags, document: Indices) -> Flags:
    """Return where paragraphs end.

    A paragraph of more than nine sentences is cut where that is most probable; a single sentence joins the paragraph
    before it, or else the next one, if both have together at most nine and are in one document.

    Args:
        odds: (sentences,) log odds of a paragraph's end after each sentence, minus those of the threshold.
        blank_line: (sentences,) whether a blank line follows, which ends a paragraph too.
        document: (sentences,) the number of its document, ascending.

    Returns:
        (sentences,) bool, whether a paragraph ends with each sentence.
    """
    count = len(odds)
    if not count:
        return np.empty(0, np.bool_)
    document_ends = np.diff(document, append=document[-1] + 1) > 0
    ends = document_ends | blank_line | (odds > 0)
    # node k + 1 stands after sentence k; a path that goes through all ends that are known
    gains = np.append(0.0, np.clip(odds.astype(np.float64), SILENT, 0.0))
    known = np.maximum.accumulate(np.append(0, np.where(ends, np.arange(count) + 1, 0)))
    left = np.maximum(np.arange(count + 1) - MOST, np.append(0, known[:-1]))
    ends[best_cuts(gains, left) - 1] = True
    last = np.flatnonzero(ends)
    size = np.diff(np.append(0, last + 1))
    before = np.append(0, np.cumsum(size)).tolist()

    def too_small(first: int, to: int) -> bool:
        return bool(before[to + 1] - before[first] < LEAST)

    def fits(first: int, to: int) -> bool:
        return bool(before[to + 1] - before[first] <= MOST)

    ends[last[~np.array(joined(len(last), document_ends[last].tolist(), too_small, fits))]] = False
    return ends
