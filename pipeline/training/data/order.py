"""The order of training data: one sequence of micro-batches that an index and a seed decide, not the process that reads
it.

Micro-batch k comes from stream k % streams. A stream goes through its share of the shuffle blocks (a seeded permutation
of all, dealt out again every epoch). It fills shuffle buffers with blocks up to a number of sentences, wraps their
sequences at `max_sentences`, permutes the resulting documents, and packs them into micro-batches, across the borders of
buffers and epochs.

For example, a corpus has 64 shuffle blocks, and there are 4 streams. In the first epoch the seed permutes the blocks,
and stream 0 gets those at places 0, 4, 8, … of the permutation. Its first buffer takes three of them, whose sequences
are permuted and packed; so micro-batches 0, 4, 8, … come from these blocks. Two processes read streams 0, 2 and 1, 3;
with four processes each reads one, and the order is the same.

Streams are drawn equally often, however many blocks they have. In endless training a stream with fewer blocks is in the
next epoch while others are still in this one. So a stream has at least 16 blocks, small corpora have fewer streams, and
at most about 4 % of an epoch's sentences come twice before others come once; with one stream none do. Nothing here
reads data: reaching micro-batch k costs microseconds for each earlier one in the same stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice

import numpy as np

from pipeline.training.data.row_range_files import concatenated_ranges
from pipeline.training.data.row_ranges import Ints
from pipeline.training.data.sequences import BlockSequences, Sequences

MICRO_BATCHES = 8  # the fewest that a stream has in an epoch; small corpora have fewer streams
STREAM_BLOCKS = 16  # the fewest of a stream: streams differ by at most one block, a sixteenth
DRAWS = 1024  # sources drawn at a time
BUFFER_SENTENCES = 1 << 17  # of a shuffle buffer: 268 MB at 1024 dimensions
LOOKING_UP, BUFFERS_AHEAD = 16, 4  # threads that look up row ranges on an object store; buffers of a stream, ahead
MEASURED = 200  # micro-batches by which it is told how full they are, and the most sentences of these
MEASURED_SENTENCES = 1 << 20
BLOCK_ORDER, WITHIN_BUFFER, SOURCE = range(3)  # purposes of random numbers


@dataclass(frozen=True)
class OrderRules:
    """What decides the order besides the sequences.

    `streams`: the most streams; `buffer_sentences`: about how many sentences a shuffle buffer holds.
    """

    max_sentences: int
    micro_concepts: int
    seed: int
    shuffle: bool
    epochs: int | None
    streams: int
    buffer_sentences: int


@dataclass(eq=False)
class ShuffleBuffer:
    """Some shuffle blocks whose sequences are in memory together. `key`: seeds the permutation (None: the corpus's
    order).
    """

    source: int
    sequences: Sequences
    blocks: Ints
    max_sentences: int
    key: tuple[int, ...] | None

    @cached_property
    def taken(self) -> BlockSequences:
        """The buffer's sequences, block after block."""
        return self.sequences.take(self.blocks)

    def looked_up(self) -> ShuffleBuffer:
        """Return this buffer, with what it takes in memory: several at a time, where a property locks the others."""
        self.taken = self.sequences.take(self.blocks)
        return self

    @cached_property
    def cut(self) -> tuple[Ints, Ints]:
        """(documents,) The sequence that each is cut from, as a place in `taken`, and its length; not permuted.

        Sequences longer than `max_sentences` are cut into as few documents as possible, of lengths as equal as
        possible, so that none consists of the closing sentence alone.
        """
        lengths = self.taken.lengths
        parts = -(-lengths // self.max_sentences)
        which = np.repeat(np.arange(len(lengths)), parts)
        number = concatenated_ranges(np.zeros_like(parts), parts)
        return which, lengths[which] * (number + 1) // parts[which] - lengths[which] * number // parts[which]

    @cached_property
    def order(self) -> Ints:
        """(documents,) Which of `cut` comes first, second, and so on."""
        documents = len(self.cut[0])
        if self.key is None:
            return np.arange(documents)
        return np.random.default_rng(self.key).permutation(documents)

    @cached_property
    def lengths(self) -> Ints:
        """(documents,) The number of sentences, in the order of use."""
        return self.cut[1][self.order]

    @cached_property
    def ends(self) -> Ints:
        """(documents,) The number of sentences up to the end of each."""
        return np.cumsum(self.lengths)


@dataclass(frozen=True)
class BufferSlice:
    """Consecutive documents of a shuffle buffer in one micro-batch."""

    buffer: ShuffleBuffer
    low: int
    high: int

    @property
    def sentences(self) -> slice:
        """The sentences of the buffer that belong to these documents."""
        ends = self.buffer.ends
        return slice(int(ends[self.low - 1]) if self.low else 0, int(ends[self.high - 1]))

    @property
    def count(self) -> int:
        """The number of sentences."""
        rows = self.sentences
        return int(rows.stop - rows.start)


MicroBatch = list[BufferSlice]


class DataOrder:
    """The sequence of micro-batches over sources, which are drawn by their weights, one for each micro-batch.

    Args:
        sources: the sequences of each corpus.
        weights: how often each source is drawn, relative to the others.
        rules: sizes, seed, and whether the order is random.
    """

    def __init__(self, sources: Sequence[Sequences], weights: Sequence[float], rules: OrderRules) -> None:
        self._sources, self._rules = sources, rules
        self._shares = [self._streams_of(one) for one in sources]
        self.streams = max(self._shares)
        self._chances = np.asarray(weights, np.float64) / sum(weights)

    def _streams_of(self, sequences: Sequences) -> int:
        if not self._rules.shuffle:
            return 1
        full = sequences.sentences // (MICRO_BATCHES * self._rules.micro_concepts)
        return max(1, min(self._rules.streams, sequences.blocks // STREAM_BLOCKS, full))

    def mine(self, rank: int, world: int, start: int) -> Generator[tuple[int, MicroBatch]]:
        """Yield the micro-batches of one process. With a corpus on an object store, threads end with the generator.

        Args:
            rank: the number of the process, from 0.
            world: how many processes there are.
            start: the first number, counted over all processes.

        Yields:
            (number, plan) of micro-batches with number % world == rank.
        """
        running = {number % self.streams for number in range(rank, rank + world * self.streams, world)}
        with _threads(LOOKING_UP) as pool:  # none are started where all is at hand
            streams = [enumerate(self._stream(stream, pool)) for stream in range(self.streams)]
            for number in count(start + (rank - start) % world, world):
                stream, wanted = number % self.streams, number // self.streams
                if stream in running:
                    plan = next((plan for at, plan in streams[stream] if at == wanted), None)
                    if plan is not None:
                        yield number, plan
                    else:
                        running.remove(stream)
                        if not running:
                            return

    def _stream(self, stream: int, pool: Executor) -> Iterator[MicroBatch]:
        packed = []
        for source, sequences in enumerate(self._sources):
            buffers = self._buffers(source, stream)
            if not sequences.row_ranges.at_hand:
                buffers = _looked_up(buffers, pool)
            packed.append(pack(buffers, self._rules.micro_concepts))
        if len(packed) == 1 or not self._rules.shuffle:
            yield from chain.from_iterable(packed)
            return
        draw = np.random.default_rng((self._rules.seed, SOURCE, stream))
        while True:
            for source in draw.choice(len(packed), DRAWS, p=self._chances):
                yield next(packed[source])

    def _buffers(self, source: int, stream: int) -> Iterator[ShuffleBuffer]:
        rules, sequences, streams = self._rules, self._sources[source], self._shares[source]
        turn, share = divmod(stream, streams)  # further streams of a small source have permutations of their own
        for epoch in count() if rules.epochs is None else range(rules.epochs):
            blocks = np.arange(sequences.blocks)
            if rules.shuffle:
                generator = np.random.default_rng((rules.seed, BLOCK_ORDER, source, epoch, turn))
                blocks = generator.permutation(blocks)[share::streams]
            # Streams begin with buffers of different sizes, so that they do not all refill at the same time.
            early = rules.buffer_sentences * share // streams
            before = np.cumsum(sequences.block_lengths[blocks]) - sequences.block_lengths[blocks]
            borders = np.flatnonzero(np.diff((before + early) // rules.buffer_sentences)) + 1
            for number, some in enumerate(np.split(blocks, borders)):
                key = (rules.seed, WITHIN_BUFFER, source, epoch, stream, number) if rules.shuffle else None
                yield ShuffleBuffer(source, sequences, some, rules.max_sentences, key)


@contextmanager
def _threads(number: int) -> Iterator[Executor]:
    """Some threads; what they have not begun when the block ends is not done."""
    pool = ThreadPoolExecutor(number, "row ranges")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _looked_up(buffers: Iterator[ShuffleBuffer], pool: Executor) -> Iterator[ShuffleBuffer]:
    """Yield buffers whose row ranges are in memory, while the next ones are looked up."""
    waiting: deque[Future[ShuffleBuffer]] = deque()
    for buffer in buffers:
        waiting.append(pool.submit(buffer.looked_up))
        if len(waiting) > BUFFERS_AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def mean_sentences(sequences: Sequences, max_sentences: int, micro_concepts: int, seed: int) -> float:
    """Return how many sentences the first `MEASURED` micro-batches of a training hold on average.

    Documents are packed whole, so where they are long they do not fill micro-batches. Of large micro-batches, which are
    almost full, fewer are looked at, so that it takes a second at most where there are several.

    Args:
        sequences: of the split.
        max_sentences: at which they are wrapped.
        micro_concepts: the most sentences of a micro-batch.
        seed: of the order.

    Returns:
        The mean.
    """
    rules = OrderRules(max_sentences, micro_concepts, seed, True, None, 1, BUFFER_SENTENCES)
    some = max(1, min(MEASURED, MEASURED_SENTENCES // micro_concepts))
    with closing(DataOrder([sequences], [1.0], rules).mine(0, 1, 0)) as plans:
        return float(np.mean([sum(part.count for part in plan) for _, plan in islice(plans, some)]))


def pack(buffers: Iterator[ShuffleBuffer], most: int) -> Iterator[MicroBatch]:
    """Yield micro-batches of at most `most` sentences: documents in order; the next one begins when a document does not
    fit.

    None of the documents may be longer than `most`.
    """
    plan: MicroBatch = []
    room = most
    for buffer in buffers:
        at, until, documents = 0, 0, len(buffer.lengths)
        while at < documents:
            high = int(np.searchsorted(buffer.ends, until + room, side="right"))
            if high > at:
                plan.append(BufferSlice(buffer, at, high))
                room -= int(buffer.ends[high - 1]) - until
                at, until = high, int(buffer.ends[high - 1])
            if at < documents:
                yield plan
                plan, room = [], most
    if plan:
        yield plan
