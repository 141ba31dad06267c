"""The sampler against diffusers' DDIM (numbers in fixtures/), closed forms, and data whose best denoiser is known."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stages.lcm import card
from stages.lcm.diffusion import Diffusion
from stages.lcm.model import Sampling
from stages.lcm.sampler import Denoise, guided, sample, trailing_steps
from tests.stages.lcm.schedules import DDIM, of_steps

RUNS: list[dict[str, Any]] = json.loads(str(DDIM["about"]))["runs"]
PLAIN = Sampling(guidance=1, initial_noise=1, epsilon_scaling=1)
WEIGHTS = {name: torch.from_numpy(DDIM[name]) for name in DDIM.files if name.startswith("weights.")}


def toy(context: str, x: Tensor, time: Tensor) -> Tensor:
    """The denoiser of the fixture; time in (0, 1]."""
    inner, at, constant = (WEIGHTS[f"weights.{context}{part}"] for part in ("_x", "_t", ""))
    return 1.5 * torch.tanh(x @ inner / math.sqrt(x.shape[-1]) + time[:, None] * at + constant)


@pytest.mark.parametrize("k", range(len(RUNS)), ids=[" ".join(map(str, run.values())) for run in RUNS])
def test_trajectories_are_those_of_diffusers(k: int) -> None:
    run = RUNS[k]
    seen, times = [], []
    noises = iter(torch.from_numpy(DDIM[f"{k}.noise"]).double())

    def denoise(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
        seen.append(x)
        times.append(int(t[0]))
        none = toy("none", x, t / run["T"]) if run["guidance"] != 1 else None
        return toy("context", x, t / run["T"]), none

    sampling = Sampling(run["S"], run["guidance"], run["rescale"], initial_noise=1, epsilon_scaling=1, eta=run["eta"])
    expected = DDIM[f"{k}.x"]
    last = sample(
        denoise,
        expected.shape[1],
        expected.shape[2],
        Diffusion(of_steps(run["name"], run["T"])),
        sampling,
        normal=lambda *size, device: next(noises),
    )
    assert times == (DDIM[f"{k}.timesteps"] + 1).tolist()  # its timesteps are 0 … T − 1
    np.testing.assert_allclose(torch.stack([*seen, last]).numpy(), expected, rtol=0, atol=2e-6)
    assert next(noises, None) is None


def test_trailing_steps_are_those_of_the_paper() -> None:
    for timesteps, steps in [(100, 40), (100, 100), (100, 1), (1000, 40), (100, 30), (7, 3)]:
        paper = np.round(timesteps - np.arange(steps) * (timesteps / steps)).astype(int)
        assert trailing_steps(timesteps, steps) == paper.tolist()
    assert trailing_steps(100, 40)[:5] == [100, 98, 95, 92, 90] and trailing_steps(100, 40)[-1] == 2


@pytest.mark.parametrize("steps", [0, 101])
def test_steps_that_do_not_exist_are_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=f"{steps} steps of sampling; the model was trained on 100 timesteps"):
        trailing_steps(100, steps)


def best_denoiser(diffusion: Diffusion, mean: Tensor, variance: Tensor) -> Denoise:
    """E[x0 | x^t] of Gaussian data, in closed form."""
    squared = torch.from_numpy(diffusion.alpha_squared).float()

    def denoise(x: Tensor, t: Tensor) -> tuple[Tensor, None]:
        a = squared[t][:, None]
        return mean + a.sqrt() * variance / (a * variance + 1 - a) * (x - a.sqrt() * mean), None

    return denoise


def variance_of_samples(diffusion: Diffusion, steps: int, variance: float, eta: float) -> float:
    """That of samples by `best_denoiser`, whose steps are linear: carried from x^T to x^0."""
    found = 1.0
    times = [*trailing_steps(diffusion.steps, steps), 0]
    for at, then in pairwise(times):
        a, b = float(diffusion.alpha_squared[at]), float(diffusion.alpha_squared[then])
        gain = math.sqrt(a) * variance / (a * variance + 1 - a)  # of x0 by x^t
        added = eta**2 * (1 - b) * (1 - a / b) / (1 - a)
        slope = math.sqrt(b) * gain + math.sqrt(max(1 - b - added, 0)) * (1 - math.sqrt(a) * gain) / math.sqrt(1 - a)
        found = slope**2 * found + added
    return found


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_gaussian_data_comes_back_the_closer_the_more_steps(eta: float) -> None:
    rows = 20_000
    mean, variance = torch.tensor([-2.0, 0.0, 0.5, 3.0]), torch.tensor([0.1, 1.0, 4.0, 0.5])
    errors = []
    for timesteps, steps in [(100, 10), (100, 40), (1000, 250)]:
        torch.manual_seed(steps)
        diffusion = Diffusion(card.DiffusionSettings(steps=timesteps))
        drawn = sample(best_denoiser(diffusion, mean, variance), rows, 4, diffusion, Sampling(steps, 1, 0, 1, 1, eta))
        assert ((drawn.mean(0) - mean).abs() < 5 * (variance / rows).sqrt()).all()
        expected = torch.tensor([variance_of_samples(diffusion, steps, one, eta) for one in variance.tolist()])
        assert ((drawn.var(0) / expected - 1).abs() < 5 * math.sqrt(2 / rows)).all()
        errors.append(float((expected / variance - 1).abs().max()))  # what the discretisation takes away
    assert errors[0] > errors[1] > errors[2]
    assert errors[1] < (0.15, 0.3)[int(eta)] and errors[2] < (0.025, 0.06)[int(eta)]


def test_a_model_that_says_one_x0_is_followed_exactly() -> None:
    """x = α x0 + σ ε throughout, with ε divided by λ_eps once a step, from σ_init times the first noise."""
    torch.manual_seed(0)
    x0, first = torch.randn(5), torch.randn(2, 5)
    diffusion = Diffusion(card.DiffusionSettings())
    seen: list[tuple[int, Tensor]] = []

    def denoise(x: Tensor, t: Tensor) -> tuple[Tensor, None]:
        seen.append((int(t[0]), x))
        return x0.expand_as(x), None

    sampling = Sampling(guidance=1, initial_noise=0.6, epsilon_scaling=1.05)
    last = sample(denoise, 2, 5, diffusion, sampling, normal=lambda *size, device: first)
    torch.testing.assert_close(last, x0.expand(2, 5), rtol=0, atol=0)
    assert len(seen) == 40
    for k, (t, x) in enumerate(seen):
        squared = float(diffusion.alpha_squared[t])
        expected = math.sqrt(squared) * x0 + math.sqrt(1 - squared) * 0.6 * first / 1.05**k
        torch.testing.assert_close(x, expected, rtol=0, atol=2e-6)


def test_clipping_bounds_what_is_predicted() -> None:
    diffusion = Diffusion(card.DiffusionSettings())

    def far(x: Tensor, t: Tensor) -> tuple[Tensor, None]:
        return torch.full_like(x, 9.0), None

    def near(x: Tensor, t: Tensor) -> tuple[Tensor, None]:
        return torch.full_like(x, 2.0), None

    def drawn(denoise: Denoise, **settings: Any) -> Tensor:
        torch.manual_seed(1)
        return sample(denoise, 3, 4, diffusion, Sampling(guidance=1, eta=1, **settings))

    assert (drawn(far) == 9).all()
    assert torch.equal(drawn(far, clip=2.0), drawn(near))


def of_context(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return toy("context", x.double(), t / 100).float(), toy("none", x.double(), t / 100).float()


def test_guidance_of_1_is_the_conditional_model_and_of_0_the_unconditional() -> None:
    diffusion = Diffusion(card.DiffusionSettings())

    def only(which: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]:
        return lambda x, t: (of_context(x, t)[which], None)

    def drawn(denoise: Denoise, guidance: float) -> Tensor:
        torch.manual_seed(2)
        return sample(denoise, 3, 6, diffusion, Sampling(guidance=guidance, rescale=0.0))

    assert torch.equal(drawn(only(0), 1), drawn(of_context, 1))
    torch.testing.assert_close(drawn(only(1), 1), drawn(of_context, 0), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=r"guidance is 3\.0, and the model gave no unconditional prediction"):
        drawn(only(0), 3.0)


def test_guiding_x0_is_guiding_the_score_of_eq_20() -> None:
    torch.manual_seed(0)
    x, conditional, unconditional = torch.randn(3, 4, 8, dtype=torch.float64)
    alpha, sigma, scale = 0.6, 0.8, 3.0

    def score(x0: Tensor) -> Tensor:
        return (alpha * x0 - x) / sigma**2

    expected = (1 - scale) * score(unconditional) + scale * score(conditional)
    torch.testing.assert_close(score(guided(conditional, unconditional, scale, 0.0)), expected)


def test_rescaling_is_that_of_diffusers() -> None:
    conditional, wanted = (torch.from_numpy(DDIM[f"rescale.{name}"]) for name in ("conditional", "guided"))
    unconditional = (wanted - 3 * conditional) / -2  # from which guidance of 3 makes `wanted`
    found = guided(conditional, unconditional, 3.0, 0.7)
    torch.testing.assert_close(found, torch.from_numpy(DDIM["rescale.result"]))
    fully = guided(conditional, unconditional, 3.0, 1.0)
    torch.testing.assert_close(fully.std(-1), conditional.std(-1))


def test_vectors_of_one_value_are_not_divided_by_their_spread() -> None:
    zero = torch.zeros(2, 4)
    assert torch.equal(guided(zero, zero, 3.0, 0.7), zero)


@pytest.mark.parametrize("eta", [-0.1, 1.5])
def test_eta_out_of_range_is_refused(eta: float) -> None:
    with pytest.raises(ValueError, match=f"eta is {eta}; give 0"):
        sample(of_context, 1, 6, Diffusion(card.DiffusionSettings()), Sampling(eta=eta))


def test_the_global_generator_decides() -> None:
    diffusion = Diffusion(card.DiffusionSettings())
    drawn = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        drawn.append(sample(of_context, 2, 6, diffusion, PLAIN))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
