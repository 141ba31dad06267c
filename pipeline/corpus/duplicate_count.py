"""Counts how many ids occur in several documents of a corpus, from its parts.

Ids are distributed to files of a temporary folder by their hashes, and each file is examined alone: memory holds about
a million ids. Cost: reading the column `doc_id` of every part.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.parallel import prefetch
from pipeline.corpus.reader import Corpus

AT_ONCE = 1 << 20  # ids in memory


@dataclass(frozen=True)
class DuplicateIds:
    """How many `ids` occur in more than one document, and in how many `documents` together."""

    ids: int
    documents: int


def count_duplicate_ids(corpus: Corpus, at_once: int = AT_ONCE) -> DuplicateIds:
    """Count over all documents that were kept; the pieces of a long document count as one."""
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
