"""The pilot, and the rows of it that a fit looks at.

The pilot is the shortest run of chunks, in the (seeded, stratified random) order of the run, that holds `fit.rows`
sentences. Of it, a fit looks at the finite rows whose u lies below the rate that gives the number it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.part_reader import PartReader
from pipeline.corpus.states import ChunkState, PartState
from pipeline.corpus.tombstones import read_tombstones
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from stages.stage import NON_FINITE

FIRST_CHUNKS = 8  # that are segmented before it is known how many sentences a chunk holds


@dataclass(frozen=True)
class Pilot:
    """chunks: from the first of the run; `enough`: all segmented, and they hold the rows asked for, or are all."""

    chunks: list[ChunkState]
    enough: bool

    @property
    def parts(self) -> list[PartState]:
        """In the order of their names."""
        return sorted((part for one in self.chunks for part in one.parts), key=lambda part: part.ref.part)


def pilot_of(chunks: Sequence[ChunkState], rows: int) -> Pilot:
    """The pilot; while too little is segmented, so many chunks as will probably be needed."""
    held = 0
    for index, one in enumerate(chunks):
        if one.sentences is None:
            mean = held / index if index else 0.0
            more = int((rows - held) / mean) + 1 if mean else FIRST_CHUNKS
            return Pilot(list(chunks[: index + more]), False)
        held += one.sentences
        if held >= rows:
            return Pilot(list(chunks[: index + 1]), True)
    return Pilot(list(chunks), True)


class PilotSample:
    """The finite rows of the pilot's parts with u below the rate that gives about `wanted` of them."""

    def __init__(self, store: Store, pilot: Pilot, wanted: int) -> None:
        self._store, self._parts = store, pilot.parts
        self._tombstones = read_tombstones(store, waiting=True)
        counts = [part.receipts["encode"].counts for part in self._parts]
        self.rows = int(sum(part.rows for part in self._parts) - sum(one["non_finite"] for one in counts))
        self._rate = min(1.0, wanted / max(1, self.rows))

    def batches(self, *columns: str) -> Iterator[pa.Table]:
        """Row group after row group."""
        for part in self._parts:
            purged = self._tombstones.of(part.chunk)
            with PartReader(self._store, part.ref.part, part.receipts, purged) as reader:
                for batch in reader.batches([*columns, "u", "status"]):
                    table = batch.table
                    below = pc.less(table["u"], self._rate)
                    yield table.filter(pc.and_(below, pc.not_equal(table["status"], pa.scalar(NON_FINITE, pa.uint8()))))

    def embeddings(self, *, above: float = 0.0) -> npt.NDArray[np.float16]:
        """(rows, dim) of the sampled rows, in memory of their own; `above`: without those of u below this."""
        rows = sum(int((table["u"].to_numpy() >= above).sum()) for table in self.batches())
        found: npt.NDArray[np.float16] | None = None
        filled = 0
        for table in self.batches("embedding"):
            of_batch = embedding_matrix(table["embedding"])[table["u"].to_numpy() >= above]
            if found is None:
                found = np.empty((rows, of_batch.shape[1]), np.float16)
            found[filled : filled + len(of_batch)] = of_batch
            filled += len(of_batch)
        assert found is not None and filled == rows
        return found

    def below(self, u: float, *columns: str) -> pa.Table:
        """The rows with u below this."""
        return pa.concat_tables(table.filter(pc.less(table["u"], u)) for table in self.batches(*columns))

    @property
    def rate(self) -> float:
        """Rows with u below it are looked at."""
        return self._rate
