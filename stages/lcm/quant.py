"""Quant-LCM, LCM 2.3.5: the One-Tower on residual codes, coarse to fine, instead of on noise.

A sentence is approached by the sums of the centroids of its first codebooks. In training a codebook k is drawn for
every sentence; the model sees the sum over the k − 1 before it, and learns the unit of codebook k (Quant-LCM-d) or the
whole embedding (Quant-LCM-c). To predict, it starts at zero and adds one centroid of each codebook in turn: `codebooks`
passes of the model, twice as many with guidance; the context is read once.

Sums and residuals are raw embeddings, because the codebooks are fitted to those; they are normalised (eq. 4) where they
enter the network, the zero vector of k = 1 like any other sum.

Centroids stay in float16, 1.07 GB at 64 × 8192 and dim 1024. They belong to the corpus, not to the weights, so they are
not in the model's state.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.lcm.attention import Cache
from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard
from stages.lcm.interleaved import InterleavedTransformer
from stages.lcm.layers import Scaling
from stages.lcm.model import GenerativeLcm, Sampling
from stages.lcm.packing import Packing, check_lengths
from stages.lcm.sampler import sample_unit
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler


def sums_of_first(centroids: Tensor, codes: Tensor, counts: Tensor) -> Tensor:
    """Return the sums of the first centroids of each row, added in the order of the codebooks.

    Args:
        centroids: (codebooks, units, dim).
        codes: (n, codebooks).
        counts: (n,) int64, how many codebooks are added up.

    Returns:
        (n, dim) float32, in the space of embeddings before scaling.
    """
    x = torch.zeros(len(codes), centroids.shape[2], device=centroids.device)
    for level, units in enumerate(codes.long().unbind(1)):
        x += centroids[level][units].float() * (counts > level)[:, None]
    return x


def residual_logits(centroids: Tensor, residual: Tensor) -> Tensor:
    """Return (n, units) of centroids (units, dim) and residual (n, dim): −‖c − r̂‖₂, whose softmax is eq. 23 at
    β = 1.
    """
    return -torch.cdist(residual, centroids.float(), compute_mode="use_mm_for_euclid_dist")


class QuantLcm(GenerativeLcm):
    """What both kinds have in common. Codebooks count from 1 where they are indices; 0 is the index of the context.

    Args:
        card: the architecture.
        scaler: the scaler of embeddings.
        codebooks: the codebooks, over embeddings of the same width.

    Raises:
        ValueError: if the widths differ.
    """

    centroids: Tensor

    def __init__(self, card: LcmCard, scaler: RobustScaler, codebooks: Codebooks) -> None:
        super().__init__()
        self.card, self.scaler = card, scaler
        self.codebooks, units, dim = codebooks.centroids.shape
        if dim != len(scaler.median):
            raise ValueError(
                f"codebooks of dimension {dim}, but a scaler of {len(scaler.median)}: fit both to the same embeddings"
            )
        self.scaling = Scaling(scaler)
        self.register_buffer("centroids", codebooks.centroids, persistent=False)
        index = nn.Embedding(self.codebooks + 1, card.model_dim)
        out_dim = units if card.kind == "quant-d" else dim
        self.transformer = InterleavedTransformer(card, dim, out_dim, index, self.codebooks + 1)

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss of every sentence, the first of a document too, at a random codebook. Raises ValueError
        without codes.
        """
        check_lengths(batch.lengths, self.card.context)
        codes = self._codes(batch)
        clean = self.scaling.normalize(batch.embeddings)
        codebook = torch.randint(1, self.codebooks + 1, (len(clean),), device=clean.device)
        sums = self.scaling.normalize(sums_of_first(self.centroids, codes, codebook - 1))
        dropped = torch.rand(len(clean), device=clean.device) < self.card.unconditional
        output = self.transformer(clean, sums, codebook, dropped, batch.packing)
        return self._losses(output, clean, codes.gather(1, codebook[:, None] - 1).squeeze(1).long())

    def flops(self, batch: Batch) -> float:
        """Count the operations of `losses`; sums of centroids and the table of indices are looked up."""
        return self.transformer.flops(batch.lengths)

    def blocks(self) -> list[nn.Module]:
        """Return the transformer's blocks."""
        return list(self.transformer.layers)

    @abstractmethod
    def _losses(self, output: Tensor, clean: Tensor, units: Tensor) -> Tensor:
        """Return the (sentences,) losses of what the transformer says of normalised embeddings and of the units of
        their codebooks.
        """

    @abstractmethod
    def _logits(self, output: Tensor, sums: Tensor, centroids: Tensor) -> Tensor:
        """Return (n, units) logits of the next unit after raw sums (n, dim), for the centroids (units, dim) of a
        codebook.
        """

    def _draw(self, clean: Tensor, packing: Packing, queries: Packing, sampling: Sampling) -> Tensor:
        caches = self.transformer.read(clean, packing)
        sums = torch.zeros(len(queries.scatter), self.centroids.shape[2], device=self.centroids.device)
        for number, centroids in enumerate(self.centroids, 1):
            output = self._guided(sums, number, caches, queries, sampling.guidance)
            logits = self._logits(output, sums, centroids)
            sums = sums + centroids[sample_unit(logits, sampling.temperature, sampling.top_k, sampling.top_p)].float()
        return sums

    def _guided(self, sums: Tensor, number: int, caches: list[Cache], queries: Packing, guidance: float) -> Tensor:
        """Apply classifier-free guidance, eq. 20, to what the transformer says at codebook `number`."""
        x = self.scaling.normalize(sums)
        if guidance != 1:
            x = torch.cat([x, x])  # the second half sees no context
        index = torch.full((len(x),), number, device=x.device)
        output = self.transformer.refine(x, index, queries, caches)
        if guidance == 1:
            return output
        conditional, unconditional = output.chunk(2)
        return unconditional + guidance * (conditional - unconditional)

    def _codes(self, batch: Batch) -> Tensor:
        if batch.codes is None:
            raise ValueError(
                f"{self.card.name} models codes, but its sentences have no codes: the corpus needs a section rvq"
            )
        if batch.codes.shape[1] != self.codebooks:
            raise ValueError(
                f"{batch.codes.shape[1]} codes per sentence, but {self.codebooks} codebooks: take both from one fit"
            )
        return batch.codes


class QuantLcmC(QuantLcm):
    """Continuous targets: predicts the embedding; the next centroid lies near what is left to it, eq. 23."""

    def _losses(self, output: Tensor, clean: Tensor, units: Tensor) -> Tensor:
        return (output - clean).square().sum(1)

    def _logits(self, output: Tensor, sums: Tensor, centroids: Tensor) -> Tensor:
        return residual_logits(centroids, self.scaling.denormalize(output) - sums)


class QuantLcmD(QuantLcm):
    """Discrete targets: predicts the unit of the next codebook; the output is shared by all codebooks."""

    def _losses(self, output: Tensor, clean: Tensor, units: Tensor) -> Tensor:
        return F.cross_entropy(output, units, reduction="none")

    def _logits(self, output: Tensor, sums: Tensor, centroids: Tensor) -> Tensor:
        return output
