"""The noise schedules, the forward process, and the weights of timesteps in the loss, LCM 2.3.2.

A timestep is an integer from 1 (the least noise) to T (noise alone); 0 is the clean embedding. Costs two products per
value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stages.lcm.card import DiffusionSettings


class Diffusion(nn.Module):
    """What a card's `diffusion` says, as numbers. Has no parameters and nothing in a checkpoint.

    alpha_squared: (T + 1,) float64, on the host.
    table: (3, T + 1) float32, on the model's device: α, σ and ω of every timestep.
    """

    table: Tensor

    def __init__(self, settings: DiffusionSettings) -> None:
        super().__init__()
        self.settings = settings
        self.alpha_squared = alphas_squared(settings)
        self.register_buffer("table", self._table(), persistent=False)

    @property
    def steps(self) -> int:
        """T, the number of timesteps."""
        return self.settings.steps

    def timesteps(self, count: int, device: str | torch.device) -> Tensor:
        """Draw (count,) int64, uniform in 1 … T: those to train on, eq. 16."""
        return torch.randint(1, self.steps + 1, (count,), device=device)

    def noised(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Return x^t, noised embeddings: eq. 8.

        Args:
            x0: (n, dim) normalised embeddings.
            t: (n,) int64, the timestep of each.
            noise: (n, dim) standard normal noise.

        Returns:
            (n, dim) float32.
        """
        alpha, sigma = self.table[:2, t].unsqueeze(-1).unbind()
        return torch.addcmul(alpha * x0, sigma, noise)

    def weight(self, t: Tensor) -> Tensor:
        """Return ω of timesteps, (n,) float32: 1, or with `snr_min` and `snr_max` the clamped signal-to-noise ratio of
        eq. 17.

        At T there is no signal, so that ω is `snr_min` there: with 0, the first step of sampling is never trained.
        """
        return self.table[2, t]

    def _table(self) -> Tensor:
        squared, settings = self.alpha_squared, self.settings
        if settings.snr_min is None or settings.snr_max is None:
            weight = np.ones_like(squared)
        else:
            with np.errstate(divide="ignore"):
                weight = np.clip(squared / (1 - squared), settings.snr_min, settings.snr_max)  # eq. 17
        return torch.from_numpy(np.stack([np.sqrt(squared), np.sqrt(1 - squared), weight])).float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move with the model, but stays exact when that goes to bfloat16 or, by `to_empty`, to new memory."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.table = self._table().to(self.table.device)
        return self


Doubles = npt.NDArray[np.float64]
COSINE_OFFSET = 0.008  # s of eq. 12


def alphas_squared(settings: DiffusionSettings) -> Doubles:
    """Return α² at the timesteps 0 … T, (steps + 1,): from 1 (no noise) down to exactly 0 (nothing else), eq. 9.

    It is computed in float64 and on the host, whatever PyTorch's defaults are: T + 1 numbers, once for each model.
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
    """Return λ = log(α² / σ²), eq. 9; ∞ without noise, −∞ without signal."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(alpha_squared) - np.log1p(-alpha_squared))
