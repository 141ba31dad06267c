"""Two-Tower diffusion LCM, LCM 2.3.4: a contextualizer reads the sentences before, a denoiser makes the next one from
noise.

In training all sentences of a document are denoised at once, each with a timestep of its own. When sampling, the
contextualizer runs once, the keys and values of its outputs are computed once, and the denoiser runs `steps` times over
all positions together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.lcm.attention import Cache, CrossAttention, OwnAttention, Rotations, SelfAttention
from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard, OwnAttentionKind
from stages.lcm.diffusion import Diffusion
from stages.lcm.layers import (
    FREQUENCIES,
    Block,
    Lookup,
    PostNet,
    PreNet,
    RMSNorm,
    Scaling,
    SwiGLU,
    TimestepEmbedding,
    attention_flops,
    initialize,
    matmul_flops,
)
from stages.lcm.model import GenerativeLcm, Sampling
from stages.lcm.packing import Packing, check_lengths, shifted, visible_pairs
from stages.lcm.sampler import sample
from stages.scaler.robust import RobustScaler

MODULATIONS = 9  # of a denoiser block: shift, scale and gate of each of its three sub-blocks


@dataclass(frozen=True)
class Context:
    """What the denoiser sees of documents.

    encoded: (sentences, model_dim), the contextualizer's outputs, shifted by one, the zero vector first.
    keys, queries: where they and the positions to denoise lie in blocks.
    dropped: (positions,) bool, those that are trained without; None: none.
    """

    encoded: Tensor
    keys: Packing
    queries: Packing
    dropped: Tensor | None = None


class DenoiserBlock(nn.Module):
    """Self-attention to the own position, cross-attention to the context, SwiGLU, each modulated by AdaLN (eq. 22).

    The zero vector is a key 0 with a value 0: attention to it alone is 0. So a dropped row is set to 0, and positions
    beyond those of `context.queries`, which are unconditional, skip cross-attention.

    Args:
        dim: the width of the model.
        heads: the number of heads.
        inner: the inner width of the feed-forward network.
        dropout: the share of values that are dropped in training.
        own: `full` for attention to the own position, `value` for its value alone.
    """

    def __init__(self, dim: int, heads: int, inner: int, dropout: float, own: OwnAttentionKind) -> None:
        super().__init__()
        self.norm = RMSNorm(dim, learned=False)
        self.modulation = nn.Linear(dim, MODULATIONS * dim)
        self.self_attention = OwnAttention(dim) if own == "value" else SelfAttention(dim, heads)
        self.cross_attention = CrossAttention(dim, heads)
        self.feed_forward = SwiGLU(dim, inner)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, embedded: Tensor, timesteps: Lookup, context: Context, cache: Cache | None = None
    ) -> Tensor:
        """Apply the block.

        Args:
            x: (positions, dim).
            embedded: (entries, dim), SiLU(embed(t)) of `timesteps.entries`.
            timesteps: which entry each position has.
            context: the context, and what each position sees of it.
            cache: keys and values of the context, stored by the first call.

        Returns:
            (positions, dim).
        """
        parts = timesteps(self.modulation(embedded)).chunk(MODULATIONS, dim=1)  # eq. 21
        shift, scale, gate = parts[:3]
        x = x + gate * self.dropout(self._of_itself((1 + scale) * self.norm(x) + shift))
        shift, scale, gate = parts[3:6]
        x = x + gate * self.dropout(self._attend((1 + scale) * self.norm(x) + shift, context, cache))
        shift, scale, gate = parts[6:]
        out: Tensor = x + gate * self.dropout(self.feed_forward((1 + scale) * self.norm(x) + shift))
        return out

    def _of_itself(self, x: Tensor) -> Tensor:
        own = self.self_attention
        attended: Tensor = own(x) if isinstance(own, OwnAttention) else own(x, None)
        return attended

    def _attend(self, x: Tensor, context: Context, cache: Cache | None) -> Tensor:
        placed = len(context.queries.scatter)
        seen: Tensor = self.cross_attention(x[:placed], context.queries, context.encoded, context.keys, cache)
        if context.dropped is not None:
            seen = seen.masked_fill(context.dropped[:, None], 0)
        return F.pad(seen, (0, 0, 0, len(x) - placed))


class TwoTowerLcm(GenerativeLcm):
    """Two-Tower: its loss is the squared error of the predicted x0 in normalised space, times ω(t): eq. 16."""

    def __init__(self, card: LcmCard, scaler: RobustScaler) -> None:
        super().__init__()
        assert card.contextualizer_layers is not None and card.denoiser_layers is not None
        assert card.diffusion is not None
        self.card, self.scaler = card, scaler
        dim, model_dim, heads, inner = len(scaler.median), card.model_dim, card.heads, card.inner_dim
        self.scaling = Scaling(scaler)
        self.diffusion = Diffusion(card.diffusion)
        self.context_pre = PreNet(dim, model_dim)
        self.contextualizer = nn.ModuleList(
            Block(model_dim, heads, SwiGLU(model_dim, inner), card.dropout) for _ in range(card.contextualizer_layers)
        )
        self.context_norm = RMSNorm(model_dim)
        self.timestep = TimestepEmbedding(model_dim)
        self.noisy_pre = PreNet(dim, model_dim)
        self.denoiser = nn.ModuleList(
            DenoiserBlock(model_dim, heads, inner, card.dropout, card.own_attention)
            for _ in range(card.denoiser_layers)
        )
        self.post = PostNet(model_dim, dim)
        initialize(self, card.contextualizer_layers)
        for block in self.denoiser:
            assert isinstance(block, DenoiserBlock)
            nn.init.zeros_(block.modulation.weight)

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of every sentence, the first of a document too, at a random timestep and with random
        noise.
        """
        check_lengths(batch.lengths, self.card.context)
        clean = self.scaling.normalize(batch.embeddings)
        t = self.diffusion.timesteps(len(clean), clean.device)
        noisy = self.diffusion.noised(clean, t, torch.randn_like(clean))
        dropped = torch.rand(len(clean), device=clean.device) < self.card.unconditional
        packing = batch.packing
        context = Context(self._read(clean, packing), packing, packing, dropped)
        predicted = self._denoise(noisy, Lookup.over(t, self.diffusion.steps + 1), context)
        return self.diffusion.weight(t) * (predicted - clean).square().sum(1)

    def flops(self, batch: Batch) -> float:
        """Count the operations of `losses`. Keys and queries of self-attention to one position are not computed; AdaLN
        is, once per timestep. PreNets and frequencies need no gradients of their inputs.
        """
        card, sentences, width = self.card, batch.sentences, self.card.model_dim
        assert card.contextualizer_layers is not None and card.denoiser_layers is not None
        feed_forward = 3 * width * card.inner_dim
        contextualizer = card.contextualizer_layers * (4 * width**2 + feed_forward)
        denoiser = card.denoiser_layers * (2 * width**2 + 4 * width**2 + feed_forward)
        ends = (2 * 2 / 3 + 1) * self.scaling.median.numel() * width
        entries = len(Lookup.over(batch.lengths[:1], self.diffusion.steps + 1).entries)
        timesteps = card.denoiser_layers * MODULATIONS * width**2 + width**2 + 2 / 3 * FREQUENCIES * width
        layers = card.contextualizer_layers + card.denoiser_layers
        return (
            matmul_flops(contextualizer + denoiser + ends, sentences)
            + matmul_flops(timesteps, entries)
            + Lookup.flops(entries, MODULATIONS * width, sentences) * card.denoiser_layers
            + attention_flops(width, visible_pairs(batch.lengths)) * layers
        )

    def blocks(self) -> list[nn.Module]:
        """Return the contextualizer's blocks, then the denoiser's."""
        return [*self.contextualizer, *self.denoiser]

    def _read(self, clean: Tensor, packing: Packing) -> Tensor:
        """Map (sentences, dim) normalised to (sentences, model_dim): what each may know of those before it."""
        rotations = Rotations.of(packing, self.card.model_dim // self.card.heads)
        x = self.context_pre(clean)
        for block in self.contextualizer:
            x = block(x, packing, rotations)
        return shifted(self.context_norm(x), packing.starts)

    def _denoise(self, noisy: Tensor, timesteps: Lookup, context: Context, caches: list[Cache] | None = None) -> Tensor:
        """Map x^t (positions, dim) to predicted x0, normalised; positions beyond the queries of `context` do not see
        it.
        """
        embedded = F.silu(self.timestep(timesteps.entries))
        x = self.noisy_pre(noisy)
        for number, block in enumerate(self.denoiser):
            x = block(x, embedded, timesteps, context, None if caches is None else caches[number])
        predicted: Tensor = self.post(x)
        return predicted

    def _draw(self, clean: Tensor, packing: Packing, queries: Packing, sampling: Sampling) -> Tensor:
        context = Context(self._read(clean, packing), packing, queries)
        caches = [Cache() for _ in self.denoiser]
        count, device = len(context.queries.scatter), context.encoded.device

        def denoise(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor | None]:
            timesteps = Lookup.same(t)
            if sampling.guidance == 1:
                return self._denoise(x, timesteps, context, caches), None
            conditional, unconditional = self._denoise(torch.cat([x, x]), timesteps, context, caches).chunk(2)
            return conditional, unconditional

        dim = self.scaling.median.numel()
        return self.scaling.denormalize(sample(denoise, count, dim, self.diffusion, sampling, device))
