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

RULES = OrderRules(max_sentences=128, micro_concepts=1024, seed=3, shuffle=True, epochs=1, lanes=8, window=1 << 14)


def pieces_of(documents: int, a_span: int = 75, seed: int = 0) -> Sequences:
    """Documents of 1 to 200 sentences, one after the other, so many a span."""
    runs = np.zeros(documents, ROW_RANGE)
    runs["rows"] = np.random.default_rng(seed).integers(1, 201, documents)
    runs["first_row"] = np.cumsum(runs["rows"]) - runs["rows"]
    runs["answer"], runs["new"] = -1, True
    first = np.append(np.arange(0, documents, a_span), documents)
    with tempfile.TemporaryDirectory() as folder:  # what is mapped stays
        store = Store(folder)
        writer = RowRangeWriter(store, "0" * 32, "train")
        writer.add(runs)
        writer.close()
        mapped = RowRanges(store, "0" * 32, "train", writer.files)
    return Sequences(mapped, first, np.add.reduceat(runs["rows"].astype(np.int64), first[:-1]))


def lengths_of(pieces: Sequences) -> Ints:
    return pieces.take(np.arange(pieces.spans)).lengths


def sentences(plan: MicroBatch) -> int:
    return sum(one.sentences.stop - one.sentences.start for one in plan)


def documents(plan: MicroBatch) -> list[tuple[int, int]]:
    """Piece and length of each."""
    return [
        (int(one.window.taken.pieces[one.window.cut[0][one.window.order[at]]]), int(one.window.lengths[at]))
        for one in plan
        for at in range(one.low, one.high)
    ]


@pytest.mark.parametrize("world", [1, 2, 4, 7])
def test_an_epoch_is_complete_and_batches_are_full(world: int) -> None:
    pieces = pieces_of(10_000)
    order = DataOrder([pieces], [1.0], RULES)
    assert order.lanes == 8
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
    assert [found[piece] for piece in range(pieces.numbers)] == lengths_of(pieces).tolist()
    assert max(sizes) <= 1024 and np.mean(np.asarray(sizes)) > 0.93 * 1024


@pytest.mark.parametrize("world", [2, 4, 8])
def test_processes_share_no_span_where_they_divide_the_lanes(world: int) -> None:
    order = DataOrder([pieces_of(10_000)], [1.0], RULES)
    spans = [
        {int(span) for _, plan in order.mine(rank, world, 0) for one in plan for span in one.window.spans}
        for rank in range(world)
    ]
    assert sum(map(len, spans)) == len(set().union(*spans)) == 134


def test_few_documents_have_few_lanes() -> None:
    assert DataOrder([pieces_of(20)], [1.0], RULES).lanes == 1
    assert DataOrder([pieces_of(10_000, a_span=200)], [1.0], RULES).lanes == 3  # 50 spans
    assert DataOrder([pieces_of(300, a_span=5)], [1.0], RULES).lanes == 3  # micro-batches for so many
    assert DataOrder([pieces_of(300), pieces_of(10_000)], [1.0, 1.0], RULES).lanes == 8


@pytest.mark.parametrize(
    ("a_span", "lanes", "twice"), [(900, 1, 0.0), (350, 1, 0.0), (300, 2, 0.04), (75, 8, 0.04), (20, 8, 0.02)]
)
def test_every_sentence_comes_once_before_any_comes_twice(a_span: int, lanes: int, twice: float) -> None:
    """In endless training, after an epoch's worth: but for the micro-batch over its end, and what lanes are uneven."""
    pieces = pieces_of(10_000, a_span)
    order = DataOrder([pieces], [1.0], OrderRules(**vars(RULES) | {"epochs": None}))
    assert order.lanes == lanes
    every, found = pieces.sentences, np.zeros(pieces.numbers, np.int64)
    plans = order.mine(0, 1, 0)
    while found.sum() < every:
        for piece, length in documents(next(plans)[1]):
            found[piece] += length
    again = int((found - lengths_of(pieces)).clip(min=0).sum())
    assert again <= max(twice * every, 1024)


def test_a_small_source_of_a_mix_is_whole_for_every_lane() -> None:
    """Lanes that it cannot divide itself among go through it on their own, each document as often as any other."""
    small, large = pieces_of(40, a_span=10), pieces_of(10_000)
    rules = OrderRules(**vars(RULES) | {"epochs": None})
    order = DataOrder([small, large], [1.0, 1.0], rules)
    found: Counter[int] = Counter()
    for _, plan in islice(order.mine(0, 1, 0), 2000):
        if plan[0].window.source == 0:
            found.update(piece for piece, length in documents(plan))
    parts = -(-lengths_of(small) // 128)
    rates = np.asarray([found[piece] for piece in range(40)]) / parts
    assert rates.min() > 0.9 * rates.max() > 100


def test_resuming_far_away_is_exact_and_cheap() -> None:
    order = DataOrder([pieces_of(10_000)], [1.0], OrderRules(**vars(RULES) | {"epochs": None}))
    began = time.process_time()
    number, plan = next(order.mine(1, 2, 20_001))
    assert time.process_time() - began < 10  # 20 epochs of 970 micro-batches; half the lanes
    straight = next(islice(order.mine(1, 2, 0), 10_000, None))
    assert number == straight[0] == 20_001 and documents(plan) == documents(straight[1])
