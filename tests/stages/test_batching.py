"""Each distinct (text, language) once, in the order of the rows; token ids as one flat array."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.batching import Tokens, distinct_rows


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["eng", "deu"])), max_size=40))
def test_distinct_rows_by_text_and_language(rows: list[tuple[str, str]]) -> None:
    distinct = distinct_rows(
        pa.chunked_array([[text for text, _ in rows]], pa.string()),
        pa.chunked_array([[lang for _, lang in rows]], pa.string()),
    )
    assert [rows[first] for first in distinct.first] == list(dict.fromkeys(rows))
    assert [rows[distinct.first[k]] for k in distinct.inverse] == rows


def test_tokens_lie_flat() -> None:
    tokens = Tokens.of([[5, 6], [7, 8, 9], [1]])
    assert tokens.ids.tolist() == [5, 6, 7, 8, 9, 1]
    assert tokens.offsets.tolist() == [0, 2, 5, 6]
    assert tokens.lengths.tolist() == [2, 3, 1]
    assert Tokens.of([]).lengths.tolist() == []
