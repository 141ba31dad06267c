"""Documents that are left out because an earlier document of the corpus has the same id (`duplicate_ids: keep-first`).

They are determined before anything is segmented (`pipeline/run/compare_ids.py`), for all chunks of a run, and recorded
in `ids/duplicates-<time>-<digest>.parquet`: chunk, id, and where the first document with this id is. The digest is of
what was compared, so the same inputs always have the same record. A chunk's fingerprint includes what is left out of
it, so only chunks that lose or regain a document are segmented again. Memory: the ids that are left out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.base.errors import DamagedError
from pipeline.corpus.fingerprint import column_digest
from pipeline.storage.records import read_table, said_of
from pipeline.storage.store import Store

if TYPE_CHECKING:
    from pipeline.config.run_config import RunConfig

FOLDER = "ids"
SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("chunk", "doc_id", "first")])
RUN_SCHEMA = pa.schema(
    [
        pa.field("hash", pa.uint32(), nullable=False),
        pa.field("chunk", pa.int32(), nullable=False),  # its place in the list of the file's metadata
        pa.field("count", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
    ]
)
_RECORD = "duplicates-"
_KEYS = b"chunks"
GROUP_IDS = 1 << 15
_REMEDY = "delete it, and run again: the next run reads those ids once more"


class Duplicates:
    """The ids that are left out of each chunk. `table` has the schema `SCHEMA` and is sorted by chunk and id."""

    def __init__(self, table: pa.Table | None = None) -> None:
        self.table = SCHEMA.empty_table() if table is None else table.combine_chunks()
        self._ranges: dict[str, tuple[int, int]] = {}
        if len(self.table):
            chunks = self.table["chunk"].combine_chunks().dictionary_encode()
            starts = np.flatnonzero(np.diff(chunks.indices.to_numpy(), prepend=-1)).tolist()
            ends = [*starts[1:], len(self.table)]
            self._ranges = dict(zip(chunks.dictionary.to_pylist(), zip(starts, ends, strict=True), strict=True))

    def of(self, chunk: str) -> Mapping[str, str]:
        """Return the ids that are left out of a chunk, each with the source of the document that is kept."""
        rows = self._rows(chunk)
        return dict(zip(rows["doc_id"].to_pylist(), rows["first"].to_pylist(), strict=True)) if rows else {}

    def digest(self, chunk: str) -> str | None:
        """Return a digest of the ids that are left out of a chunk; None if there are none."""
        rows = self._rows(chunk)
        return column_digest(rows["doc_id"]) if rows else None

    def _rows(self, chunk: str) -> pa.Table | None:
        if chunk not in self._ranges:
            return None
        start, end = self._ranges[chunk]
        return self.table.slice(start, end - start)


def read_duplicates(store: Store, path: str) -> Duplicates:
    """Read a record; the path is empty if there is none.

    Raises `MissingError` if the file does not exist, `DamagedError` if it is damaged.
    """
    return Duplicates(read_table(store, path, SCHEMA, _REMEDY)) if path else Duplicates()


def write_duplicates(store: Store, name: str, table: pa.Table) -> str:
    """Write the record of a comparison of document ids, unless it exists.

    Args:
        store: the corpus.
        name: the name of what was compared, as `record_name` returns it.
        table: the documents that are left out, with the columns of `SCHEMA`.

    Returns:
        The path of the record.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.cast(SCHEMA), sink, compression="zstd", use_dictionary=["chunk", "first"], write_page_checksum=True
    )
    path = f"{FOLDER}/{_RECORD}{name}.parquet"
    store.create(path, sink.getvalue().to_pybytes())
    return path


def sorted_run_of_ids(keys: list[str], table: pa.Table) -> memoryview:
    """Return the bytes of a sorted run: the ids of the chunks with these keys, sorted by hash."""
    table = table.sort_by("hash").replace_schema_metadata({_KEYS: json.dumps(keys)})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, row_group_size=GROUP_IDS, compression="zstd", use_dictionary=False, write_page_checksum=True
    )
    return memoryview(sink.getvalue())


def sorted_runs_of_ids(store: Store) -> list[str]:
    """Return the paths of the sorted runs, the oldest first."""
    return sorted(path for path in store.find(FOLDER) if path.endswith(".parquet") and _RECORD not in path)


@contextlib.contextmanager
def opened_sorted_run(store: Store, path: str) -> Iterator[tuple[pq.ParquetFile, list[str]]]:
    """Open a sorted run, and return it with the keys of its chunks.

    Raises `DamagedError` if the file is damaged, also when it is read later inside the `with` block.
    """
    try:
        with store.open(path) as file:
            opened = pq.ParquetFile(file, page_checksum_verification=True)
            keys = json.loads((opened.schema_arrow.metadata or {})[_KEYS])
            if not opened.schema_arrow.equals(RUN_SCHEMA) or not all(isinstance(key, str) for key in keys):
                raise ValueError("it is not a list of ids")
            yield opened, keys
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        raise DamagedError(f"{store.url}/{path}", said_of(error), _REMEDY) from error


def check_ids(store: Store, path: str) -> None:
    """Read a record or a sorted run. Raises `DamagedError` if it is damaged."""
    if _RECORD in path:
        read_duplicates(store, path)
    else:
        with opened_sorted_run(store, path) as (opened, _):
            opened.read(use_threads=False)


def records_of_duplicates(store: Store) -> list[str]:
    """Return the paths of all records of documents that are left out."""
    return [path for path in store.find(FOLDER) if path.startswith(f"{FOLDER}/{_RECORD}")]


def find_record(store: Store, digest: str) -> str:
    """Return the record of exactly these inputs.

    If there is none, return the newest one, which is right for most documents; if there is none at all, return an empty
    string.
    """
    records = records_of_duplicates(store)
    exact = [path for path in records if path.endswith(f"-{digest}.parquet")]
    return max(exact or records, default="")


def with_duplicates(config: RunConfig, path: str) -> RunConfig:
    """Return the configuration for a corpus with this record."""
    return config.with_frozen(replace(config.frozen, duplicates=path))


def sorted_rows(table: pa.Table) -> pa.Table:
    """Sort rows by chunk and id, as `Duplicates` needs them."""
    return table.take(pc.sort_indices(table, [("chunk", "ascending"), ("doc_id", "ascending")]))
