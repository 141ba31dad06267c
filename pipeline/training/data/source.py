"""One corpus of a mix that is trained on."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.training.data.index import Index


@dataclass(frozen=True)
class TrainingSource:
    """A corpus of a mix. weight: its share of the micro-batches, in proportion to those of the others."""

    index: Index
    weight: float = 1.0
