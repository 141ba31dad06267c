"""How good generated text is by its words, LCM 3.1.1: ROUGE-L, duplicated 4-grams, 3-grams taken from the source.

Words are runs of letters and digits, in lower case; where a script does not part words by spaces, each character is
one. For English this is what the package `rouge_score` does without stemming. Cost: ROUGE-L takes words · words / 64
operations of a machine word.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
WORDS = regex.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")


def words(text: str) -> list[str]:
    """The words of a text."""
    found: list[str] = WORDS.findall(text.lower())
    return found


def rouge_l(output: str, reference: str) -> float:
    """ROUGE-L of Lin (2004), 0–1: F-measure (β = 1) of the longest common subsequence of words, of the texts as wholes.

    0 if a text has no words.
    """
    ours, real = words(output), words(reference)
    common = longest_common(ours, real)
    return 2 * common / (len(ours) + len(real)) if common else 0.0


def rep_4(output: str) -> float | None:
    """REP-4, in percent: word 4-grams that stood in the output before, of all its 4-grams (seq-rep-4, Welleck 2019).

    None for an output of fewer than four words.
    """
    grams = _grams(words(output), 4)
    return 100 * (1 - len(set(grams)) / len(grams)) if grams else None


def ovl_3(output: str, source: str) -> float | None:
    """OVL-3, 0–1: which share of the distinct word 3-grams of the source stand in the output.

    None for a source of fewer than three words.
    """
    of_source = set(_grams(words(source), 3))
    return len(of_source & set(_grams(words(output), 3))) / len(of_source) if of_source else None


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence (bit-parallel: a bit of an integer for each word of `first`)."""
    places: dict[str, int] = {}
    for index, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << index
    all_bits = (1 << len(first)) - 1
    row = all_bits  # a zero for every place where the table of lengths steps up
    for word in second:
        matched = row & places.get(word, 0)
        row = ((row + matched) | (row - matched)) & all_bits
    return len(first) - row.bit_count()


def _grams(found: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(found[start:] for start in range(n)), strict=False))
