"""Finds ids with more than one document, over all inputs that name an id column, before anything is segmented.

The ids of a chunk are read once, by the reader that segmenting uses, and kept in sorted runs
(`ids/<time>-<id>.parquet`): later runs read only chunks that are new or changed. Then the sorted runs are compared, one
range of hashes after the other, so that memory holds about a million ids whatever the corpus has. The first document is
that of the first input in the file, the first path, the first record: it depends on the inputs alone, not on the order
in which chunks were segmented, on machines, or on earlier content of the corpus. Cost: 11 µs of CPU per document,
mostly to read it; ten million ids took 115 s, 730 MB of memory, and 84 MB on disk (`python -m benchmarks.ids`). One
process does it with every launcher: encoding the sentences of a document takes hundreds of times as long.
"""

from __future__ import annotations

import itertools
import secrets
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import CorpusError
from pipeline.base.formats import counted, number
from pipeline.base.parallel import prefetch
from pipeline.config.run_config import RunConfig
from pipeline.corpus.document_ids import (
    FOLDER,
    RUN_SCHEMA,
    SCHEMA,
    find_record,
    opened_sorted_run,
    records_of_duplicates,
    sorted_rows,
    sorted_run_of_ids,
    sorted_runs_of_ids,
    with_duplicates,
    write_duplicates,
)
from pipeline.corpus.reader import Corpus
from pipeline.corpus.recipes import compared_chunks, compared_digest, compares_ids
from pipeline.inputs import Chunk, ChunkTable, Document, Rejected, read_documents
from pipeline.inputs.chunk import PACKED
from pipeline.inputs.documents import short
from pipeline.storage.store import Store
from stages.arrow import columns_of_group
from stages.segment import marks
from stages.sonar.card import load_card

RUN_IDS = 1 << 20  # ids at which a sorted run is closed (at the end of a chunk), and those that memory holds
_TOLD = 3  # ids in a message
Tell = Callable[[str], object]


@dataclass(frozen=True)
class _SortedRun:
    """A sorted run of ids. `chunks`: the keys of its chunks."""

    path: str
    chunks: list[str]
    ids: int


def compare_ids(store: Store, config: RunConfig, chunks: ChunkTable, tell: Tell) -> RunConfig:
    """Return the configuration with the record of documents whose ids occurred before; the record is made if it does
    not exist.

    Args:
        store: the corpus.
        config: the configuration of the run.
        chunks: all chunks of the inputs.
        tell: is told what is done, a line at a time.

    Returns:
        The configuration itself if it does not compare ids. `CorpusError` is raised if an id occurs twice under
            `duplicate_ids: error`.
    """
    if not compares_ids(config):
        return config
    ordered = compared_chunks(config, chunks)
    keys, digest = compared_digest(config, ordered)
    record = find_record(store, digest)
    if record.endswith(f"-{digest}.parquet"):
        return with_duplicates(config, record)
    runs = _sorted_runs(store)
    known = {key for run in runs for key in run.chunks}
    new = [number for number, key in enumerate(keys) if key not in known]
    if new:
        tell(f"ids: reading those of {counted(len(new), 'chunk')}")
        runs += list(_write_sorted_runs(store, config, ((keys[number], ordered[number]) for number in new)))
    found = _compare(store, runs, {key: number for number, key in enumerate(keys)}, len(keys))
    if config.duplicate_ids == "error":
        _check_none(config, found, ordered)
    later = found.filter(pc.greater(found["rank"], found["first"]))
    ids = ordered.table["id"].combine_chunks()
    sources = pc.binary_join_element_wise(
        ordered.table["input"].cast(pa.string()), ordered.table["path"].cast(pa.string()), ":"
    ).combine_chunks()
    rows = sorted_rows(pa.table([ids.take(later["rank"]), later["id"], sources.take(later["first"])], schema=SCHEMA))
    if rows.num_rows:
        count = counted(pc.sum(later["count"]).as_py(), "document")
        tell(f"ids: {count} left out, because earlier chunks have documents with the same ids")
    name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{digest}"
    return with_duplicates(config, write_duplicates(store, name, rows))


