"""Counts of characters and words of many sentences at once, from code points and a table of what each one is.

Arrow's regular expressions (RE2) say it of each character that occurs, once; NumPy counts. That is several times as
fast as a regular expression over all text for each count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
CODES = 0x110000  # code points of Unicode
ROWS, BYTES = 1 << 14, 4 << 20  # sentences, and their bytes, whose code points are in memory at once


@dataclass(frozen=True)
class Characters:
    """The characters of some sentences. `codes`: of all, one sentence after the other; `edges`: (rows + 1,) where each
    begins; `present`: the distinct code points, sorted; `known`: the same as text.
    """

    codes: npt.NDArray[np.uint32]
    edges: Ints
    present: Ints
    known: pa.Array

    @classmethod
    def of(cls, texts: Sequence[str]) -> Characters:
        """Take sentences apart."""
        codes = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))])
        there = np.zeros(CODES, np.bool_)
        there[codes] = True
        present = np.flatnonzero(there)
        return cls(codes, edges, present, pa.array(list(map(chr, present.tolist())), pa.string()))

    def are(self, pattern: str) -> Flags:
        """Return (characters,) which ones match a pattern of one character."""
        table = np.zeros(CODES, np.bool_)
        table[self.present] = pc.match_substring_regex(self.known, pattern).to_numpy(zero_copy_only=False)
        found: Flags = table[self.codes]
        return found

    def among(self, characters: str) -> Flags:
        """Return (characters,) which ones are some of these."""
        table = np.zeros(CODES, np.bool_)
        table[[ord(one) for one in characters]] = True
        found: Flags = table[self.codes]
        return found

    def starts(self, inside: Flags) -> Flags:
        """Return (characters,) where runs of such characters begin, which end with their sentence."""
        before = np.zeros(len(inside), np.bool_)
        before[1:] = inside[:-1]
        edges = self.edges[:-1]
        before[edges[edges < len(inside)]] = False
        return inside & ~before

    def count(self, which: Flags) -> Ints:
        """Return (rows,) how many characters of each sentence are such ones."""
        return np.diff(np.searchsorted(np.flatnonzero(which), self.edges))

    def words_with(self, word: Flags, character: Flags) -> Ints:
        """Return (rows,) how many runs of `word` have such a character."""
        places = np.flatnonzero(self.starts(word))
        if not len(places):
            return np.zeros(len(self.edges) - 1, np.int64)
        has = np.zeros(len(word), np.bool_)
        has[places] = np.logical_or.reduceat(character & word, places)
        return self.count(has)

    def whole_words(self, inside: Flags, words: Sequence[str]) -> Flags:
        """Return (words, rows) which sentences have which words, in ASCII, as whole runs of `inside` in any case."""
        starts = self.starts(inside)
        ends = np.ones(len(inside) + 1, np.bool_)  # where a run that came before has ended
        ends[:-1] = ~inside | starts
        lower = np.where((self.codes >= 65) & (self.codes <= 90), self.codes + 32, self.codes)
        firsts = np.flatnonzero(starts & np.isin(lower, [ord(word[0]) for word in words]))
        found = np.zeros((len(words), len(self.edges) - 1), np.bool_)
        for number, word in enumerate(words):
            places = firsts[firsts + len(word) <= len(inside)]
            for at, letter in enumerate(word):
                places = places[lower[places + at] == ord(letter)]
            for at in range(1, len(word) + 1):
                places = places[ends[places + at] == (at == len(word))]
            found[number, np.searchsorted(self.edges, places, side="right") - 1] = True
        return found
