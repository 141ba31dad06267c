"""What is written is what was declared: pyarrow ignores a wrong column path silently, so encodings are read back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import CorpusError
from pipeline.storage import layout
from stages.arrow import embedding_array


def embeddings(rows: int, dim: int = 64) -> pa.Table:
    values = np.random.default_rng(0).normal(0, 0.02, (rows, dim)).astype(np.float16)
    return layout.checked(
        "embeddings", pa.table({"embedding": embedding_array(values)}), layout.schema("embeddings", width=dim), rows
    )


def test_embeddings_are_byte_stream_split_zstd_in_row_groups_of_8192() -> None:
    table = embeddings(20_000)
    file = pq.ParquetFile(pa.BufferReader(layout.to_parquet(table)))
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [8192, 8192, 3616]
    column = file.metadata.row_group(0).column(0)
    assert "BYTE_STREAM_SPLIT" in column.encodings
    assert not any("DICTIONARY" in encoding for encoding in column.encodings)
    assert column.compression == "ZSTD"
    assert file.read().equals(table)


def test_embedding_files_are_smaller_than_raw() -> None:
    table = embeddings(8192, 256)
    assert layout.to_parquet(table).size <= 0.87 * 8192 * 256 * 2


def test_row_families_of_a_part_have_the_same_row_groups() -> None:
    rows = 10_000
    status = pa.table({"status": np.zeros(rows, np.uint8)})
    groups = []
    for table in (embeddings(rows), status):
        file = pq.ParquetFile(pa.BufferReader(layout.to_parquet(table)))
        groups.append([file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)])
    assert groups[0] == groups[1]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"status": pa.array([0, 1], pa.uint8())}), "2 rows came out of 3"),
        (pa.table({"state": pa.array([0, 1, 0], pa.uint8())}), "columns"),
        (pa.table({"status": pa.array([0, None, 0], pa.uint8())}), "1 nulls"),
    ],
)
def test_a_wrong_result_is_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        layout.checked("status", table, layout.schema("status"), 3)


def test_another_attempt_has_another_name() -> None:
    names = {layout.data_path("status", "0123456789ab-00000", "f" * 32) for _ in range(3)}
    assert len(names) == 3  # but for one time in five million
    assert {layout.data_owner(name) for name in names} == {("0123456789ab-00000", "ffffffff")}
