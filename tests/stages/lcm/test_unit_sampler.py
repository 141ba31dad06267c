"""Choosing units: frequencies against brute force over all units, one row at a time."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stages.lcm.sampler import sample_unit

DRAWS = 40_000


def brute_force(logits: list[float], temperature: float, top_k: int | None, top_p: float | None) -> list[float]:
    """Probabilities in plain Python."""
    weights = [math.exp(one / temperature) for one in logits]
    order = sorted(range(len(logits)), key=lambda unit: -weights[unit])[:top_k]
    total = sum(weights[unit] for unit in order)
    kept, reached = [], 0.0
    for unit in order:
        kept.append(unit)
        reached += weights[unit] / total
        if top_p is not None and reached >= top_p:
            break
    total = sum(weights[unit] for unit in kept)
    return [weights[unit] / total if unit in kept else 0.0 for unit in range(len(logits))]


def frequencies(logits: Tensor, temperature: float, top_k: int | None, top_p: float | None) -> Tensor:
    torch.manual_seed(0)
    drawn = sample_unit(logits.expand(DRAWS, -1), temperature, top_k, top_p)
    return torch.bincount(drawn, minlength=logits.shape[1]) / DRAWS


@pytest.mark.parametrize("temperature", [1.0, 0.3, 4.0])
@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (3, None), (None, 0.7), (4, 0.8), (100, 1.0), (None, 1e-6)])
def test_units_are_drawn_as_often_as_brute_force_says(
    temperature: float, top_k: int | None, top_p: float | None
) -> None:
    logits = torch.tensor([[0.3, 1.7, -0.6, 1.1, 0.9, -2.0]])
    expected = torch.tensor(brute_force(logits[0].tolist(), temperature, top_k, top_p))
    found = frequencies(logits, temperature, top_k, top_p)
    assert (found[expected == 0] == 0).all()
    assert (found - expected).abs().max() < 4 * 0.5 / math.sqrt(DRAWS)


def test_every_row_draws_from_its_own_logits() -> None:
    logits = torch.full((50, 50), -1e4)
    logits.fill_diagonal_(0)
    assert torch.equal(sample_unit(logits, 1.0, 7, 0.9), torch.arange(50))


def test_top_k_of_one_draws_nothing() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    logits = torch.randn(20, 9, generator=torch.Generator().manual_seed(1))
    assert torch.equal(sample_unit(logits, 0.005, 1), logits.argmax(dim=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_seed_repeats_the_draws() -> None:
    logits = torch.randn(200, 64, generator=torch.Generator().manual_seed(1))
    drawn = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        drawn.append(sample_unit(logits, 1.0, 20, 0.95))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((0.0, None, None), "temperature is 0.0"), ((1.0, 0, None), "top_k is 0"), ((1.0, None, 1.5), "top_p is 1.5")],
)
def test_numbers_out_of_range(numbers: tuple[float, int | None, float | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_unit(torch.zeros(1, 3), *numbers)
