"""Digests depend on values, not on how they are held."""

from __future__ import annotations

import pyarrow as pa

from pipeline.corpus.fingerprint import (
    column_digest,
    content_digest,
    difference,
    fingerprint,
    fingerprint_of_many,
    fingerprint_of_mapping,
)


def test_order_of_keys_does_not_matter_but_values_do() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint([1, 2]) != fingerprint([2, 1])


def test_chunks_and_slices_do_not_matter() -> None:
    whole = pa.chunked_array([["x", "ab", "", "ü", "long text"]])
    cut = pa.chunked_array([["x"], ["ab", ""], ["ü", "long text"]])
    inside = pa.chunked_array([pa.array(["no", "x", "ab", "", "ü", "long text", "no"])]).slice(1, 5)
    assert column_digest(whole) == column_digest(cut) == column_digest(inside)
    assert column_digest(whole) != column_digest(pa.chunked_array([["x", "ab", "ü", "", "long text"]]))


def test_boundaries_between_values_matter() -> None:
    assert column_digest(pa.chunked_array([["ab", "c"]])) != column_digest(pa.chunked_array([["a", "bc"]]))


def test_dictionary_encoding_does_not_matter() -> None:
    plain = pa.chunked_array([["eng", "deu", "eng"]])
    assert column_digest(plain) == column_digest(plain.dictionary_encode())


def test_embeddings_slices() -> None:
    kind = pa.list_(pa.field("element", pa.float16(), nullable=False), 2)
    array = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4, 5, 6], pa.float16()), type=kind)
    tail = pa.FixedSizeListArray.from_arrays(pa.array([3, 4, 5, 6], pa.float16()), type=kind)
    assert column_digest(pa.chunked_array([array.slice(1)])) == column_digest(pa.chunked_array([tail]))


def test_nulls_are_values() -> None:
    assert column_digest(pa.chunked_array([["a", None]])) != column_digest(pa.chunked_array([["a", ""]]))


def test_what_lies_behind_a_null_does_not_matter() -> None:
    values = pa.array([1.5, 2.5, 3.5]).buffers()[1]
    behind = pa.Array.from_buffers(pa.float64(), 3, [pa.py_buffer(b"\x05"), values])
    assert behind.to_pylist() == [1.5, None, 3.5]
    assert (
        column_digest(behind) == column_digest(pa.array([1.5, None, 3.5])) != column_digest(pa.array([1.5, 3.5, None]))
    )


def test_content_digest_is_that_of_the_bytes() -> None:
    assert content_digest(b"abc") == content_digest(memoryview(b"abc")) != content_digest(b"abd")


def test_difference_names_key_old_and_new() -> None:
    old = {"stage": "encode", "encode": {"model": "sonar-tiny", "precision": "auto"}}
    new = {"stage": "encode", "encode": {"model": "sonar", "precision": "auto"}}
    assert difference(old, new) == ["encode.model: sonar-tiny → sonar"]
    assert difference(old, old) == []


def test_fingerprints_in_pieces_are_those_of_the_whole() -> None:
    for items in ({}, {"a": [1, "ü"]}, {"a": [], "b": ["x", None], "c-0": ["\ud800"]}):
        assert fingerprint_of_mapping([{"z": 1, "b": 2}, []], items.items()) == fingerprint(
            [{"b": 2, "z": 1}, [], items]
        )
        values = list(items.values())
        assert fingerprint_of_many([2, None], values) == fingerprint([2, None, values])
        assert fingerprint_of_many([2], values, ["column"]) == fingerprint([2, values, "column"])
