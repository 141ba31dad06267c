"""Keeps chunks in columns: about 60 bytes each, where Python objects take 400, so that millions fit in memory.

Texts that chunks share (input, path, address, stamp) are stored once. A chunk is created from its row on access: 3 µs
each while iterating over all of them, 50 µs for a single one.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar, overload

import pyarrow as pa

from pipeline.inputs.chunk import Chunk

BATCH = 1 << 14
_SHARED = pa.dictionary(pa.int32(), pa.string())
_TYPES: dict[str, pa.DataType] = {
    "id": pa.string(),
    **dict.fromkeys(("input", "path", "url", "format", "compression"), _SHARED),
    **dict.fromkeys(("start", "end", "bytes", "take"), pa.int64()),
    **dict.fromkeys(("stamp", "current"), _SHARED),
}
SCHEMA = pa.schema([(field.name, _TYPES[field.name]) for field in dataclasses.fields(Chunk)])


T = TypeVar("T")


class InColumns(Sequence[T]):
    """A sequence that is stored in columns; an item is created from its row on access."""

    @abstractmethod
    def take(self, rows: Any) -> Self:
        """Return the items of these rows (integers), in that order."""
        ...

    @abstractmethod
    def _item(self, row: int) -> T: ...

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> T | Self:
        if isinstance(index, slice):
            return self.take(pa.array(range(*index.indices(len(self))), pa.int64()))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self._item(index % len(self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))


class ChunkTable(InColumns[Chunk]):
    """An immutable sequence of chunks. `table` has the schema `SCHEMA` and one array per column."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of(cls, chunks: Iterable[Chunk]) -> ChunkTable:
        """Return chunks as a table; this costs nothing if they are one already."""
        return chunks if isinstance(chunks, ChunkTable) else cls.from_batches(batches(chunks))

    @classmethod
    def from_batches(cls, found: Iterable[pa.RecordBatch]) -> ChunkTable:
        """Combine the output of `batches` in one table."""
        return cls(pa.Table.from_batches(found, SCHEMA).unify_dictionaries().combine_chunks())

    def columns(self, *names: str) -> Iterator[list[list[Any]]]:
        """Yield the values of some columns as lists, some thousand rows at a time."""
        for start in range(0, len(self), BATCH):
            some = self.table.select(names).slice(start, BATCH)
            yield [_plain(some[name]).to_pylist() for name in names]

    def take(self, rows: Any) -> ChunkTable:
        """Return the chunks of these rows (integers, or a mask), in that order."""
        rows = pa.array(rows)
        return ChunkTable(self.table.filter(rows) if rows.type == pa.bool_() else self.table.take(rows))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[Chunk]:
        for lists in self.columns(*SCHEMA.names):
            yield from map(Chunk, *lists)

    def _item(self, row: int) -> Chunk:
        return Chunk(**self.table.slice(row, 1).to_pylist()[0])


def batches(chunks: Iterable[Chunk]) -> Iterator[pa.RecordBatch]:
    """Yield chunks as record batches of some thousand."""
    rest = iter(chunks)
    while some := list(itertools.islice(rest, BATCH)):
        columns = [pa.array([getattr(one, name) for one in some], _plain_type(name)) for name in SCHEMA.names]
        shared = [pa.types.is_dictionary(field.type) for field in SCHEMA]
        arrays = [one.dictionary_encode() if twice else one for one, twice in zip(columns, shared, strict=True)]
        yield pa.record_batch(arrays, schema=SCHEMA)


def _plain_type(name: str) -> pa.DataType:
    kind = SCHEMA.field(name).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
