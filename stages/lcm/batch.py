"""A batch of packed documents, from the loader to every model. No padding, no Python object per row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from stages.batching import Indices, Tokens
from stages.lcm.packing import Layout, Packing, layout_of, packing_of


@dataclass(frozen=True)
class Batch:
    """A batch of packed documents, one after the other, each with its sentences in order.

    `embeddings`: (sentences, dim), as stored: float16, not normalised. `lengths`: (documents,) int64, on the host; they
    add up to `sentences`, and none is longer than the model's context. `weights`: (sentences,) float32: how much each
    counts as a target of the loss; 0: not at all (a prompt). `codes`: (sentences, codebooks) int32, those of the
    residual quantiser, if a model needs them. `sequences`: (documents,) int64, on the host: their numbers in the index,
    to name them in errors. `texts`: of the sentences, if they were asked for. `paragraphs`: (sentences,) int32, on the
    host: the number of each one's paragraph in its document, with the texts; −1 for a sentence that closes it.
    `tokens`: of the sentences, `[language] pieces </s>`, on the host, if a model learns from words.
    """

    embeddings: Tensor
    lengths: Tensor
    weights: Tensor
    codes: Tensor | None = None
    sequences: Tensor | None = None
    texts: tuple[str, ...] | None = None
    paragraphs: Tensor | None = None
    tokens: Tokens | None = None
    layout: Layout | None = None
    weights_on_host: Tensor | None = None

    @property
    def sentences(self) -> int:
        """The number of sentences ("concepts")."""
        return len(self.embeddings)

    @property
    def targets(self) -> int:
        """The number of sentences that count in the loss."""
        return int((self.weights > 0).sum())

    @property
    def target_rows(self) -> Indices:
        """The rows of sentences that count in the loss, ascending; of a batch that moved, without a wait."""
        weights = self.weights.cpu() if self.weights_on_host is None else self.weights_on_host
        return np.flatnonzero(weights.numpy() > 0)

    @property
    def packing(self) -> Packing:
        """The packing of the documents, on the device of the embeddings."""
        return packing_of(self.layout or layout_of(self.lengths), self.embeddings.device)

    def to(self, device: str | torch.device) -> Self:
        """Move what models compute with to a device; lengths, pieces, texts and tokens stay on the host."""
        moved = self._changed(lambda one: one.to(device, non_blocking=True))
        return moved if self.weights.device == moved.weights.device else replace(moved, weights_on_host=self.weights)

    def pinned(self) -> Self:
        """Copy to page-locked memory, from which a GPU copies while it computes."""
        return self._changed(Tensor.pin_memory)

    def split(self, documents: int = 1) -> Iterator[Self]:
        """Return the documents in smaller batches, each of this many, the last one of what is left."""
        ends = self.lengths.cumsum(0).tolist()
        for first in range(0, len(ends), documents):
            last = min(first + documents, len(ends))
            rows = slice(ends[first - 1] if first else 0, ends[last - 1])
            yield replace(
                self,
                embeddings=self.embeddings[rows],
                lengths=self.lengths[first:last],
                weights=self.weights[rows],
                codes=None if self.codes is None else self.codes[rows],
                sequences=None if self.sequences is None else self.sequences[first:last],
                texts=None if self.texts is None else self.texts[rows],
                paragraphs=None if self.paragraphs is None else self.paragraphs[rows],
                tokens=None if self.tokens is None else self.tokens.select(np.arange(rows.start, rows.stop)),
                layout=None,  # that of these documents, once it is needed
                weights_on_host=None if self.weights_on_host is None else self.weights_on_host[rows],
            )

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        layout = self.layout
        return replace(
            self,
            embeddings=change(self.embeddings),
            weights=change(self.weights),
            codes=None if self.codes is None else change(self.codes),
            layout=None if layout is None else replace(layout, places=change(layout.places)),
        )


def of_documents(documents: list[Tensor], weight: float = 1.0) -> Batch:
    """Return a batch of (sentences, dim) tensors, one per document."""
    lengths = torch.tensor([len(one) for one in documents])
    embeddings = torch.cat(documents)
    return Batch(embeddings, lengths, torch.full((len(embeddings),), weight, device=embeddings.device))
