"""The forward process and the weights of timesteps in the loss, LCM 2.3.2.

A timestep is an integer from 1 (the least noise) to T (noise alone); 0 is the clean embedding. Costs two products a
value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from stages.lcm import card
from stages.lcm.schedule import alphas_squared


class Diffusion(nn.Module):
    """What a card's `diffusion` says, as numbers. Has no parameters and nothing in a checkpoint.

    alpha_squared: (T + 1,) float64, on the host.
    table: (3, T + 1) float32, on the model's device: α, σ and ω of every timestep.
    """

    table: Tensor

    def __init__(self, settings: card.DiffusionSettings) -> None:
        super().__init__()
        self.settings = settings
        self.alpha_squared = alphas_squared(settings)
        self.register_buffer("table", self._table(), persistent=False)

    @property
    def steps(self) -> int:
        """T."""
        return self.settings.steps

    def timesteps(self, count: int, device: str | torch.device) -> Tensor:
        """(count,) int64, uniform in 1 … T: those to train on, eq. 16."""
        return torch.randint(1, self.steps + 1, (count,), device=device)

    def noised(self, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """x^t, (n, dim) float32, of normalised x0 and standard normal noise, (n, dim) each, at t, (n,): eq. 8."""
        alpha, sigma = self.table[:2, t].unsqueeze(-1).unbind()
        return torch.addcmul(alpha * x0, sigma, noise)

    def weight(self, t: Tensor) -> Tensor:
        """ω of timesteps, (n,) float32: 1, or with `snr_min` and `snr_max` the clamped signal-to-noise ratio of eq. 17.

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
        """Moves with the model, but stays exact when that goes to bfloat16 or, by `to_empty`, to new memory."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.table = self._table().to(self.table.device)
        return self
