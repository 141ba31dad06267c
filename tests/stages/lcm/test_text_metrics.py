"""Metrics of text: ROUGE-L against numbers of the package `rouge_score` 0.1.2, the others against plain loops."""

from __future__ import annotations

import random

import pytest

from stages.lcm.text_metrics import copied_3_grams, longest_common, ovl_3, rep_4, rouge_l, seq_rep_4, words

WIFE = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife."
)
ROUGE_SCORE = [  # reference, output, RougeScorer(["rougeL"], use_stemmer=False).score(reference, output).fmeasure
    (
        "The quick brown fox jumps over the lazy dog.",
        "A quick fox, brown, jumped over the lazy old dog!",
        0.631578947368421,
    ),
    (WIFE, "A single man of good fortune must want a wife; it is universally acknowledged.", 0.5405405405405405),
    ("police killed the gunman", "the gunman police killed", 0.5),
    ("police killed the gunman", "police kill the gunman", 0.75),
    ("one two three", "four five six", 0.0),
    ("one two three", "", 0.0),
    (
        "In 1998, the U.S. budget was 12.5% larger than in 1997.",
        "The budget in 1998 was 12 5 larger, the U S said.",
        0.48,
    ),
    ("a b a b a c a b", "b a c a b a a b", 0.75),
]


@pytest.mark.parametrize(("reference", "output", "expected"), ROUGE_SCORE)
def test_rouge_l_is_that_of_rouge_score(reference: str, output: str, expected: float) -> None:
    assert rouge_l(output, reference) == pytest.approx(expected, abs=1e-12)


def test_the_longest_common_subsequence_is_that_of_the_table() -> None:
    draw = random.Random(5)
    for _ in range(200):
        first, second = (draw.choices("abcd", k=draw.randrange(90)) for _ in range(2))
        table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
        for i, a in enumerate(first):
            for j, b in enumerate(second):
                table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
        assert longest_common(first, second) == table[-1][-1]


def test_words_of_all_scripts() -> None:
    assert words("Ça coûte 12,5 € – d’accord?") == ["ça", "coûte", "12", "5", "d", "accord"]
    assert words("我爱NLP。ありがとう") == [*"我爱", "nlp", *"ありがとう"]
    assert words("Привет, мир_!") == ["привет", "мир"]
    assert words("हिन्दी भाषा") == ["हिन्दी", "भाषा"]


def test_seq_rep_4_is_a_percentage_of_4_grams() -> None:
    assert seq_rep_4("a b c d a b c d") == pytest.approx(100 * 1 / 5)  # abcd bcda cdab dabc abcd
    assert seq_rep_4("a A a a a a a") == 75.0  # four 4-grams, one distinct
    assert seq_rep_4("one two three four five") == 0.0
    assert seq_rep_4("one two three") is None


def test_copied_3_grams_are_a_share_of_the_source() -> None:
    source = "the cat sat on the mat and the cat sat again"  # eight distinct 3-grams: "the cat sat" is there twice
    assert copied_3_grams("So the cat sat on it.", source) == pytest.approx(2 / 8)
    assert copied_3_grams(source, source) == 1.0
    assert copied_3_grams("", source) == 0.0
    assert copied_3_grams("anything", "two words") is None


def character_grams(text: str) -> list[str]:
    found = []
    for n in (1, 2, 3, 4):
        for first in range(len(text)):
            if first + n <= len(text):
                found.append("".join(text[first + k] for k in range(n)))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_rep_4_and_ovl_3_are_those_of_plain_loops_over_characters(seed: int) -> None:
    draw = random.Random(seed)
    output, source = ("".join(draw.choices("abcdeé 我", k=draw.randrange(1, 60))) for _ in range(2))
    ours, theirs = character_grams(output), character_grams(source)
    distinct = []
    for gram in ours:
        if gram not in distinct:
            distinct.append(gram)
    assert rep_4(output) == pytest.approx(len(ours) / len(distinct) - 1, rel=1e-12)
    shared = sum(gram in ours for gram in sorted(set(theirs)))
    assert ovl_3(output, source) == pytest.approx(shared / len(set(theirs)), rel=1e-12)


def test_rep_4_and_ovl_3_by_hand() -> None:
    assert rep_4("aaaa") == pytest.approx(10 / 4 - 1)  # 4 + 3 + 2 + 1, of a, aa, aaa, aaaa
    assert rep_4("abcd") == 0.0
    assert rep_4("") is None and ovl_3("a", "") is None
    assert ovl_3("ab", "abc") == pytest.approx(3 / 6)  # a, b, ab of a, b, c, ab, bc, abc
    assert ovl_3("", "abc") == 0.0 and ovl_3("ABC", "abc") == 0.0  # as they stand
