"""Decoding without levels: the same bits as Arrow's, of whole row groups and their beginnings, in all layouts."""

from __future__ import annotations

import io
import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.corpus.vectors import read_embeddings
from pipeline.storage import layout
from stages.arrow import embedding_array, embedding_matrix

ROWS = 9000  # two row groups


def vectors(dim: int) -> pa.Table:
    """Every bit pattern there is, not numbers only."""
    values = np.random.default_rng(0).integers(0, 1 << 16, (ROWS, dim), dtype=np.uint16).view(np.float16)
    return pa.table({"embedding": embedding_array(values)}, layout.schema("embeddings", width=dim))


def bits(column: pa.ChunkedArray) -> npt.NDArray[np.uint16]:
    return embedding_matrix(column).view(np.uint16)


@pytest.mark.parametrize("dim", [3, 64, 1024])
def test_the_bits_are_those_of_arrow(dim: int) -> None:
    source = pa.BufferReader(layout.to_parquet(vectors(dim)))
    file = pq.ParquetFile(source)
    assert file.num_row_groups == 2
    for group in range(2):
        wanted = bits(file.read_row_group(group)[0])
        for rows in (len(wanted), len(wanted) - 1, 40, 1):
            found = read_embeddings(file, source, group, rows)
            np.testing.assert_array_equal(found.view(np.uint16), wanted[:rows])


@pytest.mark.parametrize("page", [999, 5000])
def test_pages_may_end_within_a_row(page: int) -> None:
    table, sink = vectors(7), io.BytesIO()
    options = layout.parquet_options(table) | {"data_page_size": page, "write_batch_size": 100}
    pq.write_table(table, sink, **options)
    source = pa.BufferReader(sink.getvalue())
    found = read_embeddings(pq.ParquetFile(source), source, 0, 8192)
    np.testing.assert_array_equal(found.view(np.uint16), bits(table[0])[:8192])


@pytest.mark.parametrize(
    "changes",
    [
        {"compression": "gzip"},
        {"compression": "none", "compression_level": None},
        {"column_encoding": {"embedding.list.element": "PLAIN"}},
        {"column_encoding": None, "use_dictionary": True},
        {"data_page_version": "2.0"},
    ],
    ids=lambda changes: ",".join(map(str, changes.values())),
)
def test_arrow_reads_other_layouts(changes: dict[str, object]) -> None:
    table, sink = vectors(8), io.BytesIO()
    pq.write_table(table, sink, **layout.parquet_options(table) | changes)
    source = pa.BufferReader(sink.getvalue())
    found = read_embeddings(pq.ParquetFile(source), source, 1, 10)
    np.testing.assert_array_equal(found.view(np.uint16), bits(table[0])[8192:8202])


def test_other_values_are_refused() -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"embedding": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))}), sink)
    source = pa.BufferReader(sink.getvalue())
    with pytest.raises(ValueError, match="a column of FLOAT, not of float16"):
        read_embeddings(pq.ParquetFile(source), source, 0, 1)


def test_a_page_that_is_not_what_its_checksum_says_is_told() -> None:
    data = bytes(layout.to_parquet(vectors(64)))
    at = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(1).column(0).data_page_offset
    for place in range(at + 40, len(data) - 600, 9973):
        changed = bytearray(data)
        changed[place] ^= 16
        source = pa.BufferReader(bytes(changed))
        file = pq.ParquetFile(source, page_checksum_verification=True)
        with pytest.raises(OSError, match="CRC checksum verification failed"):
            read_embeddings(file, source, 1, ROWS - 8192)
        assert len(read_embeddings(file, source, 0, 8192)) == 8192, "that page is whole"


def test_a_changed_bit_in_the_head_of_a_page_is_told_or_changes_no_value() -> None:
    table, sink = vectors(64).slice(0, 200), io.BytesIO()
    pq.write_table(table, sink, **layout.parquet_options(table) | {"data_page_size": 4096})
    data, told = sink.getvalue(), 0
    at = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0).data_page_offset
    for place, bit in itertools.product(range(at, at + 28), range(8)):  # heads have no checksum
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        source = pa.BufferReader(bytes(changed))
        try:
            found = read_embeddings(pq.ParquetFile(source, page_checksum_verification=True), source, 0, 20)
        except OSError:
            told += 1
        else:
            np.testing.assert_array_equal(found.view(np.uint16), bits(table[0])[:20], f"bit {bit} of {place - at}")
    assert told > 100


def test_files_without_checksums_are_read() -> None:
    table, sink = vectors(7), io.BytesIO()
    pq.write_table(table, sink, **layout.parquet_options(table) | {"write_page_checksum": False})
    source = pa.BufferReader(sink.getvalue())
    found = read_embeddings(pq.ParquetFile(source, page_checksum_verification=True), source, 0, 8192)
    np.testing.assert_array_equal(found.view(np.uint16), bits(table[0])[:8192])


def test_what_a_footer_lies_about_is_told_or_read_otherwise() -> None:
    data = bytes(layout.to_parquet(vectors(3)))
    unknown = data.replace(b"\x15\x0c", b"\x15\x7e")  # a compression, of which Arrow would end the process
    assert unknown != data
    with pytest.raises(OSError, match="codec value: 63"):
        read_embeddings(pq.ParquetFile(pa.BufferReader(unknown)), pa.BufferReader(unknown), 0, 8192)
    narrow = data.replace(b"\x16\x80\x80\x03", b"\x16\x80\x80\x01")  # 8192 values, not 3 × 8192
    assert narrow != data
    found = read_embeddings(pq.ParquetFile(pa.BufferReader(narrow)), pa.BufferReader(narrow), 0, 8192)
    np.testing.assert_array_equal(found.view(np.uint16), bits(vectors(3)["embedding"])[:8192])
