"""A batch of packed documents: what the loader gives and every model takes. No padding, no Python object for a row."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from stages.batching import Tokens


@dataclass(frozen=True)
class Batch:
    """Sentences of a document follow each other, and documents follow each other.

    embeddings: (sentences, dim), as stored: float16, not normalised.
    lengths: (documents,) int64, on the host; they add up to `sentences`, and none is longer than the model's context.
    weights: (sentences,) float32: how much each counts as a target of the loss; 0: not at all (a prompt).
    codes: (sentences, codebooks) int32, those of the residual quantiser, where a model needs them.
    pieces: (documents,) int64, on the host: their numbers in the index, to name them in errors.
    texts: of the sentences, where they were asked for.
    tokens: of the sentences, `[language] pieces </s>`, on the host, where a model learns by words.
    """

    embeddings: Tensor
    lengths: Tensor
    weights: Tensor
    codes: Tensor | None = None
    pieces: Tensor | None = None
    texts: tuple[str, ...] | None = None
    tokens: Tokens | None = None

    @property
    def sentences(self) -> int:
        """How many sentences ("concepts") it holds."""
        return len(self.embeddings)

    @property
    def targets(self) -> int:
        """How many of them count in the loss."""
        return int((self.weights > 0).sum())

    def to(self, device: str | torch.device) -> Self:
        """What models compute with, on a device; lengths, pieces, texts and tokens stay on the host."""
        return replace(
            self,
            embeddings=self.embeddings.to(device, non_blocking=True),
            weights=self.weights.to(device, non_blocking=True),
            codes=None if self.codes is None else self.codes.to(device, non_blocking=True),
        )

    def pinned(self) -> Self:
        """In page-locked memory, from which a GPU copies while it computes."""
        changes: dict[str, Any] = {
            one.name: value.pin_memory() for one in fields(self) if isinstance(value := getattr(self, one.name), Tensor)
        }
        return replace(self, **changes)


def of_documents(documents: list[Tensor], weight: float = 1.0) -> Batch:
    """A batch of (sentences, dim) tensors, one a document."""
    lengths = torch.tensor([len(one) for one in documents])
    embeddings = torch.cat(documents)
    return Batch(embeddings, lengths, torch.full((len(embeddings),), weight, device=embeddings.device))
