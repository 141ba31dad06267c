"""Noise schedules against the formulas in plain Python, diffusers' numbers, and what LCM 2.4.3 says of their shapes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from pydantic import ValidationError

from stages.lcm.card import DiffusionSettings
from stages.lcm.diffusion import Doubles, alphas_squared, log_snr
from tests.stages.lcm.schedules import DDIM, SCHEDULES, of_steps


def by_the_paper(settings: DiffusionSettings) -> list[float]:
    """α² at 1 … T before the rescaling, from eq. 11 to 14 one timestep at a time."""
    T, found = settings.steps, []
    product = 1.0
    for t in range(1, T + 1):
        if settings.schedule == "cosine":
            s = 0.008
            f = [math.cos((u / T + s) / (1 + s) * math.pi / 2) ** 2 for u in (0, t)]
            found.append(f[1] / f[0])
        elif settings.schedule == "quadratic":
            beta = (settings.beta_first**0.5 + t / T * (settings.beta_last**0.5 - settings.beta_first**0.5)) ** 2
            product *= 1 - beta
            found.append(product)
        else:
            logit = math.log(t / (T - t)) if t < T else math.inf
            x = settings.shift - settings.scale * logit
            found.append(math.exp(x) / (math.exp(x) + 1) if x > -math.inf else 0.0)
    return found


def weighted(settings: DiffusionSettings) -> tuple[float, float]:
    """Mean and standard deviation of λ over the timesteps that have one."""
    values = log_snr(alphas_squared(settings))[1:-1]
    return float(values.mean()), float(values.std())


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [2, 100, 1000])
def test_formulas_rescaled_to_zero_terminal_snr(name: str, steps: int) -> None:
    settings = of_steps(name, steps)
    found = alphas_squared(settings)
    assert found.shape == (steps + 1,)
    assert (found[0], found[-1]) == (1, 0)
    assert (np.diff(found) < 0).all()
    paper = by_the_paper(settings)
    assert found[1] == pytest.approx(paper[0], rel=1e-12)  # Lin et al. 2024 keep the first
    first, last = math.sqrt(paper[0]), math.sqrt(paper[-1])
    for t, one in enumerate(paper, 1):
        expected = (math.sqrt(one) - last) * first / (first - last)
        assert math.sqrt(found[t]) == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert 1 - found[-1] / found[-2] == 1  # β_T


def test_diffusers_rescales_alike() -> None:
    runs = json.loads(str(DDIM["about"]))["runs"]
    compared = set()
    for k, run in enumerate(runs):
        if run["eta"] == 0:
            found = alphas_squared(of_steps(run["name"], run["T"]))[1:]
            np.testing.assert_allclose(found, DDIM[f"{k}.alphas_cumprod"], rtol=1e-9, atol=1e-18)
            compared.add(run["name"])
    assert len(compared) == 5


def test_cosine_differs_from_diffusers_own_by_its_cap_alone() -> None:
    """It caps β at 0.999, which eq. 12 does not, and so moves α by the α that this leaves at T, 0.0005."""
    difference = np.abs(np.sqrt(alphas_squared(DiffusionSettings())[1:]) - np.sqrt(DDIM["squaredcos_cap_v2"]))
    assert 1e-4 < difference.max() < 6e-4


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name.startswith("sigmoid")])
def test_scale_widens_the_log_snr_of_the_sigmoid_and_shift_is_its_centre(name: str) -> None:
    """λ = shift − scale · logit(t): of uniform t, logistic with this mean and a standard deviation of scale · π/√3."""
    settings = of_steps(name, 10_000)
    mean, std = weighted(settings)
    assert mean == pytest.approx(settings.shift, abs=1e-6)
    assert std == pytest.approx(settings.scale * math.pi / math.sqrt(3), rel=0.01)


def density(name: str, at: float) -> float:
    """p(λ) = −dt/dλ by a difference over λ ± 0.5."""
    falling = log_snr(alphas_squared(of_steps(name, 10_000)))
    return float(((falling > at - 0.5) & (falling <= at + 0.5)).mean())


def test_shapes_are_those_that_the_paper_describes() -> None:
    peaked, wide, both = "sigmoid(0.8, -1)", "sigmoid(3.5, 0)", ("sigmoid(1.5, -1)", "sigmoid(1.5, -2)")
    assert max(range(-6, 7), key=lambda at: density(peaked, at)) == -1
    assert density(peaked, -1) > 1.7 * density(both[0], -1) > 3.5 * density(wide, -1)
    assert density(wide, -4) > 0.55 * density(wide, 0) and density(peaked, -4) < 0.15 * density(peaked, -1)
    assert weighted(SCHEDULES[both[1]])[0] == pytest.approx(weighted(SCHEDULES[both[0]])[0] - 1)  # "to the left"
    spreads = [weighted(SCHEDULES[name])[1] for name in (peaked, *both, wide)]
    assert spreads[1] == pytest.approx(spreads[2])
    assert spreads[0] < spreads[1] < spreads[3]


def test_quadratic_1_is_closer_to_cosine_and_quadratic_2_lies_lower() -> None:
    def distance(name: str) -> float:
        return float(np.abs(np.sqrt(squared(name)) - np.sqrt(squared("cosine"))).mean())

    def squared(name: str) -> Doubles:
        return alphas_squared(SCHEDULES[name])

    assert distance("quadratic-1") < distance("quadratic-2")
    means = [weighted(SCHEDULES[name])[0] for name in ("quadratic-2", "quadratic-1", "cosine")]
    assert means == sorted(means)


def test_a_schedule_too_steep_for_its_timesteps_is_refused() -> None:
    with pytest.raises(ValueError, match="sigmoid does not fall at every one of 100 timesteps; give fewer"):
        alphas_squared(DiffusionSettings(schedule="sigmoid", scale=60.0, shift=0.0))


def test_one_timestep_cannot_have_both_signal_and_none() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        DiffusionSettings(steps=1)
