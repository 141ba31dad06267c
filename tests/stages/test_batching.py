"""Each distinct (text, language) once; equal token counts together; everything comes back in order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from stages.batching import Tokens, distinct_rows, equal_length_batches


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["eng", "deu"])), max_size=40))
def test_distinct_rows_by_text_and_language(rows: list[tuple[str, str]]) -> None:
    distinct = distinct_rows(
        pa.chunked_array([[text for text, _ in rows]], pa.string()),
        pa.chunked_array([[lang for _, lang in rows]], pa.string()),
    )
    assert [rows[first] for first in distinct.first] == list(dict.fromkeys(rows))
    assert [rows[distinct.first[k]] for k in distinct.inverse] == rows


@given(st.lists(st.integers(1, 30), max_size=60), st.integers(1, 100))
def test_batches_hold_every_row_once_at_equal_length_within_the_budget(lengths: list[int], budget: int) -> None:
    array = np.asarray(lengths, dtype=np.int64)
    batches = equal_length_batches(array, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(set(array[batch])) == 1
        assert len(batch) == 1 or len(batch) * array[batch[0]] <= budget
    firsts = [array[batch[0]] for batch in batches]
    assert firsts == sorted(firsts, reverse=True)


def test_rows_of_flat_tokens() -> None:
    tokens = Tokens.of([[5, 6], [7, 8, 9], [1, 2]])
    assert tokens.lengths.tolist() == [2, 3, 2]
    assert tokens.rows(np.asarray([2, 0])).tolist() == [[1, 2], [5, 6]]
    assert Tokens.of([]).lengths.tolist() == []
