"""Documents to sentences: the same text, cut; nothing is dropped, and every sentence knows where it stood.

A sentence is a slice of its document in which runs of white space and control characters are one space. The slices of
a document follow each other and hold all of its other characters. Blank lines always end a sentence, single line ends
do not.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.segment import marks
from stages.segment.cap import fragments
from stages.segment.settings import SegmentSettings
from stages.segment.spacy_rules import SpacyRules, spacy_code

COUNTED = 20_000  # texts whose tokens are in memory at once


@dataclass(frozen=True)
class Segmented:
    """The sentences of a batch of documents, one row each, in order."""

    document: NDArray[np.int32]  # index into the batch
    start: NDArray[np.int64]  # offsets into the document's text, in Unicode code points
    end: NDArray[np.int64]
    text: pa.Array  # string
    chars: NDArray[np.int32]  # of `text`
    tokens: NDArray[np.int32]  # of `text`, language tag and </s> included
    cap_splits: int  # sentences that the cap had to break
    hard_cuts: int  # rows that end without punctuation or white space
    over_cap: int  # single characters that alone have more than max_tokens tokens; all other rows keep the cap


class Piece(NamedTuple):
    document: int
    start: int
    end: int
    text: str
    whole: bool  # not yet broken by the cap


class Segmenter:
    """Segments batches of documents; loads spaCy's rules of a language when it first meets it.

    `count_tokens` gives the number of tokens of each text, language tag and </s> included. It is called once per batch,
    and again for what the cap breaks.
    """

    def __init__(self, settings: SegmentSettings, count_tokens: Callable[[Sequence[str]], list[int]]) -> None:
        self.settings = settings
        self._count_tokens = count_tokens
        self._rules: dict[str, SpacyRules] = {}

    def segment(self, texts: Sequence[str], langs: Sequence[str]) -> Segmented:
        """Sentences of documents in languages given by SONAR codes (`eng_Latn`); a batch may mix languages."""
        pieces = [
            Piece(document, start, end, marks.collapse(text[start:end]), True)
            for document, (text, lang) in enumerate(zip(texts, langs, strict=True))
            for start, end in self._sentences(text, self._rules_for(lang))
        ]
        if self.settings.method == "spacy":
            tokens, counts = self._count([piece.text for piece in pieces]), Counter[str]()
        else:
            pieces, tokens, counts = self._cap(texts, pieces)
        return Segmented(
            document=np.array([piece.document for piece in pieces], np.int32),
            start=np.array([piece.start for piece in pieces], np.int64),
            end=np.array([piece.end for piece in pieces], np.int64),
            text=pa.array([piece.text for piece in pieces], pa.string()),
            chars=np.array([len(piece.text) for piece in pieces], np.int32),
            tokens=np.array(tokens, np.int32),
            cap_splits=counts["cap_splits"],
            hard_cuts=counts["hard_cuts"],
            over_cap=counts["over_cap"],
        )

    def _count(self, texts: list[str]) -> list[int]:
        counts: list[int] = []
        for first in range(0, len(texts), COUNTED):
            counts += self._count_tokens(texts[first : first + COUNTED])
        return counts

    def _rules_for(self, lang: str) -> SpacyRules:
        code = spacy_code(lang)
        if code not in self._rules:
            self._rules[code] = SpacyRules(code)
        return self._rules[code]

    def _sentences(self, text: str, rules: SpacyRules) -> Iterator[tuple[int, int]]:
        for start, end in _paragraphs(text):
            starts = [*rules.starts(text[start:end]), end - start]
            for first, last in pairwise(starts):
                yield marks.trim(text, start + first, start + last)

    def _cap(self, texts: Sequence[str], pieces: list[Piece]) -> tuple[list[Piece], list[int], Counter[str]]:
        """Breaks what is over max_chars, counts tokens, and breaks what is over max_tokens until nothing is."""
        max_chars, max_tokens = self.settings.max_chars, self.settings.max_tokens
        counts: Counter[str] = Counter()
        tokens = [0] * len(pieces)  # 0: not counted yet
        limits = [max_chars if len(piece.text) > max_chars else 0 for piece in pieces]  # 0: stays as it is
        while True:
            broken: list[tuple[Piece, int]] = []
            for piece, count, limit in zip(pieces, tokens, limits, strict=True):
                if limit:
                    counts["cap_splits"] += piece.whole
                    for part, hard in _break(piece, limit, texts[piece.document]):
                        counts["hard_cuts"] += hard
                        broken.append((part, 0))
                else:
                    broken.append((piece, count))
            pieces, tokens = [piece for piece, _ in broken], [count for _, count in broken]
            new = [row for row, count in enumerate(tokens) if count == 0]
            for row, count in zip(new, self._count([pieces[row].text for row in new]), strict=True):
                tokens[row] = count
            over = [max_tokens is not None and count > max_tokens for count in tokens]
            limits = [
                max(1, len(piece.text) * (max_tokens or 0) // count) if too_long and len(piece.text) > 1 else 0
                for piece, count, too_long in zip(pieces, tokens, over, strict=True)
            ]
            if not any(limits):
                counts["over_cap"] = sum(over)
                return pieces, tokens, counts


def _paragraphs(text: str) -> Iterator[tuple[int, int]]:
    """Ranges between blank lines that hold more than white space."""
    ends = [(found.start(), found.end()) for found in marks.PARAGRAPH_END.finditer(text)]
    for (_, start), (end, _) in pairwise([(0, 0), *ends, (len(text), len(text))]):
        start, end = marks.trim(text, start, end)
        if start < end:
            yield start, end


def _break(piece: Piece, limit: int, document: str) -> Iterator[tuple[Piece, bool]]:
    """The fragments of a piece, and whether each ends without a boundary."""
    plain = piece.end - piece.start == len(piece.text)
    where: Sequence[int] = range(len(piece.text)) if plain else _original_positions(document[piece.start : piece.end])
    for start, end, hard in fragments(piece.text, limit):
        original = (piece.start + where[start], piece.start + where[end - 1] + 1)
        yield Piece(piece.document, *original, piece.text[start:end], False), hard


def _original_positions(text: str) -> array[int]:
    """For each character of the collapsed text, its position in the text (of a blank: just before what follows)."""
    positions = array("q")
    for run in marks.INK.finditer(text):
        positions.extend(range(run.start() - 1 if positions else run.start(), run.end()))
    return positions
