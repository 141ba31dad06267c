"""Groups sentences into paragraphs (LCM 4.3): SaT's boundaries, fewer than ten sentences each, single
sentences joined.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.segment.merging import joined
from stages.segment.sat.best_cuts import best_cuts
from stages.segment.text import Flags, Indices

MOST, LEAST = 9, 2  # sentences of a paragraph
SILENT = -1e2


def paragraph_ends(odds: NDArray[np.float32], blank_line: Flags, document: Indices) -> Flags:
    """Return whether a paragraph ends with each sentence.

    A paragraph of more than nine sentences is cut where that is most probable; a single sentence joins the paragraph
    before it, or else the next one, if both have together at most nine and are in one document.

    Args:
        odds: (sentences,) log odds of a paragraph's end after each, minus those of the threshold.
        blank_line: whether one follows, which ends a paragraph too.
        document: (sentences,) the number of its document, ascending.
    """
    count = len(odds)
    if not count:
        return np.empty(0, np.bool_)
    document_ends = np.diff(document, append=document[-1] + 1) > 0
    ends = document_ends | blank_line | (odds > 0)
    # node k + 1 stands behind sentence k; a path that goes through all ends that are known
    gains = np.append(0.0, np.clip(odds.astype(np.float64), SILENT, 0.0))
    known = np.maximum.accumulate(np.append(0, np.where(ends, np.arange(count) + 1, 0)))
    left = np.maximum(np.arange(count + 1) - MOST, np.append(0, known[:-1]))
    ends[best_cuts(gains, left) - 1] = True
    last = np.flatnonzero(ends)
    size = np.diff(np.append(0, last + 1))
    before = np.append(0, np.cumsum(size)).tolist()

    def too_small(first: int, to: int) -> bool:
        return bool(before[to + 1] - before[first] < LEAST)

    def fits(first: int, to: int) -> bool:
        return bool(before[to + 1] - before[first] <= MOST)

    ends[last[~np.array(joined(len(last), document_ends[last].tolist(), too_small, fits))]] = False
    return ends
