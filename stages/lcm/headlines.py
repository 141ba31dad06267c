"""Headlines: the sentence of each paragraph that serves as its plan, LCM 4.3. Imports no torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
SLICE = 1024  # sentences that are compared at once: 16 MB at 1024 dimensions


def headlines(embeddings: npt.NDArray[Any], starts: Ints) -> Ints:
    """Return the place of each paragraph's headline: the sentence nearest to the mean of the paragraph; of equal ones
    the first.

    embeddings: (sentences, dim); starts: (paragraphs,) where paragraphs begin, ascending from 0.
    """
    ends = np.append(starts[1:], len(embeddings))
    found = np.empty(len(starts), np.int64)
    at = 0
    while at < len(starts):
        low = int(starts[at])
        until = max(at + 1, int(np.searchsorted(ends, low + SLICE, side="right")))
        found[at:until] = low + _nearest(embeddings[low : ends[until - 1]], starts[at:until] - low)
        at = until
    return found


def _nearest(embeddings: npt.NDArray[Any], starts: Ints) -> Ints:
    """Return the headlines of some paragraphs of about `SLICE` sentences, or of one that is longer."""
    sizes = np.diff(starts, append=len(embeddings))
    if len(starts) == 1:
        means = embeddings.mean(axis=0, dtype=np.float64)[None]
    else:
        means = np.add.reduceat(embeddings, starts, axis=0, dtype=np.float64) / sizes[:, None]
    paragraph = np.repeat(np.arange(len(starts)), sizes)
    distances = np.empty(len(embeddings))
    for low in range(0, len(embeddings), SLICE):
        some = slice(low, low + SLICE)
        x = embeddings[some] - means[paragraph[some]]
        distances[some] = np.einsum("ij,ij->i", x, x)
    nearest = np.flatnonzero(distances <= np.repeat(np.minimum.reduceat(distances, starts), sizes))
    found: Ints = nearest[np.searchsorted(nearest, starts)]
    return found
