"""Documents of a chunk, one after the other, and every record that is none with its reason.

Streams in constant memory: a block of 1 MiB plus the longest record for lines, 8 MiB per column for Parquet. Plain
JSONL is read at 150 MB/s and more per core when documents have 6 kB (`json.loads` and the split's hash are most of it).

Nothing is raised for a bad record. What is raised: InputError if the file changed since planning, and the store's own
errors. The sum of documents and of the `records` of all rejected equals `count_documents(chunk).documents`; see there
for what a broken file counts.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pipeline.inputs.chunk import TO_THE_END, Chunk
from pipeline.inputs.documents import Document, Rejected
from pipeline.inputs.parquet import BrokenParquetError, open_parquet
from pipeline.inputs.records import NotUtf8, RecordMaker
from pipeline.inputs.settings import InputError, InputSettings, SplitSettings
from pipeline.inputs.streams import BrokenStreamError, decompressed_blocks, raw_blocks

ROWS = 256  # rows turned into Python values at once
UNREADABLE = "unreadable"


def read_documents(chunk: Chunk, settings: InputSettings, split: SplitSettings) -> Iterator[Document | Rejected]:
    """The chunk's records in order, at most `chunk.take` of them.

    Empty and white-space text is a document here: segmenting drops it with its own reason.
    Raises InputError if `settings` are of another input, or the file changed since planning.
    """
    if chunk.input != settings.input_name:
        raise InputError(f"chunk {chunk.id} is of input {chunk.input}, not of {settings.input_name}")
    maker = RecordMaker(chunk, settings, split)
    if chunk.format == "text":
        records = _text(chunk, maker)
    elif chunk.format == "parquet":
        records = _rows(chunk, maker)
    else:
        records = _lines(chunk, maker)
    return records if chunk.take is None else _at_most(records, chunk.take)


def _at_most(records: Iterator[Document | Rejected], take: int) -> Iterator[Document | Rejected]:
    left = take
    for record in records:
        stands_for = record.records if isinstance(record, Rejected) else 1
        yield replace(record, records=left) if isinstance(record, Rejected) and stands_for > left else record
        left -= stands_for
        if left <= 0:
            return


@dataclass(frozen=True, slots=True)
class _Line:
    offset: int
    raw: bytes
    broken: BrokenStreamError | None = None


def _lines(chunk: Chunk, maker: RecordMaker) -> Iterator[Document | Rejected]:
    for line in _split_lines(chunk):
        if line.broken is not None:
            unreadable = line.broken.bytes_unreadable
            yield maker.reject(line.offset, UNREADABLE, str(line.broken), line.raw, bytes_unreadable=unreadable)
            continue
        raw = line.raw.removeprefix(codecs.BOM_UTF8) if line.offset == 0 else line.raw
        if not raw or raw.isspace():
            yield maker.reject(line.offset, "blank line", "the line is empty", line.raw, kind="dropped")
            continue
        try:
            values = json.loads(raw.decode())
        except UnicodeDecodeError as error:
            yield maker.reject(line.offset, "not UTF-8", str(error), line.raw)
        except (ValueError, RecursionError) as error:  # ValueError: bad JSON, and numbers of over 4300 digits
            yield maker.reject(line.offset, "invalid JSON", str(error), line.raw)
        else:
            if isinstance(values, dict):
                yield maker.make(values, line.offset, line.raw)
            else:
                kind = type(values).__name__
                yield maker.reject(line.offset, "not a JSON object", f"the line holds a {kind}", line.raw)


def _split_lines(chunk: Chunk) -> Iterator[_Line]:
    """Lines whose first byte lies in the chunk, without their newline; the last may reach beyond its end."""
    whole = chunk.end == TO_THE_END
    if not whole and chunk.start == chunk.end:
        return
    offset = max(chunk.start - 1, 0)  # of the first byte in `parts`
    skip = chunk.start > 0  # the line around start − 1 belongs to the chunk before
    parts: list[bytes] = []  # of the line that has begun
    try:
        for block in decompressed_blocks(chunk) if whole else raw_blocks(chunk, offset):
            lines = block.split(b"\n")
            parts.append(lines[0])
            if len(lines) > 1:
                lines[0] = b"".join(parts)
                parts = [lines.pop()]
                for raw in lines:
                    if not whole and offset >= chunk.end:
                        return
                    if skip:
                        skip = False
                    else:
                        yield _Line(offset, raw)
                    offset += len(raw) + 1
            if not whole and (offset >= chunk.end or (skip and offset + sum(map(len, parts)) >= chunk.end)):
                return
            if skip:  # only the length of a skipped line matters
                offset, parts = offset + sum(map(len, parts)), []
    except BrokenStreamError as broken:
        yield _Line(offset, b"".join(parts), broken)
        return
    tail = b"".join(parts)
    if tail and not skip:
        yield _Line(offset, tail)


def _text(chunk: Chunk, maker: RecordMaker) -> Iterator[Document | Rejected]:
    parts: list[bytes] = []
    try:
        parts.extend(decompressed_blocks(chunk))
    except BrokenStreamError as broken:
        yield maker.reject(0, UNREADABLE, str(broken), b"".join(parts), bytes_unreadable=broken.bytes_unreadable)
        return
    raw = b"".join(parts)
    try:
        text = raw.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        yield maker.reject(0, "not UTF-8", str(error), raw)
        return
    yield maker.make({maker.settings.text: text}, 0, raw)


def _rows(chunk: Chunk, maker: RecordMaker) -> Iterator[Document | Rejected]:
    try:
        with open_parquet(chunk) as (file, handle):
            metadata = file.metadata
            end = metadata.num_row_groups if chunk.end == TO_THE_END else chunk.end
            columns = [name for name in maker.columns if name in file.schema_arrow.names]
            row = sum(metadata.row_group(group).num_rows for group in range(chunk.start))
            for group in range(chunk.start, end):
                after = row + metadata.row_group(group).num_rows
                error = "the row group holds fewer rows than its footer says"
                try:
                    for batch in file.iter_batches(ROWS, row_groups=[group], columns=columns, use_threads=False):
                        for values in _python_rows(batch):
                            yield maker.make(values, row)
                            row += 1
                except (pa.ArrowException, OSError) as failed:
                    if handle.failure is not None:
                        raise handle.failure from failed
                    error = str(failed)
                if row < after:
                    size = _stored_bytes(metadata.row_group(group), columns)
                    yield maker.reject(row, UNREADABLE, error, records=after - row, bytes_unreadable=size)
                row = after
    except BrokenParquetError as broken:
        yield maker.reject(0, UNREADABLE, str(broken), bytes_unreadable=chunk.bytes)


def _stored_bytes(group: Any, columns: list[str]) -> int:
    """Stored bytes of the columns in a row group: an upper bound of what could not be read when a part of it could."""
    chunks = (group.column(index) for index in range(group.num_columns))
    return sum(column.total_compressed_size for column in chunks if column.path_in_schema.split(".")[0] in columns)


def _python_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows as Python values. With no column at all there are still rows, each without values."""
    names = batch.schema.names
    columns = [_python_values(batch.column(index)) for index in range(len(names))]
    if not names:
        yield from ({} for _ in range(batch.num_rows))
        return
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _python_values(column: pa.Array) -> list[Any]:
    """Strings are decoded one by one: a value whose bytes are not UTF-8 spoils only its own row."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if pa.types.is_string(column.type):
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [None if raw is None else _decoded(raw) for raw in column.to_pylist()]
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_python_value(value) for value in column]
    return values


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return NotUtf8(error.object, str(error))


def _decoded(raw: bytes) -> str | NotUtf8:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return NotUtf8(raw, str(error))
