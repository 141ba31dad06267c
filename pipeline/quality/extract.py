"""Writes rows of a corpus to one file: `pipeline inspect CORPUS --where … --to worst.parquet`.

Streams row group by row group and reads only the families that the condition and the columns need; in a group without a
matching row, only those of the condition. Memory: two row groups (2 · 8192 rows; 16 MB each with embeddings of 1024
dimensions). The file appears under its name when it is complete; a run that is stopped leaves nothing, one that is
killed a hidden temporary file.

CSV is for spreadsheets, which evaluate a text that begins with = + - or @: such a text gets an apostrophe in front, so
that no document can run anything on the machine of a person who looks at it; the caller is told how many there are.
JSON lines and Parquet hold every text as it is.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import zstandard

from pipeline.base.errors import ConfigError
from pipeline.base.formats import to_json
from pipeline.conditions.condition import Condition
from pipeline.console.progress import RowProgress
from pipeline.corpus.part_reader import Column, no_column
from pipeline.corpus.reader import Corpus
from pipeline.storage import layout
from pipeline.storage.replacing import replacing_file

FORMATS = (".parquet", ".csv", ".jsonl")
COMPRESSED: dict[str, Callable[[Any], Any]] = {  # writers of text formats; neither closes the file
    ".gz": lambda file: gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0),
    ".zst": lambda file: zstandard.ZstdCompressor().stream_writer(file, closefd=False),
}
# Written if they are asked for.
DOCUMENT_COLUMNS_LEFT_OUT = {"lang_confidence", "subdocument", "text_hash", "first_row", "rows"}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # without it, Excel takes UTF-8 for the code page of the machine
FORMULA = r"^\s*[=+\-@＝＋－＠]|^[\t\r\n]"  # East Asian spreadsheets also evaluate full-width signs


@dataclass(frozen=True)
class Extracted:
    """What was done: rows read and written, bytes of the file, and texts in CSV that got an apostrophe in front."""

    read: int
    written: int
    bytes: int
    quoted: int


def extract(
    corpus: Corpus,
    target: str,
    progress: RowProgress,
    *,
    where: Condition | None = None,
    columns: Sequence[str] = (),
    max_rows: int | None = None,
) -> Extracted:
    """Write the rows that satisfy `where`, in the order of the corpus; an existing file of this name is replaced.

    Args:
        corpus: the corpus.
        target: the file; its ending decides the format.
        progress: is told of rows read and written.
        where: a condition that rows must satisfy.
        columns: columns of `Corpus.catalogue`; if none is named, all scalar ones that describe the sentence.
        max_rows: read only about this many rows, the first ones.

    Returns:
        How many rows were read and written, and the size of the file.

    Raises:
        ConfigError: for a name or a column that cannot be written.
    """
    ending, compression = _format(target)
    names = tuple(columns) or _default_columns(corpus)
    _check(corpus, names, target, ending)
    if f"{_absolute(target)}/".startswith(f"{_absolute(corpus.url)}/"):
        raise ConfigError(f"--to {target} lies inside the corpus, whose files are never changed; give another place")
    done = Extracted(0, 0, 0, 0)
    with replacing_file(target) as file:
        with COMPRESSED[compression](file) if compression else contextlib.nullcontext(file) as sink:
            for done in _written(corpus, sink, ending, names, where, max_rows):
                progress.see(done.read, done.written)
        size = file.tell()
    return replace(done, bytes=size)


def stream(
    corpus: Corpus, target: str, *, where: Condition | None = None, columns: Sequence[str] = ()
) -> Iterator[bytes]:
    """Return the file that `extract` would write in pieces, one for each row group; a piece can be empty.

    Args:
        corpus: the corpus.
        target: a file name, whose ending decides the format; nothing is written.
        where: a condition that rows must satisfy.
        columns: columns of `Corpus.catalogue`; if none is named, all scalar ones that describe the sentence.

    Returns:
        The pieces. `ConfigError` is raised at once for a name or a column that cannot be written.
    """
    ending, compression = _format(target)
    names = tuple(columns) or _default_columns(corpus)
    _check(corpus, names, target, ending)
    return _pieces(corpus, ending, compression, names, where)


def _pieces(
    corpus: Corpus, ending: str, compression: str | None, names: tuple[str, ...], where: Condition | None
) -> Iterator[bytes]:
    file = _PieceSink()
    with COMPRESSED[compression](file) if compression else contextlib.nullcontext(file) as sink:
        for _ in _written(corpus, sink, ending, names, where, None):
            yield file.taken()
    yield file.taken()


class _PieceSink(io.RawIOBase):
    """A file whose bytes are taken as soon as they are written."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._bytes

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        found = b"".join(self._pieces)
        self._pieces.clear()
        return found


