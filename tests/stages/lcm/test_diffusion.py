"""The forward process and the loss weights, against eq. 8, 9 and 17."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from stages.lcm import card
from stages.lcm.diffusion import Diffusion

T = 100


@pytest.fixture
def diffusion() -> Diffusion:
    return Diffusion(card.DiffusionSettings())


def test_noised_is_eq_8_with_variance_preserved(diffusion: Diffusion) -> None:
    torch.manual_seed(0)
    t = torch.tensor([1, 13, 50, 99, 100])
    x0, noise = torch.randn(5, 7), torch.randn(5, 7)
    found = diffusion.noised(x0, t, noise)
    for row, at in enumerate(t.tolist()):
        squared = diffusion.alpha_squared[at]
        expected = math.sqrt(squared) * x0[row].double() + math.sqrt(1 - squared) * noise[row].double()
        torch.testing.assert_close(found[row].double(), expected, rtol=0, atol=1e-6)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[-1], noise[-1], rtol=0, atol=0)  # zero terminal SNR


def test_timesteps_are_uniform_from_1_up(diffusion: Diffusion) -> None:
    torch.manual_seed(0)
    drawn = diffusion.timesteps(100_000, "cpu")
    assert drawn.dtype == torch.int64
    counts = torch.bincount(drawn, minlength=T + 1)
    assert len(counts) == T + 1 and counts[0] == 0
    chi_squared = float(((counts[1:] - 1000) ** 2 / 1000).sum())  # 99 degrees of freedom: 99 ± 14
    assert 50 < chi_squared < 160
    torch.manual_seed(0)
    assert torch.equal(drawn, diffusion.timesteps(100_000, "cpu"))


@pytest.mark.parametrize(("least", "most"), [(0.0, 10.0), (0.001, 5.0)])
def test_weights_are_the_clamped_snr_of_eq_17(least: float, most: float) -> None:
    diffusion = Diffusion(card.DiffusionSettings(snr_min=least, snr_max=most))
    found = diffusion.weight(torch.arange(1, T + 1)).tolist()
    assert found[0] == most
    assert found[-1] == pytest.approx(least)
    assert sum(one == most for one in found) > 10 and sum(least < one < most for one in found) > 50
    for t in range(1, T):
        squared = diffusion.alpha_squared[t]
        snr = math.exp(math.log(squared / (1 - squared)))
        assert found[t - 1] == pytest.approx(max(min(snr, most), least), rel=1e-6)


def test_weights_are_1_without_a_clamp(diffusion: Diffusion) -> None:
    assert diffusion.weight(torch.tensor([1, T])).tolist() == [1, 1]


def test_leaves_nothing_in_a_checkpoint_and_nothing_to_train(diffusion: Diffusion) -> None:
    assert not diffusion.state_dict() and not list(diffusion.parameters())


def test_stays_exact_whatever_its_model_is_moved_to(diffusion: Diffusion) -> None:
    exact = diffusion.table.clone()
    with torch.device("meta"):
        on_meta = Diffusion(card.DiffusionSettings())
    for moved in (
        copy.deepcopy(diffusion).to(torch.bfloat16),
        torch.nn.Sequential(copy.deepcopy(diffusion)).half()[0],
        copy.deepcopy(diffusion).to("meta").to_empty(device="cpu"),
        on_meta.to_empty(device="cpu"),
    ):
        assert torch.equal(moved.table, exact)
    assert diffusion.to("meta").table.device.type == "meta"
