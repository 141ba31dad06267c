"""N-gram heads: from what predicts the next one, predict those after it too; and the ensemble of all (Heo et al. 2025,
"Diversifying target representations with word difference representations").

x_t is what follows, h_t predicts it, and MLP^n(h_t) predicts x_{t+n} for n = 1 … N − 1 (simple N-grams, their eq. 4);
with differences (WDR) it predicts Δ_n x_t, and x_{t+n} is that and Δʳ_n x_t = −Σ_{i=1}^{n} C(n, i) (−1)^i x_{t+n−i},
which gets no gradient (eq. 9, 10). Losses: ½ L_0 + α / (2N − 2) Σ_n L_n (eq. 6). What predicts x_t from all heads:
(1 − λ) h_t + λ / (N − 1) Σ_n [MLP^n(h_{t−n}) + Δʳ_n x_{t−n}] (eq. 13), which needs x_{t−n} … x_{t−1}.

Vectors here are flat, (positions, width): the sequences of a batch follow each other, and none looks into another one.
Cost: 2 · width² weights per head, and its logits or distances.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import comb

import torch
from torch import Tensor, nn

from stages.lcm.card import NgramSettings


class NgramHeads(nn.Module):
    """The heads MLP^1 … MLP^{N−1}, each linear, ReLU, linear.

    Args:
        settings: how many steps ahead are predicted, and how.
        width: the width of the model.
        finish: maps h, or the output of a head, to x̂, (positions, width) → (positions, outer); all heads share it, and
            its weights do not belong to them.
    """

    def __init__(self, settings: NgramSettings, width: int, finish: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.settings = settings
        self.finish = functools.partial(finish)  # not registered as a module of this one
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(settings.n - 1)
        )

    @property
    def shares(self) -> list[float]:
        """Return what the losses L_0 … L_{N−1} count, eq. 6."""
        later = self.settings.alpha / (2 * self.settings.n - 2)
        return [0.5] + [later] * (self.settings.n - 1)

    def ahead(self, number: int, h: Tensor, known: Tensor) -> Tensor:
        """Predict x_{t+n}, with n = `number`.

        The result is meaningless where t + n is beyond the end of a sequence. With WDR, x_t … x_{t+n−1} take part,
        detached.

        Args:
            number: how many steps ahead, from 1.
            h: (positions, width), the outputs of the model.
            known: (positions, outer), x_t at t, which h_t predicts.

        Returns:
            (positions, outer).
        """
        predicted = self.finish(self.heads[number - 1](h))
        return predicted + conjugate(known.detach(), number) if self.settings.wdr else predicted

    def ensemble(self, h: Tensor, known: Tensor, before: Tensor, share: float) -> Tensor:
        """Predict x_t by all heads, from h_t, h_{t−1}, … and x_{t−1}, …; x_t itself is not looked at.

        Where h_{t−n} is not in the sequence, h_t takes its place.

        Args:
            h: (positions, width), the outputs of the model.
            known: (positions, outer), x_t at t.
            before: (positions,) int64, how many positions of the same sequence precede each.
            share: λ, the weight of the further heads.

        Returns:
            (positions, outer).
        """
        plain = self.finish(h)
        found = (1 - share) * plain
        for number in range(1, self.settings.n):
            earlier = self.ahead(number, h, known).roll(number, 0)
            each = torch.where((before >= number)[:, None], earlier, plain)
            found = found + share / (self.settings.n - 1) * each
        return found


def conjugate(known: Tensor, number: int) -> Tensor:
    """Return Δʳ_n x_t of (positions, width), eq. 10; meaningless within n − 1 of a sequence's end."""
    terms = [-comb(number, i) * (-1) ** i * known.roll(i - number, 0) for i in range(1, number + 1)]
    return torch.stack(terms).sum(0)
