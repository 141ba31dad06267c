"""One corpus of a mix that is trained on."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.train.data.index import Index


@dataclass(frozen=True)
class Source:
    """A corpus of a mix. weight: its share of the micro-batches, in proportion to those of the others."""

    index: Index
    weight: float = 1.0
