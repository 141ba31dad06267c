"""The pilot, and the rows of it that a fit uses.

The pilot is the shortest sequence of chunks, in the (seeded, stratified random) order of the run, that holds `fit.rows`
sentences. A fit uses its finite rows whose u lies below the rate that gives the number it asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.part_reader import PartReader
from pipeline.corpus.states import ChunkState, PartState
from pipeline.corpus.tombstones import read_tombstones
from pipeline.planning.pilot_size import sentences_in
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from stages.stage import NON_FINITE

FIRST_CHUNKS = 8  # chunks to segment at least before it is known how many sentences a chunk holds
MARGIN = 1.15  # more than are estimated, since every further launch loads all models again


@dataclass(frozen=True)
class Pilot:
    """The pilot. `chunks`: the first ones of the run; `enough`: all are segmented, and they hold enough rows, or are
    all chunks.
    """

    chunks: list[ChunkState]
    enough: bool

    @property
    def parts(self) -> list[PartState]:
        """Return the parts in the order of their names."""
        return sorted((part for one in self.chunks for part in one.parts), key=lambda part: part.ref.part)


def pilot_of(chunks: Sequence[ChunkState], rows: int) -> Pilot:
    """Return the pilot; while too little is segmented, as many chunks as will probably be needed."""
    held = 0
    for index, one in enumerate(chunks):
        if one.sentences is None:
            return Pilot(list(chunks[: index + _expected(chunks, index, held, rows)]), False)
        held += one.sentences
        if held >= rows:
            return Pilot(list(chunks[: index + 1]), True)
    return Pilot(list(chunks), True)


def _expected(chunks: Sequence[ChunkState], segmented: int, held: int, rows: int) -> int:
    """Return how many further chunks will probably complete the pilot.

    `segmented`: how many of the chunks, from the first on, are segmented; `held`: the sentences that these hold; if
    there are none, the bytes of the others decide; `rows`: the sentences that the pilot is to hold.
    """
    if held:
        return int(MARGIN * (rows - held) * segmented / held) + 1
    estimated = accumulate(sentences_in(chunks[n].chunk) for n in range(segmented, len(chunks)))
    needed = sum(1 for _ in takewhile(lambda sum_so_far: sum_so_far < MARGIN * rows, estimated)) + 1
    return max(FIRST_CHUNKS, needed)


class PilotSample:
    """The finite rows of the pilot's parts with u below the rate that gives about `wanted` of them.

    Args:
        store: the corpus.
        pilot: the chunks and parts of the pilot.
        wanted: about how many sentences are taken.
    """

    def __init__(self, store: Store, pilot: Pilot, wanted: int) -> None:
        self._store, self._parts = store, pilot.parts
        self._tombstones = read_tombstones(store, waiting=True)
        counts = [part.receipts["encode"].counts for part in self._parts]
        self.rows = int(sum(part.rows for part in self._parts) - sum(one["non_finite"] for one in counts))
        self._rate = min(1.0, wanted / max(1, self.rows))

    def batches(self, *columns: str) -> Iterator[pa.Table]:
        """Yield one row group after the other."""
        for part in self._parts:
            purged = self._tombstones.of(part.chunk)
            with PartReader(self._store, part.ref.part, part.receipts, purged) as reader:
                for batch in reader.batches([*columns, "u", "status"]):
                    table = batch.table
                    below = pc.less(table["u"], self._rate)
                    yield table.filter(pc.and_(below, pc.not_equal(table["status"], pa.scalar(NON_FINITE, pa.uint8()))))

    def embeddings(self, *, above: float = 0.0) -> npt.NDArray[np.float16]:
        """Return a copy of the sampled embeddings: (rows, dim); `above` leaves out those with u below it."""
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
        """Return the rows with u below `u`."""
        return pa.concat_tables(table.filter(pc.less(table["u"], u)) for table in self.batches(*columns))

    @property
    def rate(self) -> float:
        """Rows with u below this rate are used."""
        return self._rate
