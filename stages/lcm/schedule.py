"""Noise schedules, LCM 2.3.2: how much of a clean embedding is left at every timestep.

In float64 and on the host, whatever PyTorch's defaults are: T + 1 numbers, made once a model.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stages.lcm.card import DiffusionSettings

Doubles = npt.NDArray[np.float64]
COSINE_OFFSET = 0.008  # s of eq. 12


def alphas_squared(settings: DiffusionSettings) -> Doubles:
    """α² at the timesteps 0 … T, (steps + 1,): from 1 (no noise) down to exactly 0 (nothing else), eq. 9.

    Raises ValueError if it does not fall at every timestep, as float64 tells numbers apart.
    """
    time = np.arange(settings.steps + 1) / settings.steps
    if settings.schedule == "cosine":
        found = np.cos((time + COSINE_OFFSET) / (1 + COSINE_OFFSET) * np.pi / 2) ** 2  # eq. 12
        found = found / found[0]
    elif settings.schedule == "quadratic":
        assert settings.beta_first is not None and settings.beta_last is not None
        first, last = np.sqrt(settings.beta_first), np.sqrt(settings.beta_last)
        betas = (first + time[1:] * (last - first)) ** 2  # eq. 13
        found = np.concatenate([[1.0], np.cumprod(1 - betas)])  # eq. 11
    else:
        assert settings.scale is not None and settings.shift is not None
        with np.errstate(divide="ignore", over="ignore"):  # logits of 0 and 1
            logit = np.log(time) - np.log1p(-time)
            found = 1 / (1 + np.exp(settings.scale * logit - settings.shift))  # eq. 14
    found = without_terminal_signal(found)
    if not (np.diff(found) < 0).all():
        raise ValueError(
            f"the schedule {settings.schedule} does not fall at every one of {settings.steps} timesteps; give fewer "
            "steps, or numbers closer to those of LCM, Table 5"
        )
    return found


def without_terminal_signal(alpha_squared: Doubles) -> Doubles:
    """Shift and scale α so that it ends at 0, β_T = 1, and keeps its value at timestep 1: Lin et al. 2024, algorithm 1.

    alpha_squared: (T + 1,), T ≥ 2; at timestep 0 it is 1 and stays so.
    """
    alpha = np.sqrt(alpha_squared[1:])
    rescaled = (alpha - alpha[-1]) * (alpha[0] / (alpha[0] - alpha[-1]))
    return np.concatenate([[1.0], rescaled**2])


def log_snr(alpha_squared: Doubles) -> Doubles:
    """λ = log(α² / σ²), eq. 9; ∞ without noise, −∞ without signal."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(alpha_squared) - np.log1p(-alpha_squared))
