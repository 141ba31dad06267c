"""What chunks gave when they were segmented before, under whatever recipe or with whatever stamp of their file."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.counters import CHUNK
from pipeline.corpus.ledger import LedgerGoneError
from pipeline.corpus.receipts import ChunkReceipt, read_chunk_receipt
from pipeline.corpus.recipes import SEGMENT
from pipeline.corpus.states import States
from pipeline.storage import layout
from pipeline.storage.store import Store


@dataclass(frozen=True, slots=True)
class Earlier:
    """An earlier segmentation of a chunk. `row`: its row in the ledgers, if it comes from there; otherwise `content`
    and `tokens` are known.
    """

    chunk: str
    fingerprint: str
    recipe: str
    sentences: int
    stamp: str
    take: int | None
    created: float
    content: str = ""
    tokens: float = 0.0
    row: int = -1

    def content_in(self, state: States) -> str:
        """Return a digest of what the chunk was read from, as its receipt says; empty if an earlier version wrote the
        receipt.

        Asked in the order of rows, it reads ledgers once.
        """
        return self.content if self.row < 0 else self._receipt(state).content

    def documents_in(self, state: States) -> int:
        """Return how many documents its receipt says it had."""
        return self._receipt(state).documents_in

    def _receipt(self, state: States) -> ChunkReceipt:
        if self.row >= 0:
            with contextlib.suppress(LedgerGoneError):  # compacted since: the receipt says the same
                return state.ledgers.detail(self.row)[0]
        return read_chunk_receipt(state.store, layout.chunk_receipt_path(self.chunk, self.fingerprint))


EarlierChunks = dict[int, list[Earlier]]  # number among some chunks → the times that it was segmented


def in_ledgers(state: States, ids: pa.Array) -> EarlierChunks:
    """Return what ledgers say of chunks."""
    ledgers, found = state.ledgers, defaultdict[int, list[Earlier]](list)
    if not len(ledgers):
        return found
    table = ledgers.columns("chunk", "fingerprint", "stamp", "take", "created")
    owners = pc.index_in(table["chunk"], value_set=ids).combine_chunks()
    mine = np.flatnonzero(owners.is_valid().to_numpy(zero_copy_only=False))
    some = table.take(pa.array(mine)).append_column("owner", owners.take(pa.array(mine)))
    for row, one in zip(mine.tolist(), some.to_pylist(), strict=True):
        recipe, sentences = ledgers.recipes[ledgers.recipe[row]][CHUNK]["recipe"], int(ledgers.sentences[row])
        stamp, take, created = (one[name] for name in ("stamp", "take", "created"))
        found[one["owner"]].append(
            Earlier(one["chunk"], one["fingerprint"].hex(), recipe, sentences, stamp, take, created, row=row)
        )
    return found


def tokens_per_sentence(state: States, times: Sequence[Earlier]) -> float | None:
    """Return the tokens of an average sentence of earlier segmentations; None if none has sentences."""
    groups = np.full(len(state.ledgers), -1, np.int64)
    groups[[one.row for one in times if one.row >= 0]] = 0
    (counters,) = state.ledgers.counters(groups, 1)
    read = [one for one in times if one.row < 0]
    tokens = counters.get(f"{SEGMENT}/counts/tokens", 0.0) + sum(one.tokens for one in read)
    sentences = counters.get(f"{SEGMENT}/rows", 0.0) + sum(one.sentences for one in read)
    return tokens / sentences if tokens and sentences else None


def in_receipts(store: Store, ids: pa.Array, known: Collection[int]) -> EarlierChunks:
    """Return what receipts say of chunks.

    Args:
        store: the corpus.
        ids: the ids of the chunks of the view.
        known: the numbers of chunks that are left out.

    Returns:
        Number of a chunk → its earlier segmentations.
    """
    found = defaultdict[int, list[Earlier]](list)
    for folder in store.folders("chunks"):
        paths = store.find("chunks", f"{folder}/")
        owners = pc.index_in(pa.array([layout.data_owner(path)[0] for path in paths], pa.string()), value_set=ids)
        for path, owner in zip(paths, owners.to_pylist(), strict=True):
            if owner is not None and owner not in known:
                one = read_chunk_receipt(store, path)
                tokens = one.counts.get("tokens", 0.0)
                read = one.recipe, one.sentences, one.stamp, one.take, one.created, one.content, tokens
                found[owner].append(Earlier(one.chunk, one.fingerprint, *read))
    return found
