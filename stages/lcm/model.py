"""The interface of every Large Concept Model: the loss on a batch, and predicted embeddings.

Random numbers (noise, timesteps, dropout, samples) come from PyTorch's global generators, which the caller seeds, so
that a step can be repeated bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from stages.lcm.batch import Batch
from stages.lcm.card import Kind, LcmCard
from stages.lcm.layers import Scaling, inference
from stages.lcm.packing import Packing, check_lengths, last, lengthened, pack
from stages.scaler.robust import RobustScaler


@dataclass(frozen=True)
class Sampling:
    """How embeddings are drawn from a model, LCM 2.4.1; `options_of` says which models read what.

    `guidance`: g_scale of both (1: no guidance; the unconditional model is then not computed).
    """

    steps: int = 40
    guidance: float = 3.0
    rescale: float = 0.7  # g_rescale
    initial_noise: float = 0.6  # σ_init
    epsilon_scaling: float = 1.00045  # λ_eps
    eta: float = 0.0  # noise added at every step; 1: as much as DDPM does
    clip: float | None = None  # of predicted normalised values
    temperature: float = 1.0  # 1/β of eq. 23
    top_k: int | None = 1
    top_p: float | None = None
    ensemble: float = 0.0  # λ of n-gram heads


def paper_sampling(kind: Kind, generating: bool) -> Sampling:
    """Return the paper's choice for a kind of model, LCM 2.4.1.

    `generating`: several sentences are drawn one after the other, not one sentence of a given context. Quant-LCM then
    draws at random: greedily, it repeats itself.
    """
    if kind == "quant-d":
        return Sampling(guidance=1, temperature=1, top_k=3) if generating else Sampling(guidance=2, top_k=1)
    if kind == "quant-c":
        return Sampling(guidance=1.5, temperature=0.005, top_k=5) if generating else Sampling(guidance=3, top_k=1)
    return Sampling()


class Lcm(nn.Module, ABC):
    """A model of `card` over embeddings of a corpus: `scaler` normalises them, LCM eq. 4."""

    card: LcmCard
    scaler: RobustScaler

    @abstractmethod
    def losses(self, batch: Batch) -> Tensor:
        """Return (sentences,) float32: the loss of each as a target, without `batch.weights`.

        A sum over its dimensions; Quant-LCM-d: the cross-entropy of its unit.
        """

    def begin_step(self, step: int, steps: int) -> None:
        """Prepare for step number `step`, counted from 0, of `steps`: some objectives change while a model learns."""

    def check(self, batch: Batch) -> None:
        """Raise ValueError for a micro-batch, on the host, from which this objective cannot learn."""

    @abstractmethod
    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Return (sentences, dim) float32: each predicted from the previous sentences of its document, not normalised.

        The first of a document is predicted from nothing.
        """

    @abstractmethod
    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Return (documents, dim) float32: the sentence that follows each document, not normalised."""

    @abstractmethod
    def flops(self, batch: Batch) -> float:
        """Return the floating-point operations of forward and backward passes of `losses`, which the MFU counts.

        Recomputation, dropped rows and what a mask hides are not counted.
        """

    @abstractmethod
    def blocks(self) -> list[nn.Module]:
        """Return the Transformer blocks, in order: FSDP shards each, activation checkpointing repeats it."""


class GenerativeLcm(Lcm):
    """A model that draws each embedding from a distribution: One-Tower, Two-Tower and Quant-LCM predict by `_draw`.

    What was there before is read once; then all positions that are asked for are drawn together, step by step.
    """

    scaling: Scaling

    @inference
    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict all positions at once; this needs no codes."""
        check_lengths(batch.lengths, self.card.context)
        clean = self.scaling.normalize(batch.embeddings)
        packing = batch.packing
        return self._draw(clean, packing, packing, sampling)

    @inference
    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict the next sentence of all documents at once; this needs no codes."""
        check_lengths(batch.lengths, self.card.context, room=1)
        longer, lengths = lengthened(self.scaling.normalize(batch.embeddings), batch.lengths), batch.lengths + 1
        packing = pack(lengths, longer.device, alone=True)
        return self._draw(longer, packing, last(packing, lengths), sampling)

    @abstractmethod
    def _draw(self, clean: Tensor, packing: Packing, queries: Packing, sampling: Sampling) -> Tensor:
        """Draw one embedding, not normalised, for each of `queries`, from those before it among `clean` (positions,
        dim), which are normalised and placed by `packing`.
        """
