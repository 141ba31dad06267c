"""The cap by rules: which boundary is taken, where the rest goes, and that the limits are hard."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.segment.marks import collapse
from stages.segment.pieces import Limits, Pieces
from stages.segment.rules.cap import fit
from stages.segment.text import Text
from tests.stages.segmenting import (
    TEXT,
    TRAPS,
    broken_clusters,
    count_bytes,
    count_in_words,
    is_blank,
    one_sentence,
)


def capped(text: str, max_chars: int | None, max_tokens: int | None = None) -> Pieces:
    pieces = one_sentence(text, Limits(max_chars, max_tokens, count_in_words))
    assert fit(pieces) == 0
    return pieces


def cut(text: str, limit: int) -> list[str]:
    return capped(text, limit).written


@settings(max_examples=200, deadline=None)
@given(TEXT, st.integers(1, 40), st.sampled_from([None, 8, 20]), st.sampled_from([count_bytes, count_in_words]))
def test_pieces_hold_the_text_in_order_within_the_limits(
    text: str, max_chars: int, max_tokens: int | None, count: object
) -> None:
    assert callable(count)
    pieces = one_sentence(text, Limits(max_chars, max_tokens, count))
    over_cap = fit(pieces)
    assert "".join("".join(pieces.written).split()) == "".join(collapse(text).split())
    assert pieces.chars.tolist() == [len(piece) for piece in pieces.written]
    assert pieces.tokens.tolist() == count(pieces.written)
    assert pieces.chars.max(initial=0) <= max_chars
    over = pieces.tokens > (max_tokens or np.inf)
    assert over_cap == over.sum() and (pieces.chars[over] == 1).all()
    assert all(piece == collapse(piece) for piece in pieces.written)
    assert not pieces.hard[pieces.text.ends].any()
    assert not pieces.hard[pieces.text.gap].any()


@settings(max_examples=300, deadline=None)
@given(TEXT, st.integers(1, 40))
def test_only_clusters_longer_than_the_limit_are_cut_inside(text: str, limit: int) -> None:
    pieces = one_sentence(text, Limits(limit, None, count_bytes))
    fit(pieces)
    for cluster in broken_clusters(pieces.text, pieces.cut):
        # White space that a mark is on, or a sign before it, is in a cluster with it: the space may go.
        assert len(cluster) > limit or any(map(is_blank, cluster)), cluster


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He went home, he said. It was late; so he slept", ["He went home, he said.", "It was late; so he slept"]),
        ("one two three; four five, six seven eight nine", ["one two three;", "four five, six seven eight nine"]),
        ("one two three four, five six seven eight nine", ["one two three four,", "five six seven eight nine"]),
        ("one two three four five six seven eight nine", ["one two three four five", "six seven eight nine"]),
        ("one two three four \tfive  six seven\neight nine", ["one two three four five", "six seven eight nine"]),
        ("ask Prof. Meier, who knew 3.14159 and 2,718281", ["ask Prof. Meier,", "who knew 3.14159 and 2,718281"]),
        ("this is the end... and then another beginning", ["this is the end...", "and then another beginning"]),
        ("the gentle sorrow--not at all in the shape of it", ["the gentle sorrow--", "not at all in the shape of it"]),
        ("« Vous venez ce soir ! » demanda la dame en noir", ["« Vous venez ce soir ! »", "demanda la dame en noir"]),
        ("he said (and meant this.) that all was to be done", ["he said (and meant this.)",
         "that all was to be done"]),
        ("他说今天的天气非常好，所以我们决定一起去公园里散步，然后回到家里吃晚饭再看电影",
         ["他说今天的天气非常好，所以我们决定一起去公园里散步，", "然后回到家里吃晚饭再看电影"]),
        ("他说今天的天气非常好。”所以我们决定一起去公园里散步。然后回到家里吃晚饭再看电",
         ["他说今天的天气非常好。”所以我们决定一起去公园里散步。", "然后回到家里吃晚饭再看电"]),
        ("هذه جملة طويلة جدا، وبعدها جملة أخرى طويلة أيضا", ["هذه جملة طويلة جدا،", "وبعدها جملة أخرى طويلة أيضا"]),
        ("هل هذه جملة طويلة جدا؟ وبعدها جملة، أخرى طويلة أيضا", ["هل هذه جملة طويلة جدا؟",
         "وبعدها جملة، أخرى طويلة أيضا"]),
        ("वह बाज़ार गया और फल लाया। फिर, घर आकर सो गया वह", ["वह बाज़ार गया और फल लाया।", "फिर, घर आकर सो गया वह"]),
        ("አንደኛው ዓረፍተ ነገር ረጅም ነው፣ ሁለተኛውም እንዲሁ ረጅም ነው", ["አንደኛው ዓረፍተ ነገር ረጅም ነው፣", "ሁለተኛውም እንዲሁ ረጅም ነው"]),
        ("ང་སློབ་མ་ཡིན་པས་སློབ་གྲྭ་ལ་འགྲོ་དགོས་པ་རེད་བཀྲ་ཤིས", ["ང་སློབ་མ་ཡིན་པས་སློབ་གྲྭ་",
         "ལ་འགྲོ་དགོས་པ་རེད་བཀྲ་ཤིས"]),
    ],
)  # fmt: skip
def test_the_best_class_of_boundary_wins(text: str, expected: list[str]) -> None:
    assert cut(text, 38) == expected


def test_each_piece_is_cut_by_what_it_holds_itself() -> None:
    text = "one two three; four five six\n\nseven eight nine ten, eleven\n\nno mark in this one here"
    assert cut(text, 20) == [
        "one two three;", "four five six", "seven eight nine", "ten, eleven", "no mark in", "this one here",
    ]  # fmt: skip


def test_pieces_are_balanced() -> None:
    assert [len(piece) for piece in cut("ab " * 67 + "abcdefghi", 200)] == [104, 105]  # not 200 and 10
    assert [len(piece) for piece in cut("x" * 402, 200)] == [134, 134, 134]
    assert cut("See " + "x" * 198, 200) == ["See", "x" * 198]  # a far boundary is better than none


def test_hard_cuts_are_told() -> None:
    assert capped("x" * 30, 10).hard[[9, 19, 29]].tolist() == [True, True, False]
    assert not capped("xyz " * 30 + "x", 10).hard.any()
    pieces = capped("x" * 15 + " " + "y" * 15, 10)
    assert pieces.hard[pieces.last].sum() == 2 and pieces.cap_splits == 1


def test_what_fits_stays_as_it_is() -> None:
    pieces = capped("Short, short. Short; short\n\n" + "long " * 10, 30)
    assert pieces.written[0] == "Short, short. Short; short" and len(pieces.written) == 3
    assert pieces.sentence.tolist() == [0, 1, 1] and pieces.cap_splits == 1


def test_tokens_are_a_limit_too() -> None:
    pieces = capped("one two three, four five six, seven eight", 200, 10)
    assert pieces.written == ["one two three,", "four five six,", "seven eight"]
    assert pieces.tokens.tolist() == count_in_words(pieces.written)


def test_what_alone_has_too_many_tokens_is_told() -> None:
    pieces = one_sentence("abc", Limits(200, 8, lambda texts: [9 * len(text) for text in texts]))
    assert fit(pieces) == 3 and pieces.written == ["a", "b", "c"]


def test_tokens_are_counted_again_only_where_pieces_changed() -> None:
    calls: list[list[str]] = []

    def count(texts: Sequence[str]) -> list[int]:
        calls.append(list(texts))
        return count_in_words(texts)

    fit(one_sentence("\n\n".join(["short one"] * 50 + ["word " * 30]), Limits(200, 20, count)))
    assert len(calls[0]) == 51 and all(len(texts) < 30 for texts in calls[1:]) and len(calls) <= 4


@pytest.mark.parametrize("trap", TRAPS)
def test_traps(trap: str) -> None:
    pieces = one_sentence(TRAPS[trap], Limits(200, 64, count_bytes))
    assert fit(pieces) == 0
    assert pieces.chars.max() <= 200 and max(count_bytes(pieces.written)) <= 64


UNITS = [".", "-", '"', "a\u0301", "\u0301", "🇩🇪", "a,", ". ", "。", "👨‍👩‍👧‍👦", "!)", "a", "፡"]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str) -> None:
    text = Text([collapse(unit * 100_000)])
    began = time.process_time()
    pieces = Pieces(text, text.ends.copy(), Limits(200, 100, count_bytes))
    fit(pieces)
    assert pieces.chars.max() <= 200
    assert time.process_time() - began < 20  # about 0.3 s; quadratic time would be minutes


def test_neighbouring_pieces_follow_each_other() -> None:
    pieces = capped("one two three four five six seven eight nine ten eleven " * 20, 40)
    assert all(b == a + 1 for (_, a), (b, _) in pairwise(zip(pieces.first, pieces.last, strict=True)))
