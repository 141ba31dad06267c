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
from stages.lcm.ngram import NgramHeads
from stages.lcm.packing import Packing, check_lengths, lengthened, pack, shifted, visible_pairs
from stages.scaler.robust import RobustScaler

START = 0.5  # standard deviation of PreNet's bias at the start: it is the input of each first position


class BaseLcm(Lcm):
    """Base-LCM: the input at a position is the sentence before it, and the zero vector at the first of a document.

    PreNet's output for the zero vector is its bias. The loss is the squared error in the space of embeddings (eq. 5),
    divided by the mean of iqr² over dimensions: the same minimum, but of the magnitude of the other models' losses,
    which Adam's ε and clipping of gradients are set for.
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
        self.ngram = NgramHeads(card.ngram, card.model_dim, self.post) if card.ngram else None
        initialize(self, card.layers)
        nn.init.normal_(self.pre.project.bias, std=START)

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of every sentence, the first of a document too. With n-gram heads, it includes in training
        mode what they predict from further back (`ngram.py`), and in evaluation mode the first head alone.
        """
        check_lengths(batch.lengths, self.card.context)
        clean = self.scaling.normalize(batch.embeddings)
        packing = batch.packing
        read = self._read(clean, packing)
        plain = self._error(self.post(read), batch.embeddings)
        if self.ngram is None or not self.training:
            return plain
        found, before = self.ngram.shares[0] * plain, packing.preceding
        for number, share in list(enumerate(self.ngram.shares))[1:]:
            ahead = self.ngram.ahead(number, read, clean).roll(number, 0)  # to the place of what it predicts
            found = found + share * self._error(ahead, batch.embeddings).masked_fill(before < number, 0)
        return found

    @inference
    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict in one pass; nothing is drawn. Of `sampling` only the ensemble of n-gram heads has an effect."""
        check_lengths(batch.lengths, self.card.context)
        clean = self.scaling.normalize(batch.embeddings)
        return self.scaling.denormalize(self._predict(clean, batch.packing, sampling.ensemble))

    @inference
    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict in one pass; nothing is drawn. Of `sampling` only the ensemble of n-gram heads has an effect."""
        check_lengths(batch.lengths, self.card.context, room=1)
        lengths = batch.lengths + 1
        longer = lengthened(self.scaling.normalize(batch.embeddings), batch.lengths)
        ends = (lengths.cumsum(0) - 1).to(longer.device)
        packing = pack(lengths, longer.device)
        return self.scaling.denormalize(self._predict(longer, packing, sampling.ensemble)[ends])

    def flops(self, batch: Batch) -> float:
        """Count the operations of `losses`; PreNet needs no gradient of its input."""
        card, dim, sentences = self.card, self.scaling.median.numel(), batch.sentences
        assert card.layers is not None
        inner = card.heads * card.width_of_head
        block = 4 * card.model_dim * inner + 3 * card.model_dim * card.inner_dim
        ends = dim * card.model_dim
        heads = (card.ngram.n - 1) * (2 * card.model_dim**2 + ends) if card.ngram else 0
        return (
            matmul_flops(card.layers * block + 5 / 3 * ends + heads, sentences)
            + attention_flops(inner, visible_pairs(batch.lengths)) * card.layers
        )

    def blocks(self) -> list[nn.Module]:
        """Return the layers."""
        return list(self.layers)

    def _predict(self, normalized: Tensor, packing: Packing, ensemble: float = 0.0) -> Tensor:
        """Map (sentences, dim) normalised to the prediction of each from those before it, normalised. ensemble: λ."""
        read = self._read(normalized, packing)
        if self.ngram is not None and ensemble:
            return self.ngram.ensemble(read, normalized, packing.preceding, ensemble)
        predicted: Tensor = self.post(read)
        return predicted

    def _error(self, predicted: Tensor, embeddings: Tensor) -> Tensor:
        """Return the (sentences,) squared errors of normalised predictions, eq. 5, over the mean of iqr²."""
        return (self.scaling.denormalize(predicted) - embeddings.float()).square().sum(1) / self.spread

    def _read(self, normalized: Tensor, packing: Packing) -> Tensor:
        """Map (sentences, dim) normalised to (sentences, model_dim): what each may know of those before it."""
        rotations = Rotations.of(packing, self.card.width_of_head, self.card.rope_base)
        x: Tensor = self.pre(shifted(normalized, packing.starts))
        for block in self.layers:
            x = block(x, packing, rotations)
        return x
