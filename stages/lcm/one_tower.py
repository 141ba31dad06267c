"""One-Tower diffusion LCM, LCM 2.3.3: one Transformer reads the clean sentences and denoises the next one.

LCM drops self-attention with some probability to train without context; here that is drawn for every target, as in the
Two-Tower: a dropped one sees itself alone, in all layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard
from stages.lcm.diffusion import Diffusion
from stages.lcm.interleaved import InterleavedTransformer
from stages.lcm.layers import FREQUENCIES, Scaling, TimestepEmbedding, matmul_flops
from stages.lcm.model import GenerativeLcm, Sampling
from stages.lcm.packing import Packing, check_lengths
from stages.lcm.sampler import sample
from stages.scaler.robust import RobustScaler


class OneTowerLcm(GenerativeLcm):
    """One-Tower: its loss is the squared error of the predicted x0 in normalised space, times ω(t): eq. 16."""

    def __init__(self, card: LcmCard, scaler: RobustScaler) -> None:
        super().__init__()
        assert card.diffusion is not None
        self.card, self.scaler = card, scaler
        dim = len(scaler.median)
        self.scaling = Scaling(scaler)
        self.diffusion = Diffusion(card.diffusion)
        timestep = TimestepEmbedding(card.model_dim)
        self.transformer = InterleavedTransformer(card, dim, dim, timestep, self.diffusion.steps + 1)

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of every sentence, the first of a document too, at a random timestep and with random
        noise.
        """
        check_lengths(batch.lengths, self.card.context)
        clean = self.scaling.normalize(batch.embeddings)
        t = self.diffusion.timesteps(len(clean), clean.device)
        noisy = self.diffusion.noised(clean, t, torch.randn_like(clean))
        dropped = torch.rand(len(clean), device=clean.device) < self.card.unconditional
        predicted: Tensor = self.transformer(clean, noisy, t, dropped, batch.packing)
        return self.diffusion.weight(t) * (predicted - clean).square().sum(1)

    def flops(self, batch: Batch) -> float:
        """Count the operations of `losses`. Timesteps are embedded once each; their frequencies need no gradient."""
        width = self.card.model_dim
        timestep = matmul_flops(width**2 + 2 / 3 * FREQUENCIES * width, -(-self.transformer.indices // 8) * 8)
        return self.transformer.flops(batch.lengths) + timestep

    def blocks(self) -> list[nn.Module]:
        """Return the transformer's blocks."""
        return list(self.transformer.layers)

    def _draw(self, clean: Tensor, packing: Packing, queries: Packing, sampling: Sampling) -> Tensor:
        caches = self.transformer.read(clean, packing)

        def denoise(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
            if sampling.guidance == 1:
                return self.transformer.refine(x, t, queries, caches), None
            both = self.transformer.refine(torch.cat([x, x]), torch.cat([t, t]), queries, caches)
            conditional, unconditional = both.chunk(2)
            return conditional, unconditional

        count, dim = len(queries.scatter), self.scaling.median.numel()
        return self.scaling.denormalize(sample(denoise, count, dim, self.diffusion, sampling, queries.gather.device))
