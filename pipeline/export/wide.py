"""Plain Parquet for every reader: one row per sentence, with its text, document, scores and embedding side by side.

    data/train/<part>.parquet      data/validation/<part>.parquet      data/test/<part>.parquet

Columns are those of `pipeline/export/pieces.py`, and `embedding`. The types and encodings are those that DuckDB,
Polars, pandas, Arrow, Spark and Hugging Face `datasets` read: vectors are lists of float32 or float16 without
BYTE_STREAM_SPLIT, which some of them lack for these types. A float16 becomes a float32 exactly. The folders are named
after the splits, as `datasets` expects. Memory: a row group of each split.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.export.pieces import FIRST, ExportTask, Written, row_columns, rows_by_split
from pipeline.storage.export_target import ExportTarget


def write_wide(task: ExportTask, see: Callable[[str, pa.Table], None] | None = None) -> Written:
    """Write every selected sentence; `see` is shown (split, rows) as they are written.

    Raises `CorpusError` for a damaged file of the corpus.
    """
    written = task.written
    names = row_columns(task.selection.corpus, embedding=task.vectors != "none")
    for chosen in task.selection:
        with contextlib.ExitStack() as closing:  # all files of a part appear together, when the part is done
            writers: dict[str, _RowGroupWriter] = {}
            for split, rows in rows_by_split(task, chosen, names):
                table = _plain(rows, task.vectors, written)
                if split not in writers:
                    file = closing.enter_context(task.target.file(f"data/{split}/{chosen.part}.parquet"))
                    writer = _RowGroupWriter(file, table.schema, task.row_group_rows, written)
                    writers[split] = closing.enter_context(contextlib.closing(writer))
                writers[split].write(table)
                if see:
                    see(split, table)
    return written


def query(target: ExportTarget) -> str:
    """Return a sentence on how to read an export with DuckDB."""
    files = f"{target.url.replace('[', '[[]')}/data/*/*.parquet".replace("'", "''")  # [[] is a bracket in a pattern
    return f"DuckDB, for instance: SELECT count(*), avg(chars) FROM '{files}'"


def _plain(table: pa.Table, vectors: str, written: Written) -> pa.Table:
    """Return the table with vectors as lists that every reader supports, and small unsigned numbers as signed ones."""
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if pa.types.is_fixed_size_list(field.type):
            width = field.type.list_size
            value = pa.int32() if pa.types.is_integer(field.type.value_type) else pa.type_for_alias(vectors)
            kind = pa.list_(pa.field("element", value, nullable=False))
            column = column.combine_chunks()
            values = column.flatten().cast(value)
            column = pa.ListArray.from_arrays(
                pa.array(np.arange(len(column) + 1, dtype=np.int32) * width), values, type=kind
            )
            if field.name == "embedding":
                written.dim = width
        elif field.type == pa.uint8():
            column = column.cast(pa.int32())
        else:
            continue
        table = table.set_column(place, pa.field(field.name, column.type, field.nullable), column)
    return table


class _RowGroupWriter:
    """Writes one Parquet file in row groups of a given number of rows."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, row_group_rows: int, written: Written) -> None:
        self._file, self._written, self._most = file, written, row_group_rows
        repeated = [name for name in (*FIRST, "part") if name in schema.names]
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=repeated)
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def write(self, table: pa.Table) -> None:
        while self._rows + table.num_rows >= self._most:
            room = self._most - self._rows
            self._waiting.append(table.slice(0, room))
            table = table.slice(room)
            self._flush()
        self._waiting.append(table)
        self._rows += table.num_rows

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()
        self._written.files += 1
        self._written.bytes += self._file.tell()

    def _flush(self) -> None:
        table = pa.concat_tables(self._waiting)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._rows = [], 0
