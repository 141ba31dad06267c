"""Estimates how many sentences segmenting will make of a text, without a model.

By rules, sentences end at sentence-final marks and blank lines. On prose this is within 15 %, also of what SaT finds.
In text with few such marks (lists, tables, code, transcripts) SaT also finds ends at line ends and between words. How
many is a guess, so it is told how much of a count is doubtful. Cost: about 0.1 µs a character, of the first 262 144 of
a text, which stand for the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from stages.cards import CardError
from stages.segment import marks
from stages.segment.settings import SegmentSettings

LONG = 400  # characters without a final mark; if there is hardly any other mark, SaT finds ends in them
COMMAS = 150  # characters to a mark inside sentences, at most, in what has some
BARE = 90  # characters of a sentence that SaT finds in text without marks
COUNTED = 1 << 18  # characters of a text, at most
WRAPPED = 200  # characters of a line; longer lines were not broken to fit a page
_SHORT = "\x00"  # stands at the end of a line in which there was room for the next word
_TITLES = frozenset(("Mr", "Mrs", "Dr", "St", "Mme"))
_END = re.compile(
    rf"[{re.escape(marks.SPACED_FINAL)}…][{re.escape(marks.CLOSERS)}]*[\s{_SHORT}]+"
    rf"|[{marks.FINAL}][{re.escape(marks.CLOSERS)}]*|\n\s*\n\s*"
)
_BLANK_LINE = re.compile(r"\n\s*\n")
_LAST_WORD = re.compile(r"\w+\Z")
_INSIDE = re.compile(r"[,;:()–—،؛、，；：]")


class SentenceCount(NamedTuple):
    """The estimated number of sentences of a text, and how many of them are a guess (`doubtful`)."""

    sentences: int
    doubtful: int


class SentenceCounter:
    """Estimates how many sentences the section `segment` makes of texts."""

    def __init__(self, settings: SegmentSettings) -> None:
        self._settings = settings
        self._most = settings.max_chars if settings.capped else None
        try:
            self._languages = settings.languages if settings.uses_sat else frozenset[str]()
        except CardError:  # others tell of it
            self._languages = None

    def __call__(self, text: str, lang: str) -> SentenceCount:
        """Estimate the sentences of a text in a language, given by its SONAR code."""
        if len(text) > COUNTED:
            return SentenceCount(*(round(one * len(text) / COUNTED) for one in self(text[:COUNTED], lang)))
        by_sat = self._by_sat(text, lang)
        found = doubtful = characters = 0
        for piece in _pieces(_with_short_lines(text) if by_sat else text):
            parts = [one for one in (" ".join(part.split()) for part in piece.split(_SHORT)) if marks.INK.search(one)]
            length = sum(map(len, parts))
            if length:
                characters += length
                rows = sum(self._rows(len(one), _sentences_in(one)) for one in parts) if by_sat else self._rows(length)
                found += rows
                doubtful += rows - (self._rows(length) if length <= LONG or not by_sat else 0)
        return SentenceCount(self._merged(found, characters), max(0, doubtful))

    def sentences(self, text: str, lang: str) -> int:
        """Estimate the number of sentences of a text; how doubtful it is, is left out."""
        return self(text, lang).sentences

    def _by_sat(self, text: str, lang: str) -> bool:
        if not self._settings.uses_sat:
            return False
        return self._languages is None or lang in self._languages or not marks.has_sentence_ends(text)

    def _rows(self, characters: int, sentences: int = 1) -> int:
        """Return what the cap makes of sentences with so many characters in all."""
        return max(sentences, math.ceil(characters / self._most)) if self._most else sentences

    def _merged(self, sentences: int, characters: int) -> int:
        """Return what is left if fragments are joined."""
        least = self._settings.min_chars
        return min(sentences, max(1, characters // least)) if least and sentences else sentences


def _pieces(text: str) -> Iterator[str]:
    """Yield what stands between final marks and blank lines."""
    start = 0
    for end in _END.finditer(text):
        if not _goes_on(text, end):
            yield text[start : end.end()]
            start = end.end()
    yield text[start:]


def _goes_on(text: str, end: re.Match[str]) -> bool:
    """Return whether a sentence goes on after a mark: “Why?” she said; Mr. Smith; J. Smith."""
    if end[0][0] in marks.FINAL or _BLANK_LINE.search(end[0]):
        return False
    if (end[0][0] == "." or end[0][1] in marks.CLOSERS) and text[end.end() : end.end() + 1].islower():
        return True
    word = _LAST_WORD.search(text, max(0, end.start() - 5), end.start()) if end[0][0] == "." else None
    return bool(word and (word[0] in _TITLES or (len(word[0]) == 1 and word[0].isupper())))


def _sentences_in(piece: str) -> int:
    """Return how many sentences SaT probably finds in a line, or in lines that go on to their end."""
    if len(piece) <= LONG or len(_INSIDE.findall(piece)) * COMMAS >= len(piece):
        return 1
    return round(len(piece) / BARE)


def _with_short_lines(text: str) -> str:
    """Replace the ends of lines in which there was room for the next word, so that somebody meant them to end there."""
    lines = text.split("\n")
    lengths = [len(one.strip()) for one in lines]
    full = sorted(filter(None, lengths))
    width = full[min(int(0.95 * len(full)), len(full) - 1)] if full else 0
    found = [lines[0]]
    for before, length, line in zip(lengths, lengths[1:], lines[1:], strict=False):
        room = width > WRAPPED or before + 1 + len(line.split(None, 1)[0]) <= width if before and length else False
        found += [_SHORT if room else "\n", line]
    return "".join(found)
