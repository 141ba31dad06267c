"""Joining what is too small: fragments up to the caps, never over blank lines or from one document to the next."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.segment.pieces import Limits, Pieces, joined, merge_fragments
from stages.segment.rules.cap import fit
from stages.segment.text import Text
from tests.stages.segmenting import TEXT, count_bytes, count_in_words


def merged(
    documents: Sequence[str], min_chars: int, max_chars: int | None = None, max_tokens: int | None = None
) -> Pieces:
    """Sentences end at full stops."""
    text = Text(documents)
    stops = np.array([text.text[place] == "." for place in text.ink], np.bool_)
    pieces = Pieces(text, text.ends | stops, Limits(max_chars, max_tokens, count_in_words))
    fit(pieces)
    merge_fragments(pieces, min_chars)
    return pieces


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("Oh. No. This is long enough.", ["Oh. No. This is long enough."]),
        ("This is long enough. No.", ["This is long enough. No."]),
        ("This is long enough. No. This one is too.", ["This is long enough. No.", "This one is too."]),
        ("No. This is long enough. This one is too.", ["No. This is long enough.", "This one is too."]),
        ("A. B. C. D. E. F.", ["A. B. C. D. E. F."]),
        ("No.\n\nThis is long enough.", ["No.", "This is long enough."]),
        ("No.\nThis is long enough.", ["No. This is long enough."]),
        ("No.", ["No."]),
        ("", []),
    ],
)  # fmt: skip
def test_small_ones_join_what_is_before_else_what_is_behind(document: str, expected: list[str]) -> None:
    pieces = merged([document], 10)
    assert pieces.written == expected
    assert pieces.tokens.tolist() == count_in_words(expected)


def test_documents_stay_apart() -> None:
    assert merged(["No.", "Yes. This is long enough."], 10).written == ["No.", "Yes. This is long enough."]


def test_no_limit_is_exceeded() -> None:
    document = "No. This has eighteen. No."
    assert merged([document], 10, 22).written == ["No. This has eighteen.", "No."]
    assert merged([document], 10, 21).written == ["No.", "This has eighteen.", "No."]
    assert merged([document], 10, None, 2 + 9).written == ["No.", "This has eighteen.", "No."]


def test_words_that_were_cut_may_be_more_tokens_together() -> None:
    """What is joined is counted, and taken apart again where it has too many tokens."""

    def count(texts: Sequence[str]) -> list[int]:
        return [2 + len(text.split()) + (8 if "aaaa" in text else 0) for text in texts]

    text = Text(["a" * 16 + " b. C. D. E.\n\nF. G. H."])
    stops = np.array([text.text[place] == "." for place in text.ink], np.bool_)
    pieces = Pieces(text, text.ends | stops, Limits(3, 6, count))
    assert fit(pieces) == 0
    pieces = Pieces(text, pieces.cut, Limits(30, 6, count))
    pieces.hard[:] = False
    pieces.hard[[2, 5]] = True
    pieces.too_many_tokens()
    merge_fragments(pieces, 30)
    assert max(count(pieces.written)) <= 6 and pieces.tokens.tolist() == count(pieces.written)
    assert pieces.written[-1] == "F. G. H."
    assert pieces.hard[[2, 5]].all()  # they were cut hard before, and are again


def test_sentences_that_the_cap_broke_stay_counted() -> None:
    text = Text(["aaaa bbbb cc. D."])
    stops = np.array([text.text[place] == "." for place in text.ink], np.bool_)
    pieces = Pieces(text, text.ends | stops, Limits(11, None, count_in_words))
    fit(pieces)
    assert pieces.written == ["aaaa bbbb", "cc.", "D."] and pieces.cap_splits == 1
    merge_fragments(pieces, 3)
    assert pieces.written == ["aaaa bbbb", "cc. D."] and pieces.cap_splits == 1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(TEXT, min_size=1, max_size=3),
    st.integers(1, 30),
    st.integers(5, 40),
    st.sampled_from([None, 6, 20]),
    st.sampled_from([count_bytes, count_in_words]),
    st.integers(0, 1000),
)
def test_limits_hold_and_no_text_is_lost(
    documents: list[str], min_chars: int, max_chars: int, max_tokens: int | None, count: object, seed: int
) -> None:
    assert callable(count)
    text = Text(documents)
    cut = text.ends | (np.random.default_rng(seed).random(len(text.ink)) < 0.3)
    pieces = Pieces(text, cut, Limits(max_chars, max_tokens, count))
    over_cap = fit(pieces)
    before, small = pieces.cut.copy(), int((pieces.chars < min_chars).sum())
    merge_fragments(pieces, min_chars)
    assert (pieces.cut <= before).all() and (pieces.cut >= text.ends).all()
    assert (pieces.chars < min_chars).sum() <= small
    assert pieces.chars.max(initial=0) <= max_chars
    over = pieces.tokens > (max_tokens or np.inf)
    assert over.sum() <= over_cap and (pieces.chars[over] == 1).all()
    assert pieces.tokens.tolist() == count(pieces.written)
    assert not (pieces.hard & ~pieces.cut).any()


def test_many_groups_that_are_taken_apart_take_linear_time() -> None:
    def count(texts: Sequence[str]) -> list[int]:
        return [2 + len(text) ** 2 // 8 for text in texts]

    text = Text(["aa bb\n\n" * 30_000])
    pieces = Pieces(text, text.ends | text.gap, Limits(200, 4, count))
    assert fit(pieces) == 0
    merge_fragments(pieces, 10)
    assert len(pieces.written) == 60_000


@pytest.mark.parametrize(
    ("sizes", "barriers", "expected"),
    [
        ([1, 5, 1, 5], [], [7, 5]),
        ([1, 9, 1, 5], [], [1, 9, 6]),
        ([5, 1, 5], [], [6, 5]),
        ([1, 1, 1], [], [3]),
        ([1, 5], [0], [1, 5]),
        ([9, 1], [], [9, 1]),
        ([], [], []),
    ],
)
def test_joined(sizes: list[int], barriers: list[int], expected: list[int]) -> None:
    """Sizes under 2 are too small; nothing is joined to more than 9."""
    before = np.cumsum([0, *sizes]).tolist()
    ends = joined(
        len(sizes),
        [piece in barriers for piece in range(len(sizes))],
        lambda first, last: before[last + 1] - before[first] < 2,
        lambda first, last: before[last + 1] - before[first] <= 9,
    )
    edges = [0, *(before[piece + 1] for piece, end in enumerate(ends) if end)]
    assert np.diff(edges).tolist() == expected
