"""Models that draw each embedding from a distribution: how One-Tower, Two-Tower and Quant-LCM predict.

What was there before is read once; then all positions that are asked for are drawn together, step by step.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from stages.lcm.batch import Batch
from stages.lcm.layers import Scaling, inference
from stages.lcm.model import Lcm, Sampling
from stages.lcm.packing import Packing, check_lengths, last, lengthened, pack


class GenerativeLcm(Lcm):
    """Predicts by `_draw`."""

    scaling: Scaling

    @inference
    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """All positions at once; needs no codes."""
        check_lengths(batch.lengths, self.card.context)
        clean = self.scaling.normalize(batch.embeddings)
        packing = batch.packing
        return self._draw(clean, packing, packing, sampling)

    @inference
    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Of all documents at once; needs no codes."""
        check_lengths(batch.lengths, self.card.context, room=1)
        longer, lengths = lengthened(self.scaling.normalize(batch.embeddings), batch.lengths), batch.lengths + 1
        packing = pack(lengths, longer.device, alone=True)
        return self._draw(longer, packing, last(packing, lengths), sampling)

    @abstractmethod
    def _draw(self, clean: Tensor, packing: Packing, queries: Packing, sampling: Sampling) -> Tensor:
        """One embedding for each of `queries`, from those before it among `clean` (positions, dim), normalised, which
        `packing` places. Not normalised.
        """
