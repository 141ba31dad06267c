"""Base-LCM: a decoder-only Transformer that regresses the next embedding, LCM 2.3.1."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stages.lcm.attention import Rotations
from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard
from stages.lcm.layers import (
    Block,
    PostNet,
    PreNet,
    Scaling,
    SwiGLU,
    attention_flops,
    inference,
    initialize,
    matmul_flops,
)
from stages.lcm.model import Lcm, Sampling
from stages.lcm.packing import check_lengths, lengthened, pack, shifted, starts, visible_pairs
from stages.scaler.robust import RobustScaler

START = 0.5  # standard deviation of PreNet's bias at the start: it is the input of each first position


class BaseLcm(Lcm):
    """The input at a position is the sentence before it; at the first of a document the zero vector, so PreNet's bias.

    The loss is the squared error in the space of embeddings (eq. 5), divided by the mean of iqr² over dimensions: the
    same minimum, but of the size of the other models' losses, which Adam's ε and clipping of gradients count on.
    """

    spread: Tensor

    def __init__(self, card: LcmCard, scaler: RobustScaler) -> None:
        super().__init__()
        assert card.layers is not None
        self.card, self.scaler = card, scaler
        dim = len(scaler.median)
        varying = ~scaler.constant.expand_as(scaler.iqr)  # the iqr of others only stands in
        spread = (scaler.iqr.square() * varying).sum() / varying.sum()
        self.register_buffer("spread", torch.where(varying.any(), spread, 1.0), persistent=False)
        self.scaling = Scaling(scaler)
        self.pre = PreNet(dim, card.model_dim)
        self.layers = nn.ModuleList(
            Block(card.model_dim, card.heads, SwiGLU(card.model_dim, card.inner_dim), card.dropout, card.head_dim)
            for _ in range(card.layers)
        )
        self.post = PostNet(card.model_dim, dim)
        initialize(self, card.layers)
        nn.init.normal_(self.pre.project.bias, std=START)

    def losses(self, batch: Batch) -> Tensor:
        """Of every sentence, the first of a document too."""
        check_lengths(batch.lengths, self.card.context)
        predicted = self._predict(self.scaling.normalize(batch.embeddings), batch.lengths)
        error = self.scaling.denormalize(predicted) - batch.embeddings.float()
        return error.square().sum(1) / self.spread

    @inference
    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """One pass; nothing is drawn, so that `sampling` has no effect."""
        check_lengths(batch.lengths, self.card.context)
        return self.scaling.denormalize(self._predict(self.scaling.normalize(batch.embeddings), batch.lengths))

    @inference
    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        """One pass; nothing is drawn, so that `sampling` has no effect."""
        check_lengths(batch.lengths, self.card.context, room=1)
        lengths = batch.lengths + 1
        longer = lengthened(self.scaling.normalize(batch.embeddings), batch.lengths)
        ends = (lengths.cumsum(0) - 1).to(longer.device)
        return self.scaling.denormalize(self._predict(longer, lengths)[ends])

    def flops(self, batch: Batch) -> float:
        """PreNet needs no gradient of its input."""
        card, dim, sentences = self.card, self.scaling.median.numel(), batch.sentences
        assert card.layers is not None
        inner = card.heads * card.width_of_head
        block = 4 * card.model_dim * inner + 3 * card.model_dim * card.inner_dim
        ends = dim * card.model_dim
        return (
            matmul_flops(card.layers * block + 5 / 3 * ends, sentences)
            + attention_flops(inner, visible_pairs(batch.lengths)) * card.layers
        )

    def blocks(self) -> list[nn.Module]:
        """The layers."""
        return list(self.layers)

    def _predict(self, normalized: Tensor, lengths: Tensor) -> Tensor:
        """(sentences, dim) normalised → the prediction of each from those before it, normalised."""
        predicted: Tensor = self.post(self._read(normalized, lengths))
        return predicted

    def _read(self, normalized: Tensor, lengths: Tensor) -> Tensor:
        """(sentences, dim) normalised → (sentences, model_dim): what each may know of those before it."""
        packing = pack(lengths, normalized.device)
        rotations = Rotations.of(packing, self.card.width_of_head, self.card.rope_base)
        x: Tensor = self.pre(shifted(normalized, starts(lengths, normalized.device)))
        for block in self.layers:
            x = block(x, packing, rotations)
        return x
