"""How good generated text is by its words and characters, LCM 3.1.1: ROUGE-L, repetition, overlap with the source.

REP-4 and OVL-3 are measured as the paper's tables are, by n-grams of characters, n = 1 … 4; its text describes n-grams
of words, which are here too, under the names of the literature.

Words are runs of letters and digits, in lower case; where a script does not separate words by spaces, each character is
one. For English this is what the package `rouge_score` does without stemming. Cost: ROUGE-L takes words · words / 64
operations of a machine word.
"""

from __future__ import annotations

from collections.abc import Sequence

import regex

UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
WORDS = regex.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")


def words(text: str) -> list[str]:
    """Return the words of a text."""
    found: list[str] = WORDS.findall(text.lower())
    return found


def word_count(text: str) -> int:
    """Return the number of words of a text; WR of the paper's tables is that of the output over that of the source."""
    return len(words(text))


def rouge_l(output: str, reference: str) -> float:
    """Return ROUGE-L of Lin (2004), 0–1: F-measure (β = 1) of the longest common subsequence of words, of the texts as
    wholes.

    0 if a text has no words.
    """
    ours, real = words(output), words(reference)
    common = longest_common(ours, real)
    return 2 * common / (len(ours) + len(real)) if common else 0.0


def rep_4(output: str) -> float | None:
    """Return REP-4 of the paper's tables: how many n-grams of characters there are for each distinct one, less 1; 0 or
    more.

    It grows with the length of a text, repetitive or not. None for an empty output.
    """
    grams = _character_grams(output)
    return len(grams) / len(set(grams)) - 1 if grams else None


def ovl_3(output: str, source: str) -> float | None:
    """Return OVL-3 of the paper's tables, 0–1: the share of the source's distinct n-grams of characters that the output
    has.

    Unrelated texts of one language share many. None for an empty source.
    """
    of_source = set(_character_grams(source))
    return len(of_source & set(_character_grams(output))) / len(of_source) if of_source else None


def seq_rep_4(output: str) -> float | None:
    """Return seq-rep-4 of Welleck et al. (2019), in percent: the share of word 4-grams that occurred earlier in the
    output.

    None for an output of fewer than four words.
    """
    grams = _grams(words(output), 4)
    return 100 * (1 - len(set(grams)) / len(grams)) if grams else None


def copied_3_grams(output: str, source: str) -> float | None:
    """Return which share of the distinct word 3-grams of the source, 0–1, stand in the output.

    None for a source of fewer than three words.
    """
    of_source = set(_grams(words(source), 3))
    return len(of_source & set(_grams(words(output), 3))) / len(of_source) if of_source else None


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence (bit-parallel: a bit of an integer for each word of
    `first`).
    """
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


def _character_grams(text: str) -> list[str]:
    """Count all runs of 1 to 4 characters, as they stand in the text."""
    return [text[start : start + n] for n in range(1, 5) for start in range(len(text) - n + 1)]