def forget_ids(store: Store, config: RunConfig, chunks: Sequence[Chunk]) -> None:
    """Delete what was read of the ids of these chunks, and all records of what is left out, so that ids are read and
    compared again.

    Args:
        store: the corpus.
        config: the configuration of the run.
        chunks: the chunks, which may hold other documents now than their stamps say.
    """
    if not compares_ids(config) or not chunks:
        return
    stamps = [replace(one, stamp=stamp) for one in chunks for stamp in {one.stamp, one.current or one.stamp}]
    keys, _ = compared_digest(config, compared_chunks(config, ChunkTable.of(stamps)))
    read = [run.path for run in _sorted_runs(store) if not set(keys).isdisjoint(run.chunks)]
    for path in [*records_of_duplicates(store), *read]:
        store.delete(path)


def _check_none(config: RunConfig, found: pa.Table, chunks: ChunkTable) -> None:
    """Raise `CorpusError` if an id has more than one document. `found`: the result of `_compare`."""
    if not found.num_rows:
        return
    places: dict[str, list[str]] = {}
    order = pc.sort_indices(found, [("first", "ascending"), ("id", "ascending"), ("rank", "ascending")])
    for row in found.take(order.slice(0, 1000)).to_pylist():
        if len(places) <= _TOLD or row["id"] in places:
            places.setdefault(row["id"], []).extend(_sources(config, chunks[row["rank"]], row["id"], row["count"]))
    told = [f"{short(one)} ({' and '.join(where[:2])})" for one, where in list(places.items())[:_TOLD]]
    total, documents = len(pc.unique(found["id"])), number(pc.sum(found["count"]).as_py())
    raise CorpusError(
        f"{counted(total, 'id')} in more than one document ({documents} documents in all): "
        f"{', '.join(told)}{', …' if total > _TOLD else ''}; give "
        "every document its own, or set duplicate_ids to keep-first (the first document is kept) or keep-all"
    )


def _sources(config: RunConfig, chunk: Chunk, doc_id: str, count: int) -> list[str]:
    """Return the sources of up to two documents with an id; a chunk of several files is read to tell which."""
    if chunk.format != PACKED:
        return [chunk.source] * min(count, 2)
    found = (item for item in _documents(config, chunk) if item.doc_id == doc_id)
    return [item.source for item in itertools.islice(found, 2)]


def _sorted_runs(store: Store) -> list[_SortedRun]:
    found = []
    for path in sorted_runs_of_ids(store):
        with opened_sorted_run(store, path) as (opened, keys):
            found.append(_SortedRun(path, keys, opened.metadata.num_rows))
    return found


def _write_sorted_runs(store: Store, config: RunConfig, chunks: Iterator[tuple[str, Chunk]]) -> Iterator[_SortedRun]:
    """Read the ids of chunks; what has been read is kept when a run is stopped."""
    keys: list[str] = []
    tables: list[pa.Table] = []
    for key, chunk in chunks:
        ids = Counter(item.doc_id for item in _documents(config, chunk))
        columns = [
            [zlib.crc32(one.encode()) for one in ids],
            np.full(len(ids), len(keys), np.int32),
            list(ids.values()),
            list(ids),
        ]
        tables.append(
            pa.table([pa.array(one, f.type) for one, f in zip(columns, RUN_SCHEMA, strict=True)], schema=RUN_SCHEMA)
        )
        keys.append(key)
        if sum(map(len, tables)) >= RUN_IDS:
            yield _write_sorted_run(store, keys, tables)
            keys, tables = [], []
    if keys:
        yield _write_sorted_run(store, keys, tables)


def _write_sorted_run(store: Store, keys: list[str], tables: list[pa.Table]) -> _SortedRun:
    table = pa.concat_tables(tables)
    path = f"{FOLDER}/{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{secrets.token_hex(3)}.parquet"
    store.write(path, sorted_run_of_ids(keys, table))
    return _SortedRun(path, keys, table.num_rows)


def _documents(config: RunConfig, chunk: Chunk) -> Iterator[Document]:
    """Yield the documents of a chunk that have text."""
    settings = next(one for one in config.input if one.name == chunk.input)
    for item in read_documents(chunk, settings, config.split, load_card(config.segment.model).languages):
        if not isinstance(item, Rejected) and marks.VISIBLE.search(item.text):
            yield item


