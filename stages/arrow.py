"""Converts columns between NumPy and Arrow, embeddings without a copy; imports no torch, so that reading a corpus is
fast.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

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


class _NotReadError(Exception):
    """Arrow wanted to read: it has believed all that the footer says."""


class _NeverRead(io.RawIOBase):
    """A large file of which no byte is ever read."""

    _at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = 1 << 62 if whence == io.SEEK_END else offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        raise _NotReadError


def columns_of_group(metadata: pq.FileMetaData, group: int) -> list[Any]:
    """Return what the footer of a Parquet file says of the columns of a row group.

    Arrow ends the process (SIGABRT) when it is asked for a column of which the footer says what cannot be, such as an
    unknown compression; when it is to read the column, it raises an error. So it is first told to read, from a file
    that gives nothing. Takes a third of a millisecond.
    Raises `ArrowException`, `OSError` or `UnicodeDecodeError` if the footer cannot be true of some column.
    """
    file = pq.ParquetFile(pa.PythonFile(_NeverRead(), "r"), metadata=metadata, pre_buffer=False, buffer_size=1 << 16)
    with contextlib.suppress(_NotReadError):
        next(file.iter_batches(1, row_groups=[group], use_threads=False), None)
    about = metadata.row_group(group)
    columns = [about.column(index) for index in range(about.num_columns)]
    for column in columns:
        _ = column.path_in_schema
    return columns


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


def changes(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a value differs from the one before it; the first one does."""
    return np.concatenate([np.ones(min(1, len(values)), np.bool_), values[1:] != values[:-1]])
