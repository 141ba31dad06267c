"""Counts the documents of a chunk without parsing records: the other side of the accounting.

The reader (`readers.py`) splits and parses; here newlines are counted in raw blocks, Parquet gives its own row count,
and a text file is one document. For every chunk, the documents read plus the `records` of all rejected ones must equal
this count; otherwise documents were lost. Counting runs at the speed of the disk or the decompressor.

A compressed file may be several chunks (`members.py`), of which each reads on to the end of its last line.

Broken files: of a compressed stream that breaks, the complete lines before the break count, and the break counts as one
document (the reader rejects it as "unreadable"), whether or not it left a piece of a line. Parquet pages are not
opened: the rows of a broken row group count, and the reader rejects as many. A Parquet file without a readable footer
counts as one, and so does each chunk of a file whose beginning does not match its name.

A caller that asks for it also gets a digest of what is read (`Content`): lines are read once for both, and of text and
Parquet, which are counted without it, the bytes are read for that.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.base.parallel import prefetch
from pipeline.inputs.chunk import PACKED, TO_THE_END, UNREADABLE, Chunk
from pipeline.inputs.packing import files_of
from pipeline.inputs.parquet import PAGE_BUFFER, BrokenParquetError, open_parquet, stored_columns
from pipeline.inputs.streams import BrokenStreamError, check_lines, head_of, own_blocks, raw_blocks, text_blocks

_reading: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # files whose digest is being made


@dataclass(frozen=True)
class Counted:
    """The number of `documents` in a chunk (at most `take`), and the stored bytes that were read to count them.

    `bytes_unreadable`: the stored bytes that could not be decoded while counting. Only the reader opens Parquet pages,
    so the total is the sum over the reader's `Rejected.bytes_unreadable`.
    """

    documents: int
    bytes_read: int
    bytes_unreadable: int = 0


def count_documents(chunk: Chunk, content: Content | None = None) -> Counted:
    """Count what `read_documents` has to account for. Raises InputError if the file changed since planning.

    `content`: is shown what these documents depend on.
    """
    if chunk.format == PACKED:
        return _count_files(chunk, content)
    if chunk.format == UNREADABLE:
        return Counted(1, 0, chunk.bytes)
    if chunk.format == "text":
        if content:
            for block in raw_blocks(chunk, 0):
                content.update(block)
        return Counted(1, chunk.bytes)
    if chunk.format == "parquet":
        return _count_rows(chunk, content)
    if chunk.by_text:
        return _count_text(chunk, content)
    if chunk.end == TO_THE_END or chunk.compression:
        return _count_stream(chunk, content)
    return _count_range(chunk, content)


def _count_files(chunk: Chunk, content: Content | None) -> Counted:
    """Count the documents of the files of a packed chunk, as if each file were a chunk."""
    documents = read = unreadable = 0

    def count(file: Chunk) -> tuple[str, Counted, str]:
        own = Content(content.columns) if content else None
        found = count_documents(file, own)
        return file.path, found, own.of(file) if own else ""

    files, counts = list(files_of(chunk)), iter(list[tuple[str, Counted, str]]())
    if chunk.take is not None:  # how much of a file counts depends on the files before it
        counts = (count(replace(file, take=chunk.take - documents)) for file in files)
    elif content or any(file.format != "text" for file in files):
        counts = prefetch(count, files)
    else:
        counts = map(count, files)
    for path, found, digest in counts:
        documents, read = documents + found.documents, read + found.bytes_read
        unreadable += found.bytes_unreadable
        if content:
            content.add(path, digest)
        if documents == chunk.take:
            break
    return Counted(documents, read, unreadable)


def _count_range(chunk: Chunk, content: Content | None) -> Counted:
    """Count the lines that begin in the range: one after each newline in [start − 1, end − 1), and the first."""
    try:
        check_lines(chunk, head_of(chunk))
    except BrokenStreamError as broken:
        if content:
            content.add(str(broken))
        return Counted(1, 0, broken.bytes_unreadable)
    first, last = max(chunk.start - 1, 0), chunk.end - 1
    documents = 1 if chunk.start == 0 < chunk.end else 0
    at, counted_in = first, 0
    for block in raw_blocks(chunk, first, None if content else last) if chunk.end > chunk.start else ():
        inside = max(0, last - at)  # bytes of the block after which lines of the range can begin
        documents += block.count(b"\n", 0, inside)
        at += len(block)
        if content and _ends_in(block, inside, documents > 0, content):
            break
        if chunk.take is not None and documents >= chunk.take:
            counted_in = counted_in or min(at - first, chunk.bytes)
            if not content or documents > chunk.take:  # the last one is read whole
                break
    return Counted(_at_most(documents, chunk.take), counted_in or chunk.bytes)


def _count_text(chunk: Chunk, content: Content | None) -> Counted:
    """Count as `_count_range` does in decompressed text, of which nobody knows the size. `content` sees a digest of the
    stored file.
    """
    if content:
        _add_range(content, chunk)
    first, last = max(chunk.start - 1, 0), (sys.maxsize if chunk.end == TO_THE_END else chunk.end) - 1
    documents, unreadable = 0 if chunk.start else 1, 0
    at, ending = first, b""
    try:
        for block in text_blocks(chunk, first):
            inside = max(0, last - at)
            documents += block.count(b"\n", 0, inside)
            at, ending = at + len(block), block[-1:]
            if at > last or (chunk.take is not None and documents > chunk.take):
                break
        else:
            documents -= ending == b"\n" and at <= last  # after the last line end no line begins
    except BrokenStreamError as broken:
        unreadable = broken.bytes_unreadable if documents else 0  # else the line that breaks began before
    return Counted(_at_most(documents, chunk.take), max(0, chunk.bytes - unreadable), unreadable)


def _ends_in(block: bytes, inside: int, any_begun: bool, content: Content) -> bool:
    """Show `content` what a range's lines have of a block; whether the last one ends in it. inside: as above."""
    if inside >= len(block):
        content.update(block)
        return False
    newline = block.find(b"\n", inside) if any_begun else inside - 1  # a line that began before the range is no part
    if any_begun and newline < 0:
        content.update(block)
        return False
    content.update(block[: newline + 1])
    return True