def _compare(store: Store, runs: list[_SortedRun], ranks: dict[str, int], chunks: int) -> pa.Table:
    """Return ids with more than one document: `id`, `rank` and `count` for every chunk they are in, and `first`.

    `ranks`: those of keys, in the order of the inputs. Each chunk is taken from one sorted run, even if several have
    read it.
    """
    taken = np.zeros(chunks, np.bool_)
    places: list[npt.NDArray[np.int64]] = []
    for run in runs:
        ours = np.asarray([ranks.get(key, -1) for key in run.chunks], np.int64)
        ours[(ours >= 0) & taken[ours]] = -1
        taken[ours[ours >= 0]] = True
        places.append(ours)
    ranges = max(1, -(-sum(run.ids for run, ours in zip(runs, places, strict=True) if (ours >= 0).any()) // RUN_IDS))
    edges = [(number << 32) // ranges for number in range(ranges + 1)]
    schema = pa.schema([("id", pa.string()), ("rank", pa.int64()), ("count", pa.int64()), ("first", pa.int64())])
    found = [schema.empty_table()]
    for low, high in itertools.pairwise(edges):
        some = [_range_of(store, run, ours, low, high) for run, ours in zip(runs, places, strict=True)]
        table = pa.concat_tables([schema.remove(3).empty_table(), *some]).combine_chunks()
        if not len(table):
            continue
        of_id = table["id"].combine_chunks().dictionary_encode().indices.to_numpy()
        rank, count = table["rank"].to_numpy(), table["count"].to_numpy()
        first = np.full(of_id.max() + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, of_id, rank)
        twice = np.bincount(of_id, count)[of_id] > 1
        found.append(table.append_column("first", pa.array(first[of_id])).filter(pa.array(twice)))
    return pa.concat_tables(found)


def _range_of(store: Store, run: _SortedRun, ours: npt.NDArray[np.int64], low: int, high: int) -> pa.Table:
    """Return the ids of a sorted run with a hash in [low, high), of the chunks that are taken from it."""
    with opened_sorted_run(store, run.path) as (opened, _):
        groups = []
        for number in range(opened.metadata.num_row_groups):
            statistics = columns_of_group(opened.metadata, number)[0].statistics
            if statistics and statistics.min < high and statistics.max >= low:  # an empty group has none
                groups.append(number)
        table = opened.read_row_groups(groups, use_threads=False)
    hashes, rank = table["hash"].to_numpy(), ours[table["chunk"].to_numpy()]
    mask = (hashes >= low) & (hashes < high) & (rank >= 0)
    columns = {"id": table["id"], "rank": pa.array(rank), "count": table["count"]}
    return pa.table(columns).filter(pa.array(mask))


@dataclass(frozen=True)
class DuplicateIds:
    """How many `ids` occur in more than one document, and in how many `documents` together."""

    ids: int
    documents: int


def count_duplicate_ids(corpus: Corpus, at_once: int = RUN_IDS) -> DuplicateIds:
    """Count the ids of several documents, of all documents that were kept; the pieces of a long one count as one.

    Ids are distributed to files of a temporary folder by their hashes, and each file is examined alone: memory holds
    about a million ids. Cost: reading the column `doc_id` of every part.
    """
    total = int(corpus.chunks.total.get("chunk/kept", 0))
    ranges = max(1, -(-total // at_once))
    if ranges == 1:
        return _count(pa.chunked_array(list(_ids(corpus)), pa.string()))
    schema = pa.schema([("id", pa.string())])
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, str(number)) for number in range(ranges)]
        writers = [pa.ipc.new_stream(str(path), schema) for path in paths]
        for ids in _ids(corpus):
            places = np.asarray([zlib.crc32(one.encode()) % ranges for one in ids.to_pylist()])
            for number in np.unique(places).tolist():
                some = ids.filter(pa.array(places == number))
                writers[number].write_table(pa.table([some], schema=schema))
        for writer in writers:
            writer.close()
        found = [_count(pa.ipc.open_stream(pa.memory_map(str(path))).read_all()["id"]) for path in paths]
    return DuplicateIds(sum(one.ids for one in found), sum(one.documents for one in found))


def _ids(corpus: Corpus) -> Iterator[pa.Array]:
    def read(part: str) -> pa.Array:
        with corpus.reader(part) as reader:
            table = reader.documents(["doc_id", "subdocument"])
        return table.filter(pc.equal(table["subdocument"], 0))["doc_id"].combine_chunks()

    return prefetch(read, corpus.parts)


def _count(ids: pa.ChunkedArray) -> DuplicateIds:
    counts = pc.value_counts(ids).field("counts").to_numpy()
    return DuplicateIds(int((counts > 1).sum()), int(counts[counts > 1].sum()))
