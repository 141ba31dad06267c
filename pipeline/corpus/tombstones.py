"""Tombstones: the record of purged documents, which every reader and every segmenter respects.

`tombstones/<time>-<id>.parquet` is created by `pipeline purge` and never changed: one row for each id and chunk that
held it then, and one without a chunk for an id that no document had. Readers leave out the rows of such documents at
once. The fingerprint of a chunk in which an id was found changes, so that a run segments exactly these chunks again,
without the documents. Documents that are added later under a purged id are left out when their chunk is segmented.

When nothing of the documents is left on disk, `<tombstone>.erased` is created with the digest of the tombstone: then
readers need not look at the tombstone any more, and a run notices when it is lost or not the same, which would bring
the documents back from their input. (Earlier versions created an empty file.) Cost: one listing, and one read per
file, whenever a corpus is opened.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.base.errors import DamagedError
from pipeline.corpus.fingerprint import content_digest
from pipeline.storage.records import Values, read_json, read_table, sealed
from pipeline.storage.store import Store

FOLDER = "tombstones"
ERASED = ".erased"  # ends the name of a record that all documents of a tombstone are erased
_INDEXES, _EXPORTS = "indexes", "exports"
NONE: frozenset[str] = frozenset()
_REMEDY = (
    "it says which documents were purged: restore it from a copy, or delete it and purge the same ids again "
    "(--in-advance)"
)
_SCHEMA = pa.schema([pa.field("doc_id", pa.string(), nullable=False), pa.field("chunk", pa.string())])


@dataclass(frozen=True)
class Tombstones:
    """The purged documents.

    `ids`: all ids ever purged; `by_chunk`: the ids that a chunk held when they were purged; `paths`: all tombstones
    that were there.
    """

    ids: frozenset[str] = NONE
    by_chunk: Mapping[str, frozenset[str]] = field(default_factory=dict)
    paths: frozenset[str] = NONE

    def of(self, chunk: str) -> frozenset[str]:
        """Return the purged ids that files of this chunk may still hold."""
        return self.by_chunk.get(chunk, NONE)


def read_tombstones(store: Store, *, waiting: bool = False) -> Tombstones:
    """Read the tombstones of a corpus; with `waiting`, only those of which something may be left on disk.

    Raises `CorpusError` for a damaged or lost file: continuing without it would show what was purged.
    """
    present = set(store.find(FOLDER))
    for path in sorted(path.removesuffix(ERASED) for path in present if path.endswith(ERASED)):
        if not waiting and path not in present:
            remedy = f"restore it from a copy; or delete {path}{ERASED}, and purge the same ids again (--in-advance)"
            raise DamagedError(f"{store.url}/{path}", "it is missing, and says which documents were purged", remedy)
    ids: set[str] = set()
    by_chunk: dict[str, set[str]] = {}
    for path in sorted(present):
        if path.endswith(".parquet") and not (waiting and path + ERASED in present):
            table = _table(store, path, path + ERASED in present)
            for doc_id, chunk in zip(table["doc_id"].to_pylist(), table["chunk"].to_pylist(), strict=True):
                ids.add(doc_id)
                if chunk is not None:
                    by_chunk.setdefault(chunk, set()).add(doc_id)
    paths = frozenset(path for path in present if path.endswith(".parquet"))
    return Tombstones(frozenset(ids), {chunk: frozenset(found) for chunk, found in by_chunk.items()}, paths)


def create_tombstone(
    store: Store,
    ids: Collection[str],
    by_chunk: Mapping[str, Collection[str]],
    source: str,
    indexes: Collection[str] = (),
    exports: Collection[str] = (),
) -> str:
    """Record a purge, and return the path of the record.

    Args:
        store: the corpus.
        ids: the purged ids.
        by_chunk: chunk → the ids that it held.
        source: where the ids came from, for instance a file.
        indexes: the training indexes that hold such documents.
        exports: the names of records of exports that hold such documents.

    Returns:
        The path of the record.
    """
    rows: list[tuple[str, str | None]] = [
        (doc_id, chunk) for chunk, found in sorted(by_chunk.items()) for doc_id in sorted(found)
    ]
    found = {doc_id for doc_id, _ in rows}
    rows += [(doc_id, None) for doc_id in sorted(set(ids) - found)]
    table = pa.table(
        {"doc_id": [doc_id for doc_id, _ in rows], "chunk": [chunk for _, chunk in rows]},
        schema=_SCHEMA.with_metadata(
            {"source": source, _INDEXES: ",".join(sorted(indexes)), _EXPORTS: ",".join(sorted(exports))}
        ),
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    path = f"{FOLDER}/{datetime.now(UTC).strftime('%Y%m%dT%H%M%S.%f')}-{secrets.token_hex(3)}.parquet"
    store.create(path, sink.getvalue().to_pybytes())
    return path


def tombstone_paths(store: Store) -> frozenset[str]:
    """Return the paths of all tombstones."""
    return frozenset(path for path in store.find(FOLDER) if path.endswith(".parquet"))


def purged_from(store: Store) -> frozenset[str]:
    """Return the indexes (twelve digits each) and records of exports that hold documents which were purged later."""
    found: set[str] = set()
    for path in tombstone_paths(store):
        metadata = _table(store, path).schema.metadata or {}
        for key in (_INDEXES, _EXPORTS):
            found.update(metadata.get(key.encode(), b"").decode("utf-8", "replace").split(","))
    return frozenset(found - {""})


def mark_erased(store: Store, by_chunk_left: Collection[str]) -> None:
    """Mark each tombstone of which no chunk is left as erased."""
    present = set(store.find(FOLDER))
    for path in sorted(present):
        if path.endswith(".parquet") and path + ERASED not in present:
            table = _table(store, path)
            if not set(table["chunk"].to_pylist()).intersection(by_chunk_left):
                store.create(path + ERASED, sealed(json.dumps({"tombstone": content_digest(store.read(path))})))


def check_tombstone(store: Store, path: str) -> None:
    """Read a tombstone. Raises `CorpusError` if it is damaged."""
    _table(store, path, store.exists(path + ERASED))


def read_erased(store: Store, path: str) -> str:
    """Return the digest of a tombstone that its record of erasure names, or nothing if an earlier version wrote it.

    Raises `DamagedError` if the record is damaged.
    """
    if not store.read(path):
        return ""
    digest = read_json(store, path, Values, "delete it: the next run makes it again").get("tombstone")
    if not isinstance(digest, str):
        raise DamagedError(f"{store.url}/{path}", "it names no tombstone", "delete it: the next run makes it again")
    return digest


def _table(store: Store, path: str, erased: bool = False) -> pa.Table:
    if erased:
        digest = ""
        with contextlib.suppress(DamagedError):  # which spoils nothing; `verify` tells it
            digest = read_erased(store, path + ERASED)
        if digest and content_digest(store.read(path)) != digest:
            raise DamagedError(f"{store.url}/{path}", f"it is not the tombstone that {path}{ERASED} names", _REMEDY)
    return read_table(store, path, _SCHEMA, _REMEDY)
