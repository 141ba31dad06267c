"""What a comparison of ids depends on: the chunks of inputs that name an id column, in the order of the inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config.run_config import RunConfig
from pipeline.corpus.document_ids import find_record, with_duplicates
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import reading_recipe
from pipeline.inputs import Chunk, ChunkTable
from pipeline.storage.store import Store

DIGITS = 16


def compares_ids(config: RunConfig) -> bool:
    """Return whether ids are compared over the whole corpus before anything is segmented."""
    return config.duplicate_ids in ("error", "keep-first") and any(one.id for one in config.input)


def compared_chunks(config: RunConfig, chunks: ChunkTable) -> ChunkTable:
    """Return the chunks of inputs that name an id column, ordered by input, path and record."""
    order = {str(one.name): number for number, one in enumerate(config.input) if one.id}
    inputs = chunks.table["input"].combine_chunks()
    rank_of = np.asarray([order.get(name, -1) for name in inputs.dictionary.to_pylist()], np.int64)
    ranks = rank_of[inputs.indices.to_numpy()]
    keys = pa.table({"input": ranks, "path": chunks.table["path"].cast(pa.string()), "start": chunks.table["start"]})
    sorted_ = pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names]).to_numpy()
    return chunks.take(sorted_[ranks[sorted_] >= 0])


def compared_digest(config: RunConfig, ordered: ChunkTable) -> tuple[list[str], str]:
    """Return a key of what each chunk's ids depend on, and a digest of all of them in order."""
    recipes = {str(one.name): fingerprint(reading_recipe(config, one)) for one in config.input}
    keys = [
        fingerprint([recipes[name], *rest])
        for lists in ordered.columns("input", "id", "start", "end", "take", "stamp")
        for name, *rest in zip(*lists, strict=True)
    ]
    return keys, hashlib.blake2b("".join(keys).encode(), digest_size=DIGITS // 2).hexdigest()


def with_known_duplicates(store: Store, config: RunConfig, chunks: Sequence[Chunk]) -> RunConfig:
    """Return the configuration with the record of what is left out of these chunks.

    If there is none yet, the newest record is used, which is right for all documents except new ones and those after
    them.
    """
    if not compares_ids(config):
        return config
    _, digest = compared_digest(config, compared_chunks(config, ChunkTable.of(chunks)))
    return with_duplicates(config, find_record(store, digest))