def _count_stream(chunk: Chunk, content: Content | None) -> Counted:
    """Count the newlines of a decompressed stream, a last line without one, and a break.

    `content` sees stored bytes of a whole file; of a chunk of some members what its lines consist of, because the last
    one may end in a member of the next chunk.
    """
    documents = unreadable = 0
    last = b"\n"
    members = chunk.end != TO_THE_END
    try:
        for block in own_blocks(chunk, *([content.update] if content and not members else [])):
            if content and members:
                content.update(block)
            documents += block.count(b"\n")
            last = block[-1:]
            if chunk.take is not None and documents >= chunk.take:
                return Counted(chunk.take, chunk.bytes)
    except BrokenStreamError as broken:
        unreadable = broken.bytes_unreadable
        documents += 1
        if content and members:
            content.add(str(broken))
    else:
        documents += last != b"\n"
    return Counted(_at_most(documents, chunk.take), chunk.bytes - unreadable, unreadable)


def content_digest(chunk: Chunk, columns: Sequence[str]) -> str:
    """Return what a receipt keeps of the content of a chunk, without counting if that takes longer. columns: as for
    `Content`. Raises InputError if the file changed since planning.
    """
    content = Content(columns)
    if chunk.by_text:
        _add_range(content, chunk)
    else:
        count_documents(chunk, content)
    return content.of(chunk)


def _add_range(content: Content, chunk: Chunk) -> None:
    """Show the range of text and a digest of the stored file, which a process reads once for all its chunks."""
    with _reading[chunk.url]:
        file = _digest_of_file(replace(chunk, id="", start=0, end=TO_THE_END, bytes=0, take=None))
    content.add(chunk.start, chunk.end, file)


@functools.lru_cache(1 << 12)
def _digest_of_file(whole: Chunk) -> str:
    content = Content()
    for block in raw_blocks(whole, 0):
        content.update(block)
    return content.digest()


def _count_rows(chunk: Chunk, content: Content | None) -> Counted:
    try:
        with open_parquet(chunk) as (file, handle):
            metadata = file.metadata
            end = metadata.num_row_groups if chunk.end == TO_THE_END else chunk.end
            rows = sum(metadata.row_group(group).num_rows for group in range(chunk.start, end))
            if content:
                for stored in _pages(chunk, content, file, handle, end):
                    content.update(stored)
    except BrokenParquetError as broken:
        if content:
            content.add(str(broken))
            content.update(head_of(chunk))
        return Counted(1, 0, chunk.bytes)
    return Counted(_at_most(rows, chunk.take), chunk.bytes)


def _pages(chunk: Chunk, content: Content, file: Any, handle: Any, end: int) -> Iterator[bytes]:
    """Yield the stored bytes of the columns that are read, after what the footer says of them."""
    metadata, schema, left = file.metadata, file.schema_arrow, chunk.take
    content.add(sum(metadata.row_group(group).num_rows for group in range(chunk.start)))
    content.add([[field.name, str(field.type)] for field in schema if field.name in content.columns])
    for number in range(chunk.start, end):
        group = metadata.row_group(number)
        content.add(group.num_rows)
        try:
            columns = stored_columns(file, number)
        except BrokenParquetError as broken:  # of which no row can be read
            content.add(str(broken))
            columns = []
        for column in columns:
            if column.path_in_schema.split(".")[0] in content.columns:
                size = column.total_compressed_size
                content.add(column.path_in_schema, column.physical_type, column.compression, column.num_values, size)
                offsets = [one for one in (column.dictionary_page_offset, column.data_page_offset) if one and one > 0]
                handle.seek(min(offsets, default=0))
                while size > 0 and (stored := handle.read(min(PAGE_BUFFER, size))):
                    yield stored
                    size -= len(stored)
        left = None if left is None else left - group.num_rows
        if left is not None and left <= 0:
            return


def _at_most(documents: int, take: int | None) -> int:
    return documents if take is None else min(documents, take)


class Content:
    """Digests what a chunk holds, so that it is recognised where its file has another time or version.

    `count_documents` shows it the stored bytes that the chunk's documents depend on, and nothing else, so that what is
    appended to a file leaves the digests of the chunks before it as they were: of plain JSONL the lines that begin in
    the chunk, whole; of Parquet the pages of the columns that are read; of other files, and of those of which it is a
    range of text, all bytes; with `take`, the blocks that hold that many records. `columns`: those that documents are
    made of, in formats that have columns.
    """

    def __init__(self, columns: Sequence[str] = ()) -> None:
        self.columns = columns
        self._sha = hashlib.sha256()

    def update(self, stored: bytes | memoryview) -> None:
        """Add stored bytes, in their order."""
        self._sha.update(stored)

    def add(self, *facts: Any) -> None:
        """Add other values that documents depend on, as JSON."""
        self._sha.update(json.dumps(facts).encode())

    def digest(self) -> str:
        """Return the digest, 32 hex digits."""
        return self._sha.hexdigest()[:32]

    def of(self, chunk: Chunk) -> str:
        """Return what a receipt keeps: `<bytes of the chunk>-<digest>`; empty for a file that cannot be opened."""
        return "" if chunk.format == UNREADABLE else f"{chunk.bytes}-{self.digest()}"