def _written(
    corpus: Corpus, sink: Any, ending: str, names: tuple[str, ...], where: Condition | None, max_rows: int | None
) -> Iterator[Extracted]:
    """Write rows, and yield after each row group what was done so far (bytes are not counted)."""
    schema = corpus.schema(*names)
    texts = [one.name for one in _flat(schema, ending) if ending == ".csv" and pa.types.is_string(one.type)]
    read = written = quoted = 0
    with contextlib.closing(_WRITERS[ending](sink, _flat(schema, ending))) as writer:  # before the file, in any case
        for batch in corpus.batches(*names, where=where, max_rows=max_rows):
            read += batch.rows
            written += batch.table.num_rows
            if batch.table.num_rows:
                table, changed = _without_formulas(_flattened(batch.table, ending), texts)
                writer.write(table)
                quoted += changed
            yield Extracted(read, written, 0, quoted)


def _format(target: str) -> tuple[str, str | None]:
    stem, dot, last = target.lower().rpartition(".")
    compression = dot + last if dot + last in COMPRESSED else None
    ending = next((one for one in FORMATS if (stem if compression else target.lower()).endswith(one)), None)
    if ending is None or (compression and ending == ".parquet"):
        raise ConfigError(
            f"--to {target}: the ending of the name decides the format; allowed: {' '.join(FORMATS)}, "
            f"and .csv and .jsonl with {' or '.join(COMPRESSED)} after it"
        )
    return ending, compression


def _is_vector(column: Column, ending: str) -> bool:
    """Return whether a format cannot hold the column. CSV holds kept lists and structs as JSON: they are no vectors."""
    return ending != ".parquet" and pa.types.is_nested(column.type) and column.family != "documents"


def _default_columns(corpus: Corpus) -> tuple[str, ...]:
    return tuple(
        column.name
        for column in corpus.catalogue.values()
        if not _is_vector(column, ".jsonl") and column.name not in DOCUMENT_COLUMNS_LEFT_OUT
    )


def _check(corpus: Corpus, names: Sequence[str], target: str, ending: str) -> None:
    corpus.check_has_parts()
    for name in names:
        if name not in corpus.catalogue:
            raise ConfigError(f"--columns: {no_column(name, corpus.catalogue)}")
        if _is_vector(corpus.catalogue[name], ending):
            raise ConfigError(f"--to {target}: {name} holds a vector per row, which only .parquet takes; leave it out")
    if len(set(names)) < len(names):
        raise ConfigError(f"--columns {','.join(names)}: a column is repeated; name each once")


def _absolute(url: str) -> str:
    return url.rstrip("/") if "://" in url else os.path.realpath(url)


def _without_formulas(table: pa.Table, texts: Sequence[str]) -> tuple[pa.Table, int]:
    """Return the table with an apostrophe before texts that a spreadsheet would evaluate, and their number."""
    total = 0
    for name in texts:
        found = pc.match_substring_regex(table[name], FORMULA)
        count = pc.sum(found).as_py()
        if count:
            harmless = pc.if_else(found, pc.binary_join_element_wise("'", table[name], ""), table[name])
            table = table.set_column(table.column_names.index(name), table.field(name), harmless)
            total += count
    return table, total


def _flat(schema: pa.Schema, ending: str) -> pa.Schema:
    """Return the schema with text for types that CSV has no form for."""
    nested = {field.name for field in schema if ending == ".csv" and pa.types.is_nested(field.type)}
    return pa.schema([pa.field(one.name, pa.string()) if one.name in nested else one for one in schema])


def _flattened(table: pa.Table, ending: str) -> pa.Table:
    """Return the table in the schema of `_flat`: lists and structs as JSON."""
    for place, (mine, flat) in enumerate(zip(table.schema, _flat(table.schema, ending), strict=True)):
        if mine != flat:
            values = (None if one is None else to_json(one) for one in table.column(place).to_pylist())
            table = table.set_column(place, flat, pa.array(values, flat.type))
    return table


class _FragmentWriter(Protocol):
    def __init__(self, sink: Any, schema: pa.Schema) -> None: ...
    def write(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


class _Parquet:
    """Writes Parquet; small tables are collected into row groups of the usual size."""

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        options = layout.parquet_options(schema.empty_table())
        options.pop("row_group_size")
        self._writer = pq.ParquetWriter(sink, schema, **options)
        self._waiting: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        if sum(one.num_rows for one in self._waiting) >= layout.ROW_GROUP_ROWS:
            table = pa.concat_tables(self._waiting)
            whole = table.num_rows // layout.ROW_GROUP_ROWS * layout.ROW_GROUP_ROWS
            self._writer.write_table(table.slice(0, whole), layout.ROW_GROUP_ROWS)
            self._waiting = [table.slice(whole)]

    def close(self) -> None:
        if any(one.num_rows for one in self._waiting):
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._writer.close()


class _Csv:
    """Writes CSV: a header, then rows; null is nothing, an empty text is ""."""

    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        sink.write(BYTE_ORDER_MARK)
        self._writer = pyarrow.csv.CSVWriter(sink, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()


class _JsonLines:
    def __init__(self, sink: Any, schema: pa.Schema) -> None:
        self._sink = sink

    def write(self, table: pa.Table) -> None:
        lines = (to_json(row) + "\n" for row in table.to_pylist())
        self._sink.write("".join(lines).encode())

    def close(self) -> None:
        pass


_WRITERS: dict[str, type[_FragmentWriter]] = {".parquet": _Parquet, ".csv": _Csv, ".jsonl": _JsonLines}
