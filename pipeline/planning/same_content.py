"""Chunks whose files have another time or version than when they were segmented, but the same content.

Such files were touched, copied, or loaded from somewhere again. Each is read once, and what its chunks hold is compared
with what their receipts say; where it is the same, they keep the stamp that they were segmented with, so that nothing
is done again. The next run records that, and later plans believe its view without reading.
Cost: nothing where no stamp has changed, or no receipt knows a digest; else one reading of these files, sixteen at a
time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from pipeline.base.errors import CorpusError
from pipeline.base.parallel import in_parallel
from pipeline.config.run_config import RunConfig
from pipeline.corpus.fingerprint import fingerprint
from pipeline.corpus.recipes import Recipes
from pipeline.corpus.runs import newest_view
from pipeline.corpus.states import States
from pipeline.inputs import Chunk, ChunkTable, files_of
from pipeline.inputs.counting import content_digest
from pipeline.inputs.records import needed_columns
from pipeline.planning.earlier import Earlier, EarlierChunks, in_ledgers, in_receipts
from pipeline.storage.remote import translate_errors
from pipeline.storage.store import Store


@dataclass(frozen=True)
class Recognised:
    """All chunks, in their order, and how many `files` were read and found unchanged."""

    chunks: ChunkTable
    files: int


def recognise(state: States, config: RunConfig) -> Recognised | None:
    """Find chunks that are to be segmented only because their files have other stamps; None if there are none.

    Raises `InputError` if a file changes while it is read.
    """
    left = state.unsegmented()
    earlier = _by_stamp_alone(state, left, Recipes.of(config)) if len(left) else {}
    if not earlier:
        return None
    rows, chunks = sorted(earlier), left.take(pa.array(sorted(earlier), pa.int64()))
    known = _recorded(state.store)
    columns = {one.input_name: (one.path, tuple(needed_columns(one, config.split))) for one in config.input}
    times = sorted((one for several in earlier.values() for one in several), key=lambda one: (one.row, one.created))
    contents = {one.fingerprint: one.content_in(state) for one in times}

    def compare(row: int, chunk: Chunk) -> tuple[str, bool]:
        """Return the stamp that the chunk was segmented with, or nothing, and whether the file was read to find out."""
        for one in earlier[row]:
            if known.get((chunk.id, chunk.current or chunk.stamp)) == one.fingerprint:
                return one.stamp, False
        said = {contents[one.fingerprint]: one.stamp for one in earlier[row]}
        if not any(content.startswith(f"{chunk.bytes}-") for content in said):
            return "", False
        path, names = columns[chunk.input]
        with translate_errors(path):
            return said.get(content_of(chunk, names), ""), True

    found = in_parallel(lambda pair: compare(*pair), list(zip(rows, chunks, strict=True)))
    same = {chunk.id: stamp for chunk, (stamp, _) in zip(chunks, found, strict=True) if stamp}
    if not same:
        return None
    read = [chunk for chunk, (stamp, was_read) in zip(chunks, found, strict=True) if stamp and was_read]
    return Recognised(
        ChunkTable.of(_with_stamp(chunk, same) for chunk in state.view.listed.chunks),
        len({(file.input, file.path) for chunk in read for file in files_of(chunk)}),
    )


@functools.lru_cache(1 << 16)  # a run plans several times
def content_of(chunk: Chunk, columns: tuple[str, ...]) -> str:
    """Return what the documents of a chunk depend on, as its receipt would state it."""
    return content_digest(chunk, columns)


def _with_stamp(chunk: Chunk, same: Mapping[str, str]) -> Chunk:
    if chunk.id not in same:
        return chunk
    return replace(chunk, stamp=same[chunk.id], current=chunk.current or chunk.stamp)  # recognised in an earlier plan


def _by_stamp_alone(state: States, chunks: ChunkTable, recipes: Recipes) -> EarlierChunks:
    """Return earlier segmentations that differ from the present ones only in the stamps of their files, and perhaps in
    documents that were purged since: then the chunk is written again from its rows.
    """

    def alike(found: EarlierChunks) -> EarlierChunks:
        some = sorted(found)
        pairs = zip(some, chunks.take(pa.array(some, pa.int64())), strict=True)
        kept = {
            row: [one for one in found[row] if one.stamp != chunk.stamp and _is_of(one, chunk, recipes)]
            for row, chunk in pairs
        }
        return {row: times for row, times in kept.items() if times}

    ids = chunks.table["id"].combine_chunks()
    found = alike(in_ledgers(state, ids))
    return found | alike(in_receipts(state.store, ids, found))


def _is_of(one: Earlier, chunk: Chunk, recipes: Recipes) -> bool:
    if one.fingerprint == recipes.chunk_fingerprint(replace(chunk, stamp=one.stamp)):
        return True
    purged_since = one.recipe == fingerprint(recipes.segment[chunk.input]) and one.take == chunk.take
    return purged_since and bool(recipes.tombstones.of(chunk.id))


def _recorded(store: Store) -> dict[tuple[str, str], str]:
    """Return what the newest view recognised: chunk and present stamp → fingerprint."""
    try:
        view = newest_view(store)
    except CorpusError:  # told by who opens it; reading the files again finds the same
        return {}
    return {(chunk.id, chunk.current): fingerprint for chunk, fingerprint in view.listed if chunk.current}
