"""Converts columns between NumPy and Arrow, embeddings without a copy; imports no torch, so that reading a corpus is
fast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq


def table_of(data: bytes) -> pa.Table:
    """Read the table of a Parquet file in memory, in this thread alone.

    Arrow's threads may release Python's bytes some time after a read has returned, and one that does so while the
    interpreter ends crashes the process (SIGABRT).
    """
    return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(use_threads=False)


def embedding_array(embeddings: npt.NDArray[np.float16]) -> pa.FixedSizeListArray:
    """Convert (rows, dim) float16 to an Arrow column over the same memory."""
    kind = pa.list_(pa.field("element", pa.float16(), nullable=False), embeddings.shape[1])
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(embeddings).reshape(-1)), type=kind)


def embedding_matrix(column: pa.ChunkedArray) -> npt.NDArray[np.float16]:
    """Convert an embedding column to (rows, dim) float16, without copying if the column is one chunk."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    dim = array.type.list_size
    return np.asarray(array.flatten().to_numpy(zero_copy_only=True)).reshape(-1, dim)


def scattered(values: pa.Array, rows: npt.NDArray[np.int64], part_rows: int) -> pa.Array:
    """Return a column of a part from the values of some of its rows.

    Args:
        values: (n,) the values.
        rows: (n,) int64, the row of each.
        part_rows: how many rows the part has.

    Returns:
        (part_rows,) values; rows without one are null.
    """
    place = np.full(part_rows, -1, np.int64)
    place[rows] = np.arange(len(rows))
    return values.take(pa.array(place, mask=place < 0))
