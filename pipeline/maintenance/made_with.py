"""What was made with the files of a corpus and does not change with it: indexes, models trained on them, exports."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import CorpusError
from pipeline.corpus.exports import ExportRecord, exports_of, view_of
from pipeline.corpus.leftovers import live_files
from pipeline.corpus.reader import Corpus
from pipeline.corpus.states import SharedReading, read_state
from pipeline.storage import layout
from pipeline.storage.store import Store
from pipeline.training.status import training_statuses, without_record


def indexes_of(store: Store) -> list[str]:
    """Return the first twelve digits of the digests of all finished indexes."""
    names = (path.rpartition("/")[2] for path in store.find(layout.INDEXES))
    return sorted(name.removesuffix(".parquet") for name in names if name.count(".") == 1 and name.endswith(".parquet"))


def indexes_made_with(corpus: Corpus, files: Collection[str]) -> Iterator[str]:
    """Yield indexes (twelve digits each) that name one of these data files, or cannot be read, so that they might."""
    from pipeline.training.data.index import read_index
    from pipeline.training.data.snapshot import families_of

    wanted = pa.array(sorted(files), pa.string())
    for digest in indexes_of(corpus.store):
        try:
            parts = read_index(corpus, digest).parts
        except CorpusError:
            yield digest
            continue
        if any(pc.any(pc.is_in(parts[family], value_set=wanted)).as_py() for family in families_of(parts)):
            yield digest


def models_of(store: Store) -> Iterator[tuple[str, list[str] | None]]:
    """Yield trainings, each with the indexes of this corpus that it is pinned to; None if its record is damaged or
    gone.
    """
    from pipeline.training.record import read_started

    yield from ((run, None) for run in without_record(store))
    for one in training_statuses(store):
        try:
            pinned = read_started(store, one.run).pinned
        except CorpusError:
            yield one.run, None
        else:
            yield one.run, [index.digest[:12] for index in pinned.indexes if not index.url]


def models_made_with(store: Store, indexes: Collection[str]) -> list[str]:
    """Return trainings that are pinned to one of these indexes, or to one that is gone or not known, so that it might
    have been one of them.
    """
    known = set(indexes_of(store))
    return [
        run
        for run, pinned in models_of(store)
        if pinned is None or any(one in indexes or one not in known for one in pinned)
    ]


def exports_made_with(corpus: Corpus, chunks: Collection[str], files: Collection[str]) -> Iterator[ExportRecord]:
    """Yield exports that hold rows of one of these data files.

    Args:
        corpus: the corpus.
        chunks: the ids of the chunks that the files belong to.
        files: the paths of the data files.

    Yields:
        The record of an export; also of one whose files are not known any more.
    """
    wanted, shared = pa.array(sorted(chunks), pa.string()), SharedReading(corpus.store)
    for record in exports_of(corpus.store).records:
        try:
            view = view_of(corpus.store, record)
            there = view.listed.take(pc.indices_nonzero(pc.is_in(view.listed.chunks.table["id"], value_set=wanted)))
            seen = read_state(corpus.store, replace(view, chunks=there), shared=shared) if len(there) else []
        except CorpusError:
            yield record
            continue
        if any(not chunk.receipt or not set(live_files(chunk)).isdisjoint(files) for chunk in seen):
            yield record
