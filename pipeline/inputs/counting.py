"""How many documents a chunk holds, found without reading records: the other side of the accounting.

The reader (`readers.py`) splits and parses; here newlines are counted in raw blocks, Parquet tells its own row count,
and a text file is one document. For every chunk, documents read plus the `records` of all rejected equal this count,
or documents were lost. Counting goes at the disk's or the decompressor's speed.

Broken files: of a compressed stream that breaks, the complete lines before the break count, and the break counts as
one document (the reader rejects it as "unreadable"), whether or not it left a piece of a line. Parquet pages are not
opened: the rows of a broken row group count, and the reader rejects as many. A Parquet file without a readable footer
counts as one, and so does each chunk of a file that begins like something else than its name says.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.inputs.chunk import PACKED, TO_THE_END, UNREADABLE, Chunk
from pipeline.inputs.packing import files_of
from pipeline.inputs.parquet import BrokenParquetError, open_parquet
from pipeline.inputs.streams import BrokenStreamError, check_lines, decompressed_blocks, head_of, raw_blocks


@dataclass(frozen=True)
class Counted:
    """`documents` in the chunk (at most `take`); `bytes_read`: stored bytes that they were counted in.

    `bytes_unreadable`: stored bytes that counting could not decode. Parquet pages are opened only by the reader, so the
    sum over the reader's `Rejected.bytes_unreadable` is the whole figure.
    """

    documents: int
    bytes_read: int
    bytes_unreadable: int = 0


def count_documents(chunk: Chunk) -> Counted:
    """Count what `read_documents` has to account for. Raises InputError if the file changed since planning."""
    if chunk.format == PACKED:
        return _count_files(chunk)
    if chunk.format == UNREADABLE:
        return Counted(1, 0, chunk.bytes)
    if chunk.format == "text":
        return Counted(1, chunk.bytes)
    if chunk.format == "parquet":
        return _count_rows(chunk)
    if chunk.end == TO_THE_END:
        return _count_stream(chunk)
    return _count_range(chunk)


def _count_files(chunk: Chunk) -> Counted:
    sizes = [file.bytes for file in files_of(chunk)][: chunk.take]
    return Counted(len(sizes), sum(sizes))


def _count_range(chunk: Chunk) -> Counted:
    """Lines whose first byte lies in the range: one after each newline in [start − 1, end − 1), and the first."""
    try:
        check_lines(chunk, head_of(chunk))
    except BrokenStreamError as broken:
        return Counted(1, 0, broken.bytes_unreadable)
    first = max(chunk.start - 1, 0)
    documents = 1 if chunk.start == 0 < chunk.end else 0
    done = 0
    if chunk.end - 1 > first:
        for block in raw_blocks(chunk, first, chunk.end - 1):
            documents += block.count(b"\n")
            done += len(block)
            if chunk.take is not None and documents >= chunk.take:
                return Counted(chunk.take, min(done, chunk.bytes))
    return Counted(_at_most(documents, chunk.take), chunk.bytes)


def _count_stream(chunk: Chunk) -> Counted:
    """Newlines of the decompressed stream, a last line without one, and a break."""
    documents = unreadable = 0
    last = b"\n"
    try:
        for block in decompressed_blocks(chunk):
            documents += block.count(b"\n")
            last = block[-1:]
            if chunk.take is not None and documents >= chunk.take:
                return Counted(chunk.take, chunk.bytes)
    except BrokenStreamError as broken:
        unreadable = broken.bytes_unreadable
        documents += 1
    else:
        documents += last != b"\n"
    return Counted(_at_most(documents, chunk.take), chunk.bytes - unreadable, unreadable)


def _count_rows(chunk: Chunk) -> Counted:
    try:
        with open_parquet(chunk) as (file, _):
            metadata = file.metadata
            end = metadata.num_row_groups if chunk.end == TO_THE_END else chunk.end
            rows = sum(metadata.row_group(group).num_rows for group in range(chunk.start, end))
    except BrokenParquetError:
        return Counted(1, 0, chunk.bytes)
    return Counted(_at_most(rows, chunk.take), chunk.bytes)


def _at_most(documents: int, take: int | None) -> int:
    return documents if take is None else min(documents, take)
