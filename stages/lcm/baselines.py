"""What any Large Concept Model must beat: predictors that learn nothing, with the same `predict`. And the truth.

Cost: a copy of the embeddings.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from stages.lcm.batch import Batch
from stages.lcm.model import Sampling


class SentencePredictor(Protocol):
    """Whatever predicts sentences, as `Lcm.predict` does."""

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """(sentences, dim) float32: each predicted from the sentences before it in its document, not normalised."""


class Previous:
    """Says the sentence before again; zeros at the beginning of a document."""

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """See `Predictor`."""
        found = torch.zeros_like(batch.embeddings, dtype=torch.float32)
        found[1:] = batch.embeddings[:-1].float()
        found[(batch.lengths.cumsum(0) - batch.lengths).to(found.device)] = 0
        return found


class Mean:
    """Says the same vector, (dim,), wherever it is asked: the median of the corpus, as its scaler has it."""

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector.float()

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """See `Predictor`."""
        return self._vector.to(batch.embeddings.device).expand(batch.sentences, -1).clone()


class Truth:
    """Knows the sentence: what no model can beat. Its round trip is that of the decoder alone."""

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """See `Predictor`."""
        return batch.embeddings.float()
