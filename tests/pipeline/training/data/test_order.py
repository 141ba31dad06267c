"""The order without any data: shares of processes, how full micro-batches are, that resuming is exact and cheap."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from pipeline.storage.store import Store
from pipeline.training.data.order import DataOrder, MicroBatch, OrderRules
from pipeline.training.data.row_range_files import ROW_RANGE, RowRanges, RowRangeWriter
from pipeline.training.data.row_ranges import Ints
from pipeline.training.data.sequences import Sequences

RULES = OrderRules(
    max_sentences=128, micro_concepts=1024, seed=3, shuffle=True, epochs=1, streams=8, buffer_sentences=1 << 14
)


def sequences_of(documents: int, a_block: int = 75, seed: int = 0) -> Sequences:
    """Documents of 1 to 200 sentences, one after the other, so many a block."""
    runs = np.zeros(documents, ROW_RANGE)
    runs["rows"] = np.random.default_rng(seed).integers(1, 201, documents)
    runs["first_row"] = np.cumsum(runs["rows"]) - runs["rows"]
    runs["answer"], runs["new"] = -1, True
    first = np.append(np.arange(0, documents, a_block), documents)
    with tempfile.TemporaryDirectory() as folder:  # what is mapped stays
        store = Store(folder)
        writer = RowRangeWriter(store, "0" * 32, "train")
        writer.add(runs)
        writer.close()
        mapped = RowRanges(store, "0" * 32, "train", writer.files)
    return Sequences(mapped, first, np.add.reduceat(runs["rows"].astype(np.int64), first[:-1]))


def lengths_of(sequences: Sequences) -> Ints:
    return sequences.take(np.arange(sequences.blocks)).lengths


def sentences(plan: MicroBatch) -> int:
    return sum(one.sentences.stop - one.sentences.start for one in plan)


def documents(plan: MicroBatch) -> list[tuple[int, int]]:
    """Piece and length of each."""
    return [
        (int(one.buffer.taken.sequences[one.buffer.cut[0][one.buffer.order[at]]]), int(one.buffer.lengths[at]))
        for one in plan
        for at in range(one.low, one.high)
    ]


@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_an_epoch_is_complete_and_batches_are_full(world: int) -> None:
    sequences = sequences_of(10_000)
    order = DataOrder([sequences], [1.0], RULES)
    assert order.streams == 8
    plans = [dict(order.mine(rank, world, 0)) for rank in range(world)]
    numbers = [number for one in plans for number in one]
    assert len(set(numbers)) == len(numbers)
    found: Counter[int] = Counter()
    sizes = []
    for one in plans:
        for number, plan in one.items():
            assert plans[number % world] is one
            sizes.append(sentences(plan))
            for piece, length in documents(plan):
                assert length <= 128
                found[piece] += length
    assert [found[piece] for piece in range(sequences.numbers)] == lengths_of(sequences).tolist()
    assert max(sizes) <= 1024 and np.mean(np.asarray(sizes)) > 0.93 * 1024


@pytest.mark.parametrize("world", [2, 4, 8])
def test_processes_share_no_span_where_they_divide_the_lanes(world: int) -> None:
    order = DataOrder([sequences_of(10_000)], [1.0], RULES)
    blocks = [
        {int(block) for _, plan in order.mine(rank, world, 0) for one in plan for block in one.buffer.blocks}
        for rank in range(world)
    ]
    assert sum(map(len, blocks)) == len(set().union(*blocks)) == 134


def test_few_documents_have_few_lanes() -> None:
    assert DataOrder([sequences_of(20)], [1.0], RULES).streams == 1
    assert DataOrder([sequences_of(10_000, a_block=200)], [1.0], RULES).streams == 3  # 50 blocks
    assert DataOrder([sequences_of(300, a_block=5)], [1.0], RULES).streams == 3  # micro-batches for so many
    assert DataOrder([sequences_of(300), sequences_of(10_000)], [1.0, 1.0], RULES).streams == 8


@pytest.mark.parametrize(
    ("a_block", "streams", "twice"), [(900, 1, 0.0), (350, 1, 0.0), (300, 2, 0.04), (75, 8, 0.04), (20, 8, 0.02)]
)
def test_every_sentence_comes_once_before_any_comes_twice(a_block: int, streams: int, twice: float) -> None:
    """In endless training, after an epoch's worth: but for the micro-batch over its end, and uneven streams."""
    sequences = sequences_of(10_000, a_block)
    order = DataOrder([sequences], [1.0], OrderRules(**vars(RULES) | {"epochs": None}))
    assert order.streams == streams
    every, found = sequences.sentences, np.zeros(sequences.numbers, np.int64)
    plans = order.mine(0, 1, 0)
    while found.sum() < every:
        for piece, length in documents(next(plans)[1]):
            found[piece] += length
    again = int((found - lengths_of(sequences)).clip(min=0).sum())
    assert again <= max(twice * every, 1024)


def test_a_small_source_of_a_mix_is_whole_for_every_lane() -> None:
    """Lanes that it cannot divide itself among go through it on their own, each document as often as any other."""
    small, large = sequences_of(40, a_block=10), sequences_of(10_000)
    rules = OrderRules(**vars(RULES) | {"epochs": None})
    order = DataOrder([small, large], [1.0, 1.0], rules)
    found: Counter[int] = Counter()
    for _, plan in islice(order.mine(0, 1, 0), 2000):
        if plan[0].buffer.source == 0:
            found.update(piece for piece, length in documents(plan))
    parts = -(-lengths_of(small) // 128)
    rates = np.asarray([found[piece] for piece in range(40)]) / parts
    assert rates.min() > 0.9 * rates.max() > 100


def test_resuming_far_away_is_exact_and_cheap() -> None:
    order = DataOrder([sequences_of(10_000)], [1.0], OrderRules(**vars(RULES) | {"epochs": None}))
    began = time.process_time()
    number, plan = next(order.mine(1, 2, 20_001))
    assert time.process_time() - began < 10  # 20 epochs of 970 micro-batches; half the streams
    straight = next(islice(order.mine(1, 2, 0), 10_000, None))
    assert number == straight[0] == 20_001 and documents(plan) == documents(straight[1])
