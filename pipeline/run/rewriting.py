"""Writes a chunk again without its purged documents, from the rows that are there: nothing is read or segmented again.

Where nothing but purged documents distinguishes a chunk from its earlier version, the parts of that version have every
row that is left. Files of a part that holds purged documents are read and must match their digests; these documents are
left out, the others are renumbered, and the accounting moves the purged ones from *kept* or *quarantined* to *dropped*.
Other parts get a receipt that names the files they have. The rows are those that segmenting the input again would give.
It is segmented instead where that cannot be told from what is there: a file is missing or damaged, more records were
quarantined than are listed, a count in a receipt does not say which documents it counted, or a purged document may be
why a kept column has its type. Cost: reading the documents of the chunk and the schema of Parquet input, and reading
and writing documents and sentences of the parts that held one.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import CorpusError
from pipeline.corpus.counters import MISFITS
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.receipts import (
    COPIED,
    REPEATED,
    ChunkReceipt,
    PartRef,
    Receipt,
    read_chunk_receipt,
    read_receipt,
    summed,
)
from pipeline.corpus.recipes import SEGMENT, Recipes
from pipeline.inputs import Chunk
from pipeline.run.chunk_accounting import LISTED, PURGED
from pipeline.run.open_part import OpenPart, read_file
from pipeline.storage import layout
from pipeline.storage.records import sealed
from pipeline.storage.store import Store

_COUNTED_HERE = {
    "documents",
    "tokens",
    "split_documents",
    COPIED,
    REPEATED,
}  # counts of a part's receipt that are made again


@dataclass(frozen=True)
class PartBefore:
    """A part of the earlier version. `touched`: whether it holds purged documents."""

    number: int
    receipt: Receipt
    touched: bool


@dataclass(frozen=True)
class PartLeft:
    """What is left of a part, and the counts of its receipt."""

    documents: pa.Table
    sentences: pa.Table
    counts: dict[str, float]


@dataclass(frozen=True)
class Rewriting:
    """How a chunk is written again.

    gone: the ids that leave it; documents: how many leave its parts; reasons: why records that leave its list of
    quarantined ones were there; quarantine: the rest of that list.
    """

    before: ChunkReceipt
    parts: tuple[PartBefore, ...]
    gone: pa.Array
    documents: int
    reasons: Counter[str]
    quarantine: pa.Table | None


def version_before(store: Store, chunk: Chunk, now: str, recipe: str) -> ChunkReceipt | None:
    """Return the receipt of an earlier version of a chunk, preferably one under the same recipe.

    A receipt that cannot be read counts as missing: `pipeline verify` reports it. This costs one listing.

    Args:
        store: the corpus.
        chunk: the chunk.
        now: its present fingerprint.
        recipe: the digest of its present recipe.

    Returns:
        The receipt; None if the chunk is new.
    """
    found: list[ChunkReceipt] = []
    for path in store.find("chunks", prefix=f"{chunk.id[:2]}/{chunk.id}."):
        with contextlib.suppress(CorpusError):
            found.append(read_chunk_receipt(store, path))
    others = [one for one in found if one.fingerprint != now]
    return max(others, key=lambda one: (one.recipe == recipe, one.created), default=None)


def rewriting(
    store: Store, recipes: Recipes, chunk: Chunk, before: ChunkReceipt, keeps_types: Callable[[Receipt, pa.Table], bool]
) -> Rewriting | None:
    """Say how to write a chunk again from its earlier version, if purged documents are the only difference.

    Args:
        store: the corpus; `CorpusError` is raised if a file of that version is missing or damaged.
        recipes: the recipes of the run, with its tombstones.
        chunk: the chunk.
        before: the receipt of the earlier version.
        keeps_types: says whether the kept columns of a part have the same types if only these documents are left of it.

    Returns:
        What is to be copied; None if the chunk has to be segmented again.
    """
    purged = recipes.tombstones.of(chunk.id)
    same = (before.recipe, before.stamp, before.take) == (
        fingerprint(recipes.segment[chunk.input]),
        chunk.stamp,
        chunk.take,
    )
    if not purged or not same:
        return None
    gone = pa.array(sorted(purged), pa.string())
    parts, leaving = [], []
    for ref in before.parts:
        receipt = read_receipt(store, layout.receipt_path(SEGMENT, ref.part, ref.fingerprint))
        documents = OpenPart(store, receipt).family("documents")
        found, left = _of_ids(documents, gone), documents.filter(pc.invert(_is_of(documents, gone)))
        misfits = any(key.startswith(MISFITS) for key in receipt.counts)
        if found.num_rows and left.num_rows and (misfits or not keeps_types(receipt, left)):
            return None
        parts.append(PartBefore(layout.part_number(ref.part), receipt, found.num_rows > 0))
        leaving.append(found.select(["doc_id", "subdocument"]))
    listed = read_file(store, before.quarantine) if before.quarantine else None
    records = _of_ids(listed, gone) if listed is not None else None
    if listed is not None and (listed.num_rows > LISTED or set(_column(records, "records")) - {1}):
        return None
    ids = {one for table in leaving for one in _column(table, "doc_id")} | set(_column(records, "doc_id"))
    if before.fingerprint != recipes.chunk_fingerprint(chunk, purged - ids):
        return None
    return Rewriting(
        before,
        tuple(parts),
        gone,
        documents=sum(_column(table, "subdocument").count(0) for table in leaving),
        reasons=Counter(_column(records, "reason")),
        quarantine=None if listed is None else listed.filter(pc.invert(_is_of(listed, gone))),
    )


def same_part(store: Store, part: PartBefore, now: str) -> Receipt:
    """Create the receipt of a part that held no purged document, over the files that it has.

    Args:
        store: the corpus.
        part: the part in its earlier version.
        now: its present fingerprint.

    Returns:
        The receipt that exists.

    Raises:
        CorpusError: if an earlier attempt left a receipt of other rows.
    """
    receipt = part.receipt.model_copy(
        update={
            "fingerprint": now,
            "counts": {**part.receipt.counts, COPIED: float(part.receipt.rows)},
            "created": time.time(),
        }
    )
    path = layout.receipt_path(SEGMENT, receipt.part, now)
    if store.create(path, sealed(receipt.model_dump_json())):
        return receipt
    first = read_receipt(store, path)
    if first.columns != receipt.columns:
        raise CorpusError(f"{path} was written before with other rows: delete that file and run again")
    return first


def part_left(store: Store, part: PartBefore, gone: pa.Array) -> PartLeft | None:
    """Return what is left of a part that held purged documents.

    Args:
        store: the corpus.
        part: the part in its earlier version.
        gone: the purged ids, sorted.

    Returns:
        Documents and sentences with new numbers; None if no document is left.

    Raises:
        CorpusError: if the files are not what they were.
    """
    before = OpenPart(store, part.receipt)
    documents, sentences = before.family("documents"), before.family("sentences")
    documents = documents.filter(pc.invert(_is_of(documents, gone)))
    sentences = sentences.filter(pc.is_in(sentences["doc"], value_set=documents["doc"].combine_chunks()))
    if not documents.num_rows:
        return None
    rows = documents["rows"].to_numpy()
    if rows.sum() != sentences.num_rows:
        raise CorpusError(f"part {part.receipt.part}: its documents and its sentences do not match")
    owners = np.searchsorted(documents["doc"].to_numpy(), sentences["doc"].to_numpy())  # the old numbers are in order
    documents = _with(documents, "doc", np.arange(documents.num_rows))
    documents = _with(documents, "first_row", np.cumsum(rows) - rows)
    sentences = _with(sentences, "doc", owners)
    split = float((documents["subdocument"].to_numpy() > 0).sum())
    counts = {key: value for key, value in part.receipt.counts.items() if key not in _COUNTED_HERE}
    counts |= {
        "documents": float(documents.num_rows),
        "tokens": float(sentences["tokens"].to_numpy().sum()),
        COPIED: float(sentences.num_rows),
    }
    return PartLeft(documents, sentences, counts | ({"split_documents": split} if split else {}))


def chunk_left(rewriting: Rewriting, now: str, parts: Sequence[Receipt]) -> ChunkReceipt:
    """Return the accounting of a chunk that was written again, without its list of quarantined records.

    Args:
        rewriting: how the chunk was written again.
        now: its present fingerprint.
        parts: the receipts of its parts.

    Returns:
        The chunk's receipt.
    """
    before = rewriting.before
    left = Counter(before.quarantined)
    left.subtract(rewriting.reasons)
    gone = rewriting.documents + rewriting.reasons.total()
    sentences = sum(one.rows for one in parts)
    return before.model_copy(
        update={
            "fingerprint": now,
            "parts": [PartRef(part=one.part, fingerprint=one.fingerprint) for one in parts],
            "kept": before.kept - rewriting.documents,
            "dropped": before.dropped | {PURGED: before.dropped.get(PURGED, 0) + gone},
            "quarantined": {reason: count for reason, count in left.items() if count},
            "quarantine": None,
            "sentences": sentences,
            "counts": {key: value for key, value in summed([one.counts for one in parts]).items() if key != REPEATED},
            "seconds": round(before.seconds * sentences / max(1, before.sentences), 3),
            "created": time.time(),
        }
    )


def _is_of(table: pa.Table, ids: pa.Array) -> pa.ChunkedArray:
    return pc.is_in(table["doc_id"], value_set=ids)


def _of_ids(table: pa.Table, ids: pa.Array) -> pa.Table:
    return table.filter(_is_of(table, ids))


def _column(table: pa.Table | None, name: str) -> list[Any]:
    return table[name].to_pylist() if table is not None else []


def _with(table: pa.Table, name: str, values: npt.NDArray[Any]) -> pa.Table:
    """Return a table with other values in a column of integers."""
    at = table.schema.get_field_index(name)
    return table.set_column(at, table.schema.field(at), pa.array(values.astype(np.int32)))
