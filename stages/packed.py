"""Rows of several lengths in one tensor, end to end: (tokens, …), without padding and without a mask.

Operations on single tokens use the tensor as it is, so that a batch is one matrix product, however many lengths it
holds. Attention treats each run of rows of one length as a block. A row's result is that of a batch of its own length,
to the last bit if a matrix product's rows do not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Runs = Sequence[tuple[int, int]]  # (rows, tokens of each) of neighbours of one length


def runs_of(lengths: npt.NDArray[np.int64]) -> Runs:
    """Return the runs of rows of equal length. `lengths`: (rows,) tokens of each, each ≥ 1."""
    edges = np.concatenate([[0], np.flatnonzero(np.diff(lengths)) + 1, [len(lengths)]])
    return list(zip(np.diff(edges).tolist(), lengths[edges[:-1]].tolist(), strict=True))


def blocks(x: Tensor, runs: Runs) -> Iterator[Tensor]:
    """Yield (rows, length, …) of each run, views of (tokens, …)."""
    start = 0
    for rows, length in runs:
        stop = start + rows * length
        yield x[start:stop].view(rows, length, *x.shape[1:])
        start = stop


def joined(found: Sequence[Tensor]) -> Tensor:
    """Join (rows, length, …) of each run to (tokens, …)."""
    flat = [one.flatten(0, 1) for one in found]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def in_order(ids: Tensor, starts: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Return the places of rows that are put end to end.

    They are computed on the ids' device, which the host does not wait for.

    Args:
        ids: the tokens of all rows.
        starts: (rows,) where each row begins in `ids`.
        lengths: (rows,) how many tokens it has.
        total: the sum of `lengths`.

    Returns:
        (total,) places in `ids`.
    """
    ends = lengths.cumsum(0)
    shift = torch.repeat_interleave(starts - ends + lengths, lengths, output_size=total)
    return shift.add_(torch.arange(total, device=ids.device))
