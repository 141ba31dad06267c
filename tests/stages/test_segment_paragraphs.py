"""Paragraphs: fewer than ten sentences, none alone where it can be helped, at the most probable ends."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.segment.methods import LEAST, MOST, paragraph_ends

SENTENCES = st.lists(st.tuples(st.floats(-8, 8), st.booleans(), st.booleans()), min_size=1, max_size=80)


@given(SENTENCES)
def test_paragraphs_are_neither_too_long_nor_alone(sentences: list[tuple[float, bool, bool]]) -> None:
    odds = np.array([one[0] for one in sentences], np.float32)
    blank = np.array([one[1] for one in sentences])
    document = np.cumsum([False, *(one[2] for one in sentences[:-1])])
    ends = np.flatnonzero(paragraph_ends(odds, blank, document))
    first = np.append(0, ends[:-1] + 1)
    assert ends[-1] == len(odds) - 1
    assert (document[first] == document[ends]).all()
    size = ends - first + 1
    assert size.max() <= MOST
    for k in np.flatnonzero(size < LEAST):  # alone, for its neighbours are full or in another document
        if k:
            assert document[first[k - 1]] != document[first[k]] or size[k - 1] + size[k] > MOST
        if k + 1 < len(size):
            assert document[first[k + 1]] != document[first[k]] or size[k] + size[k + 1] > MOST


def ends_of(odds: list[float], blank: tuple[int, ...] = ()) -> list[int]:
    lines = np.zeros(len(odds), np.bool_)
    lines[list(blank)] = True
    return np.flatnonzero(paragraph_ends(np.array(odds, np.float32), lines, np.zeros(len(odds), np.int64))).tolist()


def test_paragraphs_end_where_the_model_says_so_and_at_blank_lines() -> None:
    assert ends_of([-3, -3, 2, -3, -3, -3]) == [2, 5]
    assert ends_of([-3, -3, -3, -3, -3, -3], (3,)) == [3, 5]


def test_a_long_paragraph_is_cut_where_that_is_most_probable() -> None:
    odds = [-5.0] * 12
    odds[6] = -1.0
    assert ends_of(odds) == [6, 11]
    odds[5] = -0.1
    assert ends_of(odds) == [5, 11]


def test_single_sentences_are_joined() -> None:
    assert ends_of([1, -3, -3, -3]) == [3]  # to what follows
    assert ends_of([-3, 1, 1, -3, -3]) == [2, 4]  # to what is before
    assert ends_of([1, 1, 1]) == [2]
