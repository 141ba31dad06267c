"""Batches of packed documents for training and evaluation, streamed from the files that indexes name.

    loader = Loader([TrainingSource(index)], split="train", max_sentences=128, micro_concepts=8192, seed=0)
    for number, batch in loader: ...        # for ever; `Loader(…, start=number + 1)` continues after it

The sequence depends on the indexes, the split and the seed, not on the number of processes: process `rank` of `world`
gets the micro-batches with number % world == rank. It reads only its own streams where `world` divides their number.
Validation is one pass in the order of the corpus, which reads every row group that holds a document of the split.

Cost: `benchmarks/loader.py` measures it; most is decompression. Memory: 2 · dim bytes for each sentence of the open
buffers: streams / world (at least 1) + 1 of them, of `buffer_sentences`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from pipeline.config.train import LANES
from pipeline.corpus.part_reader import opened_data_file
from pipeline.storage.store import Store
from pipeline.training.data.checks import Weights, check_columns, check_files, check_mix, check_numbers
from pipeline.training.data.index import TrainingSource
from pipeline.training.data.order import BUFFER_SENTENCES, DataOrder, MicroBatch, OrderRules, ShuffleBuffer
from pipeline.training.data.reading import LoadedBuffer, Reader, Tokenise, batch_of
from pipeline.training.data.sequences import Sequences
from pipeline.training.data.snapshot import FAMILIES_OF_PLANS
from stages.lcm.batch import Batch

__all__ = ["Loader", "TrainingSource", "Weights"]
THREADS, THREADS_REMOTE = 2, 8


def buffer_sentences_of(streams: int, micro_concepts: int) -> int:
    """Return the sentences of a shuffle buffer, such that more streams than `LANES` need no more memory.

    A buffer holds at least one micro-batch.
    """
    return max(micro_concepts, BUFFER_SENTENCES * LANES // max(streams, LANES))


def share_of_files(streams: int, world: int) -> int:
    """Return the number of processes that read each file: those that share a stream."""
    return world // math.gcd(streams, world)


class Loader:
    """Micro-batches of a split of one corpus, or of a mix of several; each iteration begins at `start`.

    Args:
        sources: the corpora with their indexes and weights.
        split: `train`, `validation` or `test`.
        max_sentences: the most sentences of a sequence, the closing one counted; longer documents are cut.
        micro_concepts: the most sentences of a micro-batch.
        seed: decides on the order.
        rank: the number of this process, from 0.
        world: how many processes there are.
        start: the number of the first micro-batch, counted over all processes.
        weights: `none`, or `fragility` to read the weights of sentences.
        codes: whether codes are read.
        texts: whether the texts and paragraphs of sentences are read.
        structure: whether breaks and plans have a weight, where the index has them.
        tokenise: (texts, languages) → tokens of the sentences; None to have no tokens.
        pin: whether tensors are in pinned memory.
        shuffle: whether the order is random.
        epochs: how many times the split is read; None for ever.
        streams: how many streams read the corpus.
        buffer_sentences: how many sentences the shuffle buffer of a stream holds.
        threads: how many threads read files; None for a number that suits the store.

    Raises:
        ConfigError: for what the corpora cannot give.
        CorpusError: if files that an index names are gone; while iterating, for a damaged one.
        ValueError: for a mix of corpora with epochs, and as `check_numbers` raises it.
    """

    def __init__(
        self,
        sources: Sequence[TrainingSource],
        *,
        split: str,
        max_sentences: int,
        micro_concepts: int,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        start: int = 0,
        weights: Weights = "none",
        codes: bool = False,
        texts: bool = False,
        structure: bool = True,
        tokenise: Tokenise | None = None,
        pin: bool = False,
        shuffle: bool = True,
        epochs: int | None = None,
        streams: int = LANES,
        buffer_sentences: int = BUFFER_SENTENCES,
        threads: int | None = None,
    ) -> None:
        check_numbers(max_sentences, micro_concepts, rank, world, streams, buffer_sentences)
        for source in sources:
            check_columns(source.index, weights, codes)
        check_mix(sources, codes)
        if epochs is not None and shuffle and len(sources) > 1:
            raise ValueError("a mix of corpora has no epochs: each would end at another time; leave epochs out")
        families = ["embeddings"]
        families += ["codes"] * codes + ["fragility-predicted"] * (weights == "fragility")
        families += ["sentences"] * (texts or tokenise is not None)
        self.sources, self.split = tuple(sources), split
        self.start, self.rank, self.world, self.pin = start, rank, world, pin
        self._sequences = [Sequences.of(source.index, split) for source in sources]
        self._firsts = [sum(one.numbers for one in self._sequences[:number]) for number in range(len(sources))]
        for source in sources:
            given = FAMILIES_OF_PLANS if source.index.about.plans == "column" else ()
            check_files(source.index, [*families, *given])
        families += ["sentences.lang"] * (tokenise is not None) + ["sentences.paragraph"] * texts
        self._tokenise, self._structure = tokenise, structure
        self._readers = [
            Reader(source.index, families, first) for source, first in zip(sources, self._firsts, strict=True)
        ]
        if not shuffle:
            buffer_sentences = micro_concepts  # a split may be a few documents of every row group
        self._rules = OrderRules(max_sentences, micro_concepts, seed, shuffle, epochs, streams, buffer_sentences)
        self._order = DataOrder(self._sequences, [source.weight for source in sources], self._rules)
        self._threads = threads or (THREADS if all(Store(one.index.url).local for one in sources) else THREADS_REMOTE)

    @property
    def sentences(self) -> int:
        """The sentences of one epoch over all sources, closing ones included."""
        return sum(sequences.sentences for sequences in self._sequences)

    @property
    def streams(self) -> int:
        """The number of streams of the order; best a multiple of `world`."""
        return self._order.streams

    def __iter__(self) -> Generator[tuple[int, Batch]]:
        """Yield number and batch, in ascending order. Threads end with the iterator: close it if you leave it early."""
        reading, finishing = ThreadPoolExecutor(self._threads, "reading"), ThreadPoolExecutor(1, "batches")
        buffers: WeakKeyDictionary[ShuffleBuffer, LoadedBuffer] = WeakKeyDictionary()

        def begin(plan: MicroBatch) -> Future[Batch]:
            for segment in plan:
                if segment.buffer not in buffers:
                    buffers[segment.buffer] = LoadedBuffer(
                        segment.buffer, self._readers[segment.buffer.source], reading, self._structure
                    )
            return finishing.submit(batch_of, [(buffers[one.buffer], one) for one in plan], self.pin, self._tokenise)

        ahead: deque[tuple[int, int, Future[Batch]]] = deque()
        plans = self._order.mine(self.rank, self.world, self.start)
        waiting = 0
        enough = min(self._rules.buffer_sentences, self.sentences)  # an epoch, where a buffer would hold several
        try:
            while True:
                while waiting <= enough:
                    number, plan = next(plans, (0, None))
                    if plan is None:
                        break
                    size = sum(one.sentences.stop - one.sentences.start for one in plan)
                    ahead.append((number, size, begin(plan)))
                    waiting += size
                if not ahead:
                    return
                number, size, batch = ahead.popleft()
                found = batch.result()
                waiting -= size
                yield number, found
        finally:
            plans.close()
            for pool in (finishing, reading):
                pool.shutdown(cancel_futures=True)

    def names(self, sequences: Sequence[int]) -> list[str]:
        """Describe the documents with numbers in `Batch.sequences` for messages: the id and place of each."""
        tables: dict[tuple[int, int], pa.Table] = {}
        found = []
        of_source = [bisect_right(self._firsts, one) - 1 for one in sequences]
        row_ranges: dict[int, np.void] = {}
        for number in set(of_source):
            its = [one for one, source in zip(sequences, of_source, strict=True) if source == number]
            there = self._sequences[number].row_ranges_at([one - self._firsts[number] for one in its])
            row_ranges |= dict(zip(its, there, strict=True))
        for one, number in zip(sequences, of_source, strict=True):
            index, row_range = self.sources[number].index, row_ranges[one]
            part, row = int(row_range["part"]), int(row_range["first_row"])
            if (number, part) not in tables:
                with opened_data_file(Store(index.url), index.parts["documents"][part].as_py()) as opened:
                    tables[number, part] = opened.read(["doc_id", "first_row"]).combine_chunks()
            documents = tables[number, part]
            doc = int(np.searchsorted(documents["first_row"].to_numpy(), row, side="right")) - 1
            said = documents["doc_id"][doc].as_py()
            found.append(f"{said} (row {row} of part {index.parts['part'][part]} of {index.url})")
        return found
