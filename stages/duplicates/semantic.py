"""Sentences that mean the same: similar embeddings within a cluster (SemDeDup, arXiv 2303.09540, section 3).

Cost: the square of the number of distinct embeddings of a cluster, times their width.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stages.duplicates.hashing import Ints

BLOCK = 1024  # embeddings that are compared with all others at once


def similar(embeddings: npt.NDArray[np.float16], cosine: float) -> tuple[Ints, Ints]:
    """Return the first row that is similar to each one, itself if no earlier one is, and how many are, with itself.

    embeddings: (rows, dim) of one cluster, in the order in which one is the first; cosine: the least of similar ones.
    """
    rows = np.ascontiguousarray(embeddings)
    _, firsts, of, counts = np.unique(
        rows.view([("", rows.dtype)] * rows.shape[1]).reshape(-1), return_index=True, return_inverse=True,
        return_counts=True,
    )  # fmt: skip
    order = np.argsort(firsts)  # distinct embeddings, as they occur first
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    firsts, counts, of = firsts[order], counts[order], rank[of.reshape(-1)]
    unit = rows[firsts].astype(np.float32)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    first, sizes = np.empty(len(unit), np.int64), np.empty(len(unit), np.int64)
    for start in range(0, len(unit), BLOCK):
        alike = unit[start : start + BLOCK] @ unit.T >= cosine
        own = np.arange(len(alike))
        alike[own, start + own] = True
        first[start : start + BLOCK] = alike.argmax(axis=1)
        sizes[start : start + BLOCK] = alike @ counts
    return firsts[first][of].astype(np.int64), sizes[of]
