"""The order of training data: one sequence of micro-batches that an index and a seed decide, not who reads it.

Micro-batch k comes from lane k % lanes. A lane is a stream of its own over its share of the spans (a seeded permutation
of all, dealt out again every epoch). It takes spans together to windows of some sentences, wraps their pieces at
`max_sentences`, permutes what comes out, and packs it into micro-batches, over the borders of windows and epochs.
Lanes are drawn equally often, however many spans they have. In endless training a lane with fewer spans is in the next
epoch while others are in this one. So a lane has 16 spans or more, small corpora have fewer lanes, and at most about
4 % of an epoch's sentences come twice before others come once; with one lane none do.
Nothing here reads data: coming to micro-batch k costs microseconds for each one before it in the same lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count

import numpy as np

from pipeline.training.data.row_ranges import Ints
from pipeline.training.data.sequences import BlockSequences, Sequences, concatenated_ranges

MICRO_BATCHES = 8  # that a lane has in an epoch at least; small corpora have fewer lanes
STREAM_BLOCKS = 16  # that a lane has at least: one has at most a span more than another, a sixteenth
DRAWS = 1024  # sources drawn at a time
BLOCK_ORDER, WITHIN_BUFFER, SOURCE = range(3)  # what random numbers are for


@dataclass(frozen=True)
class OrderRules:
    """What decides the order besides the pieces. window: sentences that are permuted together, about."""

    max_sentences: int
    micro_concepts: int
    seed: int
    shuffle: bool
    epochs: int | None
    lanes: int
    window: int


@dataclass(eq=False)
class ShuffleBuffer:
    """Some spans whose pieces are in memory together. `key`: seeds its permutation (None: as in the corpus)."""

    source: int
    pieces: Sequences
    spans: Ints
    max_sentences: int
    key: tuple[int, ...] | None

    @cached_property
    def taken(self) -> BlockSequences:
        """Its pieces, span after span."""
        return self.pieces.take(self.spans)

    @cached_property
    def cut(self) -> tuple[Ints, Ints]:
        """(documents) The piece that each is cut from, as a place in `taken`, and its length; not permuted.

        Pieces longer than `max_sentences` are cut into as few documents as can be, as equal as can be: so none
        consists of the closing sentence alone.
        """
        lengths = self.taken.lengths
        parts = -(-lengths // self.max_sentences)
        which = np.repeat(np.arange(len(lengths)), parts)
        number = concatenated_ranges(np.zeros_like(parts), parts)
        return which, lengths[which] * (number + 1) // parts[which] - lengths[which] * number // parts[which]

    @cached_property
    def order(self) -> Ints:
        """(documents) Which of `cut` comes first, second, …"""
        documents = len(self.cut[0])
        if self.key is None:
            return np.arange(documents)
        return np.random.default_rng(self.key).permutation(documents)

    @cached_property
    def lengths(self) -> Ints:
        """(documents) Sentences, in the order in which they are used."""
        return self.cut[1][self.order]

    @cached_property
    def ends(self) -> Ints:
        """(documents) Sentences up to the end of each."""
        return np.cumsum(self.lengths)


@dataclass(frozen=True)
class BufferSlice:
    """Documents of a window that follow each other in a micro-batch."""

    window: ShuffleBuffer
    low: int
    high: int

    @property
    def sentences(self) -> slice:
        """Which sentences of the window they are."""
        ends = self.window.ends
        return slice(int(ends[self.low - 1]) if self.low else 0, int(ends[self.high - 1]))


MicroBatch = list[BufferSlice]


class DataOrder:
    """The sequence over sources, which are drawn by their weights, one for each micro-batch."""

    def __init__(self, sources: Sequence[Sequences], weights: Sequence[float], rules: OrderRules) -> None:
        self._sources, self._rules = sources, rules
        self._shares = [self._streams_of(one) for one in sources]
        self.lanes = max(self._shares)
        self._chances = np.asarray(weights, np.float64) / sum(weights)

    def _streams_of(self, pieces: Sequences) -> int:
        if not self._rules.shuffle:
            return 1
        full = pieces.sentences // (MICRO_BATCHES * self._rules.micro_concepts)
        return max(1, min(self._rules.lanes, pieces.spans // STREAM_BLOCKS, full))

    def mine(self, rank: int, world: int, start: int) -> Iterator[tuple[int, MicroBatch]]:
        """Number and plan of the micro-batches of a process from `start` on: those with number % world == rank."""
        lanes = [enumerate(self._stream(lane)) for lane in range(self.lanes)]
        running = {number % self.lanes for number in range(rank, rank + world * self.lanes, world)}
        for number in count(start + (rank - start) % world, world):
            lane, wanted = number % self.lanes, number // self.lanes
            if lane in running:
                plan = next((plan for at, plan in lanes[lane] if at == wanted), None)
                if plan is not None:
                    yield number, plan
                else:
                    running.remove(lane)
                    if not running:
                        return

    def _stream(self, lane: int) -> Iterator[MicroBatch]:
        sources, most = range(len(self._sources)), self._rules.micro_concepts
        streams = [pack(self._windows(source, lane), most) for source in sources]
        if len(streams) == 1 or not self._rules.shuffle:
            yield from chain.from_iterable(streams)
            return
        draw = np.random.default_rng((self._rules.seed, SOURCE, lane))
        while True:
            for source in draw.choice(len(streams), DRAWS, p=self._chances):
                yield next(streams[source])

    def _windows(self, source: int, lane: int) -> Iterator[ShuffleBuffer]:
        rules, pieces, lanes = self._rules, self._sources[source], self._shares[source]
        turn, share = divmod(lane, lanes)  # lanes beyond those of a small source go through it in orders of their own
        for epoch in count() if rules.epochs is None else range(rules.epochs):
            spans = np.arange(pieces.spans)
            if rules.shuffle:
                generator = np.random.default_rng((rules.seed, BLOCK_ORDER, source, epoch, turn))
                spans = generator.permutation(spans)[share::lanes]
            # Lanes begin with windows of different sizes, so that they do not all come to the next one together.
            early = rules.window * share // lanes
            before = np.cumsum(pieces.span_lengths[spans]) - pieces.span_lengths[spans]
            borders = np.flatnonzero(np.diff((before + early) // rules.window)) + 1
            for number, some in enumerate(np.split(spans, borders)):
                key = (rules.seed, WITHIN_BUFFER, source, epoch, lane, number) if rules.shuffle else None
                yield ShuffleBuffer(source, pieces, some, rules.max_sentences, key)


def pack(windows: Iterator[ShuffleBuffer], most: int) -> Iterator[MicroBatch]:
    """Micro-batches of at most so many sentences: documents one after the other, a new one where the next is too long.

    None of the documents may be longer than `most`.
    """
    plan: MicroBatch = []
    room = most
    for window in windows:
        at, until, documents = 0, 0, len(window.lengths)
        while at < documents:
            high = int(np.searchsorted(window.ends, until + room, side="right"))
            if high > at:
                plan.append(BufferSlice(window, at, high))
                room -= int(window.ends[high - 1]) - until
                at, until = high, int(window.ends[high - 1])
            if at < documents:
                yield plan
                plan, room = [], most
    if plan:
        yield plan
