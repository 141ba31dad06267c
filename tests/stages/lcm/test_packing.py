"""Packing against masks and orders written as loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from stages.lcm.batch import Batch
from stages.lcm.packing import Packing, check_lengths, last, layout_of, lengthened, pack, shifted, visible_pairs

LENGTHS = torch.tensor([3, 16, 1, 7, 9, 2, 1, 11])


def seen(packing: Packing, mask: Tensor, lengths: Tensor, query: int) -> set[int]:
    """The flat positions whose keys the query with that flat position sees."""
    width = packing.gather.shape[1]
    row, slot = divmod(int(packing.scatter[query]), width)
    keys = mask[row, 0, slot].nonzero().flatten()
    places = {int(at): position for position, at in enumerate(packing.scatter)}
    return {places[row * width + int(key)] for key in keys}


def test_a_position_sees_itself_and_those_before_it_in_its_document() -> None:
    packing = pack(LENGTHS, "cpu")
    start = 0
    for length in LENGTHS.tolist():
        for place in range(length):
            assert seen(packing, packing.mask, LENGTHS, start + place) == set(range(start, start + place + 1))
            assert seen(packing, packing.before, LENGTHS, start + place) == set(range(start, start + place))
        start += length


def test_no_slot_sees_nothing() -> None:
    assert pack(LENGTHS, "cpu").mask.any(-1).all()


def test_there_and_back_is_the_same() -> None:
    packing = pack(LENGTHS, "cpu")
    x = torch.randn(int(LENGTHS.sum()), 5)
    assert torch.equal(packing.flat(packing.blocks(x)), x)


def test_positions_count_from_the_start_of_the_document() -> None:
    packing = pack(LENGTHS, "cpu")
    expected = torch.cat([torch.arange(length) for length in LENGTHS.tolist()])
    assert torch.equal(packing.flat(packing.positions), expected)


def test_gradients_are_those_of_indexing() -> None:
    packing = pack(LENGTHS, "cpu")
    x = torch.randn(int(LENGTHS.sum()), 5, dtype=torch.float64, requires_grad=True)

    weights = torch.randn(*packing.gather.shape, 1, dtype=torch.float64)
    (ours,) = torch.autograd.grad(packing.flat(packing.blocks(x).sin() * weights).square().sum(), x)
    plain = (x[packing.gather].sin() * weights).flatten(0, 1)[packing.scatter]
    (expected,) = torch.autograd.grad(plain.square().sum(), x)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("longest", [1, 30, 128])
def test_rows_are_well_filled_and_shapes_few(longest: int) -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = set()
    for _ in range(50):
        lengths = torch.randint(1, longest + 1, (200,), generator=generator)
        packing = pack(lengths, "cpu")
        shapes.add(tuple(packing.gather.shape))
        rows = (packing.scatter // packing.gather.shape[1]).max() + 1
        assert int(lengths.sum()) / float(rows * packing.gather.shape[1]) > 0.85
        assert len(packing.scatter.unique()) == int(lengths.sum())
    assert len(shapes) <= 6


def test_alone_gives_each_document_a_row_and_last_its_last_position() -> None:
    packing = pack(LENGTHS, "cpu", alone=True)
    queries = last(packing, LENGTHS)
    assert packing.gather.shape == (8, 16)
    assert queries.mask.shape == (8, 1, 1, 16)
    assert queries.mask.sum(-1).flatten().tolist() == LENGTHS.tolist()
    assert queries.before.sum(-1).flatten().tolist() == (LENGTHS - 1).tolist()
    assert torch.equal(queries.positions.flatten(), LENGTHS - 1)


def test_shifted_puts_a_zero_vector_first_in_every_document() -> None:
    lengths = torch.tensor([2, 1, 3])
    x = torch.arange(1.0, 7)[:, None]
    assert shifted(x, pack(lengths, "cpu").starts).flatten().tolist() == [0, 1, 0, 0, 4, 5]


def test_lengthened_puts_one_last() -> None:
    lengths = torch.tensor([2, 1, 3])
    x = torch.arange(1.0, 7)[:, None]
    assert lengthened(x, lengths).flatten().tolist() == [1, 2, 0, 3, 0, 4, 5, 6, 0]


def test_pairs_are_what_the_mask_shows() -> None:
    packing = pack(LENGTHS, "cpu")
    assert visible_pairs(LENGTHS) == int(packing.flat(packing.mask[:, 0].sum(-1)).sum())


def test_a_document_that_is_too_long_is_an_error_that_says_so() -> None:
    check_lengths(torch.tensor([3, 8]), 8)
    with pytest.raises(ValueError, match="9 sentences; the model's context is 8"):
        check_lengths(torch.tensor([3, 9]), 8)
    with pytest.raises(ValueError, match=r"8 sentences, and 1 more is wanted.*wrap documents at 7"):
        check_lengths(torch.tensor([3, 8]), 8, room=1)


@pytest.mark.parametrize("lengths", [[], [3, 0]])
def test_an_empty_document_is_an_error(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="every document needs a sentence"):
        pack(torch.tensor(lengths, dtype=torch.int64), "cpu")


def test_a_batch_packs_by_the_layout_that_it_was_given() -> None:
    batch = Batch(torch.randn(int(LENGTHS.sum()), 4), LENGTHS, torch.ones(int(LENGTHS.sum())))
    given = replace(batch, layout=layout_of(LENGTHS))
    expected = pack(LENGTHS, "cpu")
    for found in (batch.packing, given.packing, given.to("cpu").packing):
        for name in ("gather", "scatter", "positions", "own", "mask", "starts"):
            assert torch.equal(getattr(found, name), getattr(expected, name)), name
    other = replace(batch, layout=layout_of(LENGTHS, alone=True))
    assert torch.equal(other.packing.mask, pack(LENGTHS, "cpu", alone=True).mask)
