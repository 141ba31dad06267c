"""Unicode NFC with the way back: where each character of the normalised text was in the original.

A text that is in NFC already costs one check of 1 ns per character. Otherwise only what can change is processed:
characters that combine with the previous one, and those that are never part of NFC, about 1 µs for each.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from stages.segment.characters import code_points

Indices = NDArray[np.int64]
CODE_POINTS = 0x110000
BEGINS, JOINS = 1, 2  # what a character that may change does


@dataclass(frozen=True)
class Normal:
    """A text in NFC. `new`, `old`: (changes, 2) ranges of what was changed, here and in the `original_text`; both may
    be empty.
    """

    text: str
    new: Indices
    old: Indices
    original_text: str

    def original(self, places: Indices) -> Indices:
        """Map boundaries between characters here to boundaries of the original; order is kept.

        Inside a change, a boundary is where the original has as much of the decomposed text: after the accent of a
        letter that was composed.
        """
        if not len(self.new):
            return places
        change = np.searchsorted(self.new[:, 0], places, side="right") - 1
        known = np.maximum(change, 0)
        behind = places - self.new[known, 1]  # characters behind the change, or < 0: inside it
        found: Indices = np.where(change < 0, places, self.old[known, 1] + behind)
        for one in np.unique(change[(change >= 0) & (behind < 0)]).tolist():
            inside = (change == one) & (behind < 0)
            found[inside] = self._inside(one, places[inside])
        return found

    def _inside(self, change: int, places: Indices) -> Indices:
        (new, new_end), (old, old_end) = self.new[change].tolist(), self.old[change].tolist()
        here, there = _decomposed(self.text[new:new_end]), _decomposed(self.original_text[old:old_end])
        found: Indices = old + np.minimum(np.searchsorted(there, here[places - new]), old_end - old)
        return found


def normalised(text: str) -> Normal:
    """Return a text in NFC, equal to what `unicodedata.normalize` returns."""
    nothing = np.empty((0, 2), np.int64)
    if unicodedata.is_normalized("NFC", text):
        return Normal(text, nothing, nothing, text)
    parts: list[str] = []
    new: list[tuple[int, int]] = []
    old: list[tuple[int, int]] = []
    kept, length = 0, 0
    change = np.append(_changes()[code_points(text)], 0)
    begins = np.flatnonzero((change == BEGINS) | (np.diff(change != 0, prepend=False) & (change == JOINS)))
    stops = np.flatnonzero(change != JOINS)
    ends = stops[np.searchsorted(stops, begins, side="right")]
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        start = begin if change[begin] == BEGINS else max(kept, begin - 1)  # with what it may combine with
        changed = unicodedata.normalize("NFC", text[start:end])
        if changed == text[start:end]:
            continue
        parts += (text[kept:start], changed)
        length += start - kept
        new.append((length, length + len(changed)))
        old.append((start, end))
        length += len(changed)
        kept = end
    parts.append(text[kept:])
    return Normal("".join(parts), np.array(new, np.int64).reshape(-1, 2), np.array(old, np.int64).reshape(-1, 2), text)


def _decomposed(text: str) -> Indices:
    """Return how many characters of the decomposed text (NFD) precede each boundary between characters."""
    return np.cumsum([0, *(len(unicodedata.normalize("NFD", one)) for one in text)])


@cache
def _changes() -> NDArray[np.uint8]:
    """Classify code points for NFC, (0x110000,), in 0.3 s.

    JOINS: may combine with the code point before; BEGINS: others that are never part of NFC.
    """
    found = np.zeros(CODE_POINTS, np.uint8)
    found[0x1161:0x1176] = found[0x11A8:0x11C3] = JOINS  # Hangul vowels and finals
    never = []
    for code in range(CODE_POINTS):
        character = chr(code)
        parts = unicodedata.decomposition(character).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            found[int(parts[1], 16)] = JOINS
        if unicodedata.combining(character):
            found[code] = JOINS
        elif not unicodedata.is_normalized("NFC", character):
            never.append(code)
    for code in never:
        first = unicodedata.normalize("NFD", chr(code))[0]
        found[code] = JOINS if found[code] == JOINS or found[ord(first)] == JOINS else BEGINS
    return found
