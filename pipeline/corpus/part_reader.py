"""Reads one part of a corpus, its families side by side: whole, or one row group at a time.

Families of a part have the same rows in the same row groups, so a column of any family can be read on its own; columns
of documents are joined to their sentences by `doc`. Purged documents are left out: rows and documents are numbered
without them, as they will be once the part is written again. Memory: the row groups asked for, and the wanted columns
of the part's documents.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.base.errors import CorpusError
from pipeline.base.formats import counted
from pipeline.conditions.condition import Condition
from pipeline.corpus.receipts import DataFile, Receipt
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.vectors import read_embeddings
from pipeline.inputs.column_types import TEXT, ColumnType, types_in
from pipeline.inputs.kept_values import as_array
from pipeline.storage import layout
from pipeline.storage.remote import translate_errors
from pipeline.storage.store import Store
from stages.arrow import embedding_array

PART, ROW = "part", "row"  # where a row stands: computed, not read
ROW_COLUMNS = tuple(name for family in layout.ROW_FAMILIES for name in layout.schema(family, width=1).names)


@contextmanager
def told_if_damaged(store: Store, path: str) -> Iterator[None]:
    """Report what Arrow says of a data file inside the `with` block.

    Args:
        store: the corpus.
        path: the file.

    Yields:
        Nothing; the block runs once.

    Raises:
        CorpusError: if the file cannot be read, or a page is not what its checksum says.
    """
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorpusError(
            f"{store.url}/{path} cannot be read ({error}); if it was damaged, delete its receipt and run again"
        ) from error


@contextmanager
def opened_data_file(store: Store, path: str) -> Iterator[pq.ParquetFile]:
    """Open a data file. Its pages are compared with their checksums, which files of early versions lack.

    Args:
        store: the corpus.
        path: the file.

    Yields:
        The file.

    Raises:
        CorpusError: if it cannot be read, or a page is not what its checksum says.
    """
    with translate_errors(store.url), told_if_damaged(store, path), store.open(path) as handle:
        yield pq.ParquetFile(handle, pre_buffer=True, page_checksum_verification=True)


@dataclass(frozen=True)
class Column:
    """A column that can be asked for. `nullable`: null if no sample took the row, or the document has no value.

    The types of `embedding` and `codes` have the width 1 here; only the files know it.
    """

    name: str
    family: str
    type: pa.DataType
    nullable: bool


def columns_of(vouched: Collection[str], types: Mapping[str, ColumnType]) -> dict[str, Column]:
    """Return columns by name, of a part whose receipts vouch for these ("family.column").

    Columns of rows come first, then those of documents, then the place. A name that sentences and their documents share
    (`lang`) is the sentence's. types: the types of columns that inputs keep; columns without a type here are text.
    """
    found: dict[str, Column] = {}
    keep = {name: types.get(name, TEXT).arrow for name in kept_names(vouched)}
    for family in (*layout.ROW_FAMILIES, "documents"):
        for field in layout.schema(family, width=1, keep=keep):
            if f"{family}.{field.name}" in vouched:
                found.setdefault(field.name, Column(field.name, family, field.type, field.nullable))
    found[PART] = Column(PART, "", pa.string(), False)
    found[ROW] = Column(ROW, "", pa.int64(), False)
    return found


def kept_names(vouched: Collection[str]) -> list[str]:
    """Return the columns that the inputs keep, of those that receipts vouch for, sorted."""
    named = {key.removeprefix("documents.") for key in vouched if key.startswith("documents.")}
    return sorted(named - set(layout.DOCUMENT_COLUMNS))


def with_kept(vouched: Collection[str], names: Collection[str]) -> frozenset[str]:
    """Return the columns with these as the ones that inputs keep, whichever of them are in files."""
    in_files = {f"documents.{name}" for name in kept_names(vouched)}
    return frozenset(vouched) - in_files | {f"documents.{name}" for name in names}


def not_made(name: str) -> str:
    """Say why a column that a stage makes is not there."""
    again = any(name in layout.schema(family).names for family in layout.COMPARED)
    return "its stage has not run on all parts" + (" since documents were added or purged" if again else "")


def no_column(name: str, available: Collection[str]) -> str:
    """Return the message for a column that does not exist."""
    if name in ROW_COLUMNS:
        return f"there is no column {name}: {not_made(name)}; columns: {', '.join(available)}"
    near = difflib.get_close_matches(name, available, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"there is no column {name}; {hint}columns: {', '.join(available)}"


@dataclass(frozen=True)
class PartBatch:
    """What one row group yields: its number of rows, and the wanted rows."""

    rows: int
    table: pa.Table


class PartReader:
    """Reads a part; use it in a `with` statement.

    Args:
        store: the corpus.
        part: the name of the part.
        receipts: stage → receipt of this part.
        purged: the ids of documents of its chunk that must not be seen any more (`Tombstones.of`).
        types: the columns that inputs keep, and the types that all parts have in common; those that this part has not
            are null. None for the columns of this part, and their types.
    """

    def __init__(
        self,
        store: Store,
        part: str,
        receipts: dict[str, Receipt],
        purged: frozenset[str],
        types: Mapping[str, ColumnType] | None = None,
    ) -> None:
        self.part = part
        self._stored = receipts[SEGMENT].rows
        self._purged = purged
        vouched = {column for receipt in receipts.values() for column in receipt.columns}
        if types is None:
            types = types_in(receipts[SEGMENT].counts, dict.fromkeys(kept_names(vouched), 1))
        self._types = types
        self.columns = columns_of(with_kept(vouched, types), types)
        self._store = store
        self._files = {file.family: file for receipt in receipts.values() for file in receipt.files}
        self._sources: dict[str, Any] = {}  # of the files that are open
        self._open: dict[str, pq.ParquetFile] = {}
        self._documents: dict[str, pa.ChunkedArray] = {}

    def __enter__(self) -> PartReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for file in self._open.values():
            file.close(force=True)
        self._open.clear()

    @cached_property
    def rows(self) -> int:
        """The number of sentences."""
        return self._stored if self._left is None else int(self._left.sum())

    @property
    def groups(self) -> int:
        """The number of row groups."""
        return -(-self._stored // layout.ROW_GROUP_ROWS)

    def bounds(self, group: int | None) -> tuple[int, int]:
        """Return the first row of a row group and the one after its last; without a group, of the whole part."""
        low, high = self._stored_bounds(group)
        return (low, high) if self._left is None else (int(self._left[:low].sum()), int(self._left[:high].sum()))

    def schema(self, names: Sequence[str]) -> pa.Schema:
        """Return the declared fields of the named columns, with the real types of vectors."""
        return pa.schema([self._field(self.columns[name]) for name in names])

    def read(self, names: Sequence[str], group: int | None = None) -> pa.Table:
        """Read the named columns in their `schema`, of one row group or of the whole part.

        Raises `CorpusError` for a file that is damaged or has other row groups.
        """
        first, end = self._stored_bounds(group)
        found: dict[str, pa.ChunkedArray] = {}
        of_documents = [name for name in names if self.columns[name].family == "documents"]
        for family in dict.fromkeys(self.columns[name].family for name in names):
            if family not in ("", "documents"):
                wanted = [name for name in names if self.columns[name].family == family]
                table = self._read(family, wanted, group)
                found |= {name: table[name] for name in wanted}
        if of_documents:
            doc = found["doc"] if "doc" in found else self._read("sentences", ["doc"], group)["doc"]
            try:
                found |= {name: self._document_column(name).take(doc) for name in of_documents}
            except pa.ArrowException as error:
                raise CorpusError(
                    f"{self._store.url}/{self._files['sentences'].path} is damaged: its sentences are of documents "
                    f"that the part does not have ({error}); delete its receipt and run again"
                ) from error
        if PART in names:
            found[PART] = pa.repeat(self.part, end - first)
        if ROW in names:
            found[ROW] = pa.array(np.arange(first, end))
        table = pa.table({name: found[name] for name in names}, schema=self.schema(names))
        left = self._left
        return table if left is None else self._numbered(table.filter(pa.array(left[first:end])), left)

    def documents(self, names: Sequence[str] | None = None) -> pa.Table:
        """Return columns of the part's documents, or all columns."""
        table = self._documents_table(names or (*layout.DOCUMENT_COLUMNS, *sorted(self._types)))
        left = self._left
        return table if left is None else self._numbered(table.filter(pc.invert(self._gone)), left)

    def batches(self, names: Sequence[str], where: Condition | None = None) -> Iterator[PartBatch]:
        """Yield one row group after the other. With a condition, other columns are read only where some row satisfies
        it.
        """
        for group in range(self.groups):
            yield self.batch(names, where, group)

    def batch(self, names: Sequence[str], where: Condition | None, group: int) -> PartBatch:
        """Read a row group, as `batches` does.

        Args:
            names: the columns to read.
            where: a condition that rows must satisfy; None for all rows.
            group: the number of the row group in the part, from 0.

        Returns:
            The rows, and how many were looked at.
        """
        first, end = self.bounds(group)
        return PartBatch(end - first, self._where(names, where, group) if where else self.read(names, group))

    def take(self, names: Sequence[str], rows: Sequence[int]) -> pa.Table:
        """Read the named columns of these rows, in their order; only the row groups in which they stand are read.

        Raises `CorpusError` for a row that the part does not have.
        """
        wanted = np.asarray(rows, np.int64)
        outside = wanted[(wanted < 0) | (wanted >= self.rows)]
        if len(outside):
            have = counted(self.rows, "row")
            raise CorpusError(f"part {self.part} has {have}; there is no row number {outside[0]}")
        ends = np.asarray([self.bounds(group)[1] for group in range(self.groups)], np.int64)
        groups = np.searchsorted(ends, wanted, side="right")
        tables, places, before = [self.schema(names).empty_table()], np.zeros(len(wanted), np.int64), 0
        for group in sorted(set(groups.tolist())):  # np.unique would import numpy.ma
            mine = np.flatnonzero(groups == group)
            inside = pa.array(wanted[mine] - self.bounds(group)[0])
            tables.append(self.read(names, group).take(inside))
            places[mine] = before + np.arange(len(mine))
            before += len(mine)
        return pa.concat_tables(tables).take(pa.array(places))

    def _where(self, names: Sequence[str], where: Condition, group: int) -> pa.Table:
        read = tuple(dict.fromkeys((*where.columns, ROW)))
        tested = self.read(read, group).combine_chunks()
        kept = np.sort(where.filter(tested)[ROW].to_numpy())
        if not len(kept):
            return self.schema(names).empty_table()
        places = pa.array(kept - self.bounds(group)[0])
        further = [name for name in names if name not in read]
        others = self.read(further, group) if further else tested
        tables = {name: tested if name in read else others for name in names}
        return pa.table({name: table[name].take(places) for name, table in tables.items()}, schema=self.schema(names))

    def _stored_bounds(self, group: int | None) -> tuple[int, int]:
        if group is None:
            return 0, self._stored
        return group * layout.ROW_GROUP_ROWS, min((group + 1) * layout.ROW_GROUP_ROWS, self._stored)

    @cached_property
    def _gone(self) -> pa.ChunkedArray:
        """Return (documents,) which of them were purged."""
        ids = self._read("documents", ["doc_id"], None)["doc_id"]
        return pc.is_in(ids, value_set=pa.array(sorted(self._purged), pa.string()))

    @cached_property
    def _left(self) -> npt.NDArray[np.bool_] | None:
        """Return (stored rows,) which of them are to be seen; None if all are."""
        if not self._purged or not pc.any(self._gone).as_py():
            return None
        rows = self._read("documents", ["rows"], None)["rows"].to_numpy()
        left: npt.NDArray[np.bool_] = np.repeat(~self._gone.to_numpy(), rows)
        return left

    def _numbered(self, table: pa.Table, left: npt.NDArray[np.bool_]) -> pa.Table:
        """Number the remaining rows and documents without the purged ones."""
        rows = np.cumsum(left) - 1
        documents = np.cumsum(~self._gone.to_numpy()) - 1
        for name, numbers in (("doc", documents), (ROW, rows), ("first_row", rows)):
            if name in table.column_names:
                place, kind = table.column_names.index(name), table.field(name)
                table = table.set_column(place, kind, pa.array(numbers[table[name].to_numpy()], kind.type))
        return table

    def _read(self, family: str, names: Sequence[str] | None, group: int | None) -> pa.Table:
        first, end = self._stored_bounds(group)
        rows = self._files[family].rows if family == "documents" else end - first
        with self._opened(family, names) as opened:
            if family == "embeddings" and self._store.local:  # Arrow reads many ranges of a store at once
                table = self._embeddings(opened, range(self.groups) if group is None else [group])
            else:
                table = opened.read(names) if group is None else opened.read_row_group(group, names)
            if any(len(column) != rows for column in table.columns):  # as with a changed bit in the head of a page
                raise pa.ArrowInvalid(f"not {rows} rows in each column")
            return table

    def _embeddings(self, opened: pq.ParquetFile, groups: Iterable[int]) -> pa.Table:
        source, kind, found = self._sources["embeddings"], opened.schema_arrow.types[0], []
        for group in groups:
            first, end = self._stored_bounds(group)
            values = embedding_array(read_embeddings(opened, source, group, end - first)).values
            found.append(pa.FixedSizeListArray.from_arrays(values, type=kind))
        return pa.table({"embedding": pa.chunked_array(found, kind)})

    @contextmanager
    def _opened(self, family: str, names: Sequence[str] | None) -> Iterator[pq.ParquetFile]:
        """Give a family's file, which has these columns. What Arrow says of it becomes a `CorpusError`."""
        with translate_errors(self._store.url), told_if_damaged(self._store, self._files[family].path):
            opened = self._file(family)
            self._check_columns(family, names, opened.schema_arrow.names)
            yield opened

    def _check_columns(self, family: str, names: Sequence[str] | None, there: Sequence[str]) -> None:
        """Raise `CorpusError` if a file lacks a column of its family: it is another file. Kept metadata is left out."""
        declared = layout.DOCUMENT_COLUMNS if family == "documents" else names or ()
        lacking = [name for name in declared if name in (declared if names is None else names) and name not in there]
        if lacking:
            raise CorpusError(
                f"{self._store.url}/{self._files[family].path} is damaged: it has no {', '.join(lacking)}; delete its "
                "receipt, run again"
            )

    def _file(self, family: str) -> pq.ParquetFile:
        if family not in self._open:
            file: DataFile = self._files[family]
            self._sources[family] = source = self._store.open(file.path)
            opened = pq.ParquetFile(source, pre_buffer=True, page_checksum_verification=True)
            self._open[family] = opened
            found = opened.metadata
            groups = [found.row_group(group).num_rows for group in range(found.num_row_groups)]
            if family == "documents" and found.num_rows != file.rows:
                raise CorpusError(
                    f"{self._store.url}/{file.path} has {found.num_rows} documents; part {self.part} has {file.rows}: "
                    "delete its receipt, run again"
                )
            steps = range(0, file.rows, layout.ROW_GROUP_ROWS)
            if family != "documents" and groups != [min(layout.ROW_GROUP_ROWS, self._stored - at) for at in steps]:
                raise CorpusError(
                    f"{self._store.url}/{file.path} has {found.num_rows} rows in {found.num_row_groups} row groups; "
                    f"part {self.part} has {self._stored} rows in groups of {layout.ROW_GROUP_ROWS}: delete its "
                    "receipt, run again"
                )
        return self._open[family]

    def _document_column(self, name: str) -> pa.ChunkedArray:
        if name not in self._documents:
            self._documents[name] = self._documents_table([name])[name]
        return self._documents[name]

    def _documents_table(self, names: Sequence[str]) -> pa.Table:
        """Read columns of documents, those that inputs keep in the types that they have in all parts."""
        with self._opened("documents", names) as opened:
            there = opened.schema_arrow
            found = opened.read([name for name in names if name in there.names])
            rows = opened.metadata.num_rows
        columns, fields = [], []
        for name in names:
            kind = self._types[name].arrow if name in self._types else there.field(name).type
            if name not in there.names:
                values = pa.chunked_array([pa.nulls(rows, kind)])
            elif there.field(name).type != kind:
                values = pa.chunked_array([as_array(found[name].to_pylist(), self._types[name], name)[0]])
            else:
                values = found[name]
            columns.append(values)
            fields.append(pa.field(name, kind) if name in self._types else there.field(name))
        return pa.table(columns, schema=pa.schema(fields))

    def _field(self, column: Column) -> pa.Field:
        if column.family in layout.VECTORS:
            with self._opened(column.family, [column.name]) as opened:
                field: pa.Field = opened.schema_arrow.field(column.name)
            return field
        return pa.field(column.name, column.type, nullable=column.nullable)
