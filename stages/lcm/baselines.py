"""Baselines that any Large Concept Model must beat, which learn nothing and have the same `predict`; and the truth.

Cost: a copy of the embeddings.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from stages.lcm.batch import Batch
from stages.lcm.model import Sampling


class SentencePredictor(Protocol):
    """Anything that predicts sentences, as `Lcm.predict` does."""

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Return (sentences, dim) float32: each predicted from the previous sentences of its document, not
        normalised.
        """


class Previous:
    """Repeats the previous sentence; zeros at the beginning of a document."""

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict as `SentencePredictor` says."""
        found = torch.zeros_like(batch.embeddings, dtype=torch.float32)
        found[1:] = batch.embeddings[:-1].float()
        found[(batch.lengths.cumsum(0) - batch.lengths).to(found.device)] = 0
        return found


class MeanBaseline:
    """Always predicts the same vector, (dim,): the median of the corpus, from its scaler."""

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector.float()

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict as `SentencePredictor` says."""
        return self._vector.to(batch.embeddings.device).expand(batch.sentences, -1).clone()


class Truth:
    """Knows the sentence, which no model can beat. Its round trip is that of the decoder alone."""

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Predict as `SentencePredictor` says."""
        return batch.embeddings.float()
