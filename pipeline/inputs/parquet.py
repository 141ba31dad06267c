"""Opens Parquet files through fsspec, and tells broken files from a failing store.

pyarrow raises OSError both for corrupt pages and for failed reads. `_WatchedFile` remembers what the store itself
raised, so a lost connection fails the run, which can be repeated, while corrupt bytes are quarantined and the run
continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.inputs.chunk import Chunk
from pipeline.inputs.streams import open_chunk
from stages.arrow import columns_of_group

PAGE_BUFFER = 8 << 20  # bytes asked for at once, per column


class BrokenParquetError(Exception):
    """The footer cannot be read or be true: this is not a Parquet file, or it is truncated or damaged."""


class _WatchedFile:
    """A file for pyarrow that keeps the exception of a failed read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.failure: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            return self.file.read(size)
        except Exception as error:
            self.failure = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@contextmanager
def open_parquet(chunk: Chunk) -> Iterator[tuple[pq.ParquetFile, _WatchedFile]]:
    """Open a Parquet file; the handle's `failure` tells a failing store from broken pages.

    Pages are read through buffers of 8 MiB per column instead of whole row groups, and their checksums are verified if
    there are any. Raises BrokenParquetError if the footer is unreadable.
    """
    with open_chunk(chunk, random_access=True) as opened:
        handle = _WatchedFile(opened)
        try:
            file = pq.ParquetFile(
                handle, pre_buffer=False, buffer_size=PAGE_BUFFER, page_checksum_verification=True, memory_map=False
            )
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last one: names of columns
            if handle.failure is not None:
                raise handle.failure from error
            raise BrokenParquetError(str(error)) from error
        yield file, handle


def stored_columns(file: pq.ParquetFile, group: int) -> list[Any]:
    """Return what the footer says of the stored columns of a row group.

    Raises `BrokenParquetError` for what cannot be true of some column.
    """
    try:
        return columns_of_group(file.metadata, group)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BrokenParquetError(str(error)) from error
