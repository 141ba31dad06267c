"""The cap's own rules: which boundary is taken, where the rest goes, and that the limit is hard."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from stages.segment.cap import fragments
from stages.segment.marks import collapse

ALPHABET = "ab 1.,;:!?-—\"')»«。！，；、؟،।።፣\u0301\u200d\u200b\ufe0f😀👍🏽🇩🇪\u1100\u1161\u11a8ภา"


def cut(text: str, limit: int) -> list[str]:
    return [text[start:end] for start, end, _ in fragments(text, limit)]


@given(st.text(st.one_of(st.sampled_from(ALPHABET), st.characters(exclude_categories=["Cs"]))), st.integers(1, 40))
def test_fragments_cover_the_text_in_order_within_the_limit(text: str, limit: int) -> None:
    text = collapse(text) or "x"
    found = fragments(text, limit)
    assert "".join(text[start:end] for start, end, _ in found).replace(" ", "") == text.replace(" ", "")
    for start, end, _ in found:
        assert 0 < end - start <= limit
        assert text[start:end] == text[start:end].strip()
    for left, right in pairwise(found):
        assert text[left.end : right.start] in ("", " ")
    assert not found[-1].hard


@given(st.text(st.sampled_from(ALPHABET), min_size=1), st.integers(1, 40))
def test_only_clusters_longer_than_the_limit_are_cut_inside(text: str, limit: int) -> None:
    text = collapse(text) or "x"
    clusters = [found.span() for found in regex.finditer(r"\X", text)]
    for start, _, _ in fragments(text, limit)[1:]:
        inside = [(first, last) for first, last in clusters if first < start < last]
        # A space with a combining mark on it is one cluster too: the space may go, the mark stays.
        assert all(last - first > limit or text[first] == " " for first, last in inside)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He went home, he said. It was late; so he slept", ["He went home, he said.", "It was late; so he slept"]),
        ("one two three; four five, six seven eight nine", ["one two three;", "four five, six seven eight nine"]),
        ("one two three four, five six seven eight nine", ["one two three four,", "five six seven eight nine"]),
        ("one two three four five six seven eight nine", ["one two three four five", "six seven eight nine"]),
        ("ask Prof. Meier, who knew 3.14159 and 2,718281", ["ask Prof. Meier,", "who knew 3.14159 and 2,718281"]),
        ("this is the end... and then another beginning", ["this is the end...", "and then another beginning"]),
        ("the gentle sorrow--not at all in the shape of it", ["the gentle sorrow--", "not at all in the shape of it"]),
        ("« Vous venez ce soir ! » demanda la dame en noir", ["« Vous venez ce soir ! »", "demanda la dame en noir"]),
        ("他说今天的天气非常好，所以我们决定一起去公园里散步，然后回到家里吃晚饭再看电影",
         ["他说今天的天气非常好，所以我们决定一起去公园里散步，", "然后回到家里吃晚饭再看电影"]),
        ("هذه جملة طويلة جدا، وبعدها جملة أخرى طويلة أيضا", ["هذه جملة طويلة جدا،", "وبعدها جملة أخرى طويلة أيضا"]),
        ("አንደኛው ዓረፍተ ነገር ረጅም ነው፣ ሁለተኛውም እንዲሁ ረጅም ነው", ["አንደኛው ዓረፍተ ነገር ረጅም ነው፣", "ሁለተኛውም እንዲሁ ረጅም ነው"]),
    ],
)  # fmt: skip
def test_the_best_class_of_boundary_wins(text: str, expected: list[str]) -> None:
    assert cut(text, 38) == expected


def test_fragments_are_balanced() -> None:
    assert [len(piece) for piece in cut("ab " * 67 + "abcdefghi", 200)] == [104, 105]  # not 200 and 10
    assert [len(piece) for piece in cut("x" * 402, 200)] == [134, 134, 134]
    assert cut("See " + "x" * 198, 200) == ["See", "x" * 198]  # a far boundary is better than none


def test_hard_cuts_are_told() -> None:
    assert [fragment.hard for fragment in fragments("x" * 30, 10)] == [True, True, False]
    assert not any(fragment.hard for fragment in fragments("xyz " * 30 + "x", 10))


@pytest.mark.parametrize("unit", [".", "-", '"', "a\u0301", "\u0301", "🇩🇪", "a,", ". ", "。", "👨‍👩‍👧‍👦", "!)"])
def test_time_is_linear(unit: str) -> None:
    text = collapse(unit * 100_000)
    began = time.perf_counter()
    assert all(end - start <= 200 for start, end, _ in fragments(text, 200))
    assert time.perf_counter() - began < 20  # about 0.2 s; quadratic time would be minutes
