"""Yields rows of Parquet files as documents: 256 at a time, fewer if they are large; about 64 MiB of values in
memory.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.inputs.chunk import TO_THE_END, UNREADABLE, Chunk
from pipeline.inputs.documents import Document, Rejected
from pipeline.inputs.magic import looks_like
from pipeline.inputs.packing import files_of
from pipeline.inputs.pages import PageError, largest_dictionary
from pipeline.inputs.parquet import BrokenParquetError, open_parquet, stored_columns
from pipeline.inputs.records import DUPLICATE_KEY, NotUtf8, RecordMaker, Unconvertible
from pipeline.inputs.streams import head_of

ROWS = 256  # turned into Python values at once
ROWS_BYTES = 64 << 20


def read_rows(chunk: Chunk, maker: RecordMaker) -> Iterator[Document | Rejected]:
    try:
        with open_parquet(chunk) as (file, handle):
            metadata = file.metadata
            end = metadata.num_row_groups if chunk.end == TO_THE_END else chunk.end
            maker.present = file.schema_arrow.names
            columns = [name for name in maker.columns if name in maker.present]
            row = sum(metadata.row_group(group).num_rows for group in range(chunk.start))
            twice = [name for name in columns if file.schema_arrow.names.count(name) > 1]
            if twice:
                rows = sum(metadata.row_group(group).num_rows for group in range(chunk.start, end))
                error = f"the file has several columns of the name {', '.join(map(repr, twice))}; keep one"
                if rows:
                    yield maker.reject(row, DUPLICATE_KEY, error, records=rows)
                return
            for group in range(chunk.start, end):
                after = row + metadata.row_group(group).num_rows
                error = "the row group holds fewer rows than its footer says"
                stored: list[Any] = []
                local = chunk.url.startswith("file://")
                try:
                    stored = [one for one in stored_columns(file, group) if _name(one) in columns]
                    dictionary = largest_dictionary(cast(IO[bytes], handle), stored, local=local)
                    rows = _rows_at_once(after - row, stored, dictionary)
                    for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
                        for values in _python_rows(batch):
                            yield maker.make(values, row)
                            row += 1
                except (pa.ArrowException, OSError, PageError, BrokenParquetError) as failed:
                    if handle.failure is not None:
                        raise handle.failure from failed
                    error = str(failed)
                if row < after:
                    size = sum(one.total_compressed_size for one in stored)  # an upper bound of what was not read
                    yield maker.reject(row, UNREADABLE, error, records=after - row, bytes_unreadable=size)
                row = after
    except BrokenParquetError as broken:
        head = head_of(chunk)
        hint = "" if head.startswith(b"PAR1") else looks_like(head)
        yield maker.reject(0, UNREADABLE, f"{str(broken).rstrip('.')}{hint}", head, bytes_unreadable=chunk.bytes)


def _rows_at_once(rows: int, columns: Sequence[Any], dictionary: int) -> int:
    """dictionary: bytes of the largest one, of which each row may have a copy."""
    size = sum(column.total_uncompressed_size for column in columns)
    at_most = ROWS_BYTES // dictionary if dictionary else ROWS
    return int(max(1, min(ROWS, ROWS_BYTES * rows // max(1, size), at_most)))


def _name(column: Any) -> str:
    """Return the top-level column that a stored column belongs to."""
    return str(column.path_in_schema).split(".")[0]


def _python_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield rows as Python values. Even without any column there are rows, each without values."""
    names = batch.schema.names
    columns = [_python_values(batch.column(index)) for index in range(len(names))]
    if not names:
        yield from ({} for _ in range(batch.num_rows))
        return
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _python_values(column: pa.Array) -> list[Any]:
    """Convert a column; strings are decoded one by one, so a value that is not UTF-8 spoils only its own row."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if getattr(column.type, "unit", "") == "ns":
        return _of_nanoseconds(column)
    if pa.types.is_nested(column.type) and _has_bytes_or_nanoseconds(column.type):
        return [_whole_value(value) for value in column]
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    if pa.types.is_string(column.type):
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    try:
        values = column.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):  # the last two: dates that Python lacks
        values = [_python_value(value) for value in column]
    return [_decoded(value) if isinstance(value, bytes) else value for value in values]


def _of_nanoseconds(column: pa.Array) -> list[Any]:
    """Convert times of nanoseconds to microseconds, as Python has them; to text, in UTC if they have a zone, where that
    would lose digits.
    """
    kind = column.type
    if pa.types.is_duration(kind):
        return [None if value is None else _duration(value) for value in column.view(pa.int64()).to_pylist()]
    target = pa.time64("us") if pa.types.is_time64(kind) else pa.timestamp("us", kind.tz)
    coarse = column.cast(target, safe=False)
    same = pc.equal(coarse.cast(kind), column)
    values: list[Any] = coarse.to_pylist()
    if pc.all(same).as_py() is not False:
        return values
    zone = getattr(kind, "tz", None)
    texts = (column.cast(pa.timestamp("ns")) if zone else column).cast(pa.string()).to_pylist()
    if zone:
        texts = [text and f"{text}+00:00" for text in texts]
    every = zip(values, texts, same.to_pylist(), strict=True)
    return [text if exact is False else value for value, text, exact in every]


def _duration(nanoseconds: int) -> dt.timedelta | str:
    seconds, rest = divmod(nanoseconds, 10**9)
    if rest % 1000 == 0:
        return dt.timedelta(seconds=seconds, microseconds=rest // 1000)
    return f"{dt.timedelta(seconds=seconds)}.{rest:09}"


def read_otherwise_before(chunk: Chunk, names: Iterable[str]) -> set[str]:
    """Return the columns of a chunk's Parquet files whose values earlier versions read as other text: those with bytes
    or nanoseconds in them.
    """
    found, wanted = set[str](), set(names)
    for file in files_of(chunk):
        if file.format == "parquet":
            with open_parquet(file) as (opened, _):
                found |= {one.name for one in opened.schema_arrow if _has_bytes_or_nanoseconds(one.type)} & wanted
    return found


def _has_bytes_or_nanoseconds(kind: pa.DataType) -> bool:
    """Return whether a type has them at any depth; Python writes the first as `b'…'`, and lacks the second."""
    if pa.types.is_dictionary(kind):
        return _has_bytes_or_nanoseconds(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_has_bytes_or_nanoseconds(kind.field(index).type) for index in range(kind.num_fields))
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return getattr(kind, "unit", "") == "ns" or any(one(kind) for one in binary)


def _whole_value(value: pa.Scalar) -> Any:
    """Convert a nested value; one whose bytes are not UTF-8 spoils its row."""
    try:
        return _nested_value(value)
    except UnicodeDecodeError as error:
        return NotUtf8(error)
    except (ValueError, OverflowError) as error:
        return Unconvertible(str(error))


def _nested_value(value: pa.Scalar) -> Any:
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_dictionary(kind):
        return _nested_value(value.value)
    if pa.types.is_struct(kind):
        return {kind.field(index).name: _nested_value(value[index]) for index in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return [(_nested_value(one[0]), _nested_value(one[1])) for one in value.values]
    if pa.types.is_nested(kind):
        return [_nested_value(one) for one in value.values]
    if getattr(kind, "unit", "") == "ns":
        return _of_nanoseconds(pa.array([value], kind))[0]
    found = value.as_py()
    return found.decode() if isinstance(found, bytes) else found


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return NotUtf8(error)
    except (ValueError, OverflowError) as error:
        try:
            return value.cast(pa.string()).as_py()
        except pa.ArrowException:
            return Unconvertible(str(error))


def _decoded(raw: bytes) -> str | NotUtf8:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        return NotUtf8(error)
