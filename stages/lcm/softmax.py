"""−log softmax of scores against many rows, a chunk of scores at a time: against a vocabulary, or a micro-batch.

Cost: 2 · n · m · d operations forward, and 6 · n · m · d backward, where scores are computed a second time. Memory:
`SCORES` scores, twice (268 MB each in float32), whatever n and m are, and the gradients of what is given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

SCORES = 1 << 26  # that exist at a time


def softmax_losses(queries: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
    """Return −log softmax(queries · keysᵀ) at the labels.

    Products are in the format of autocast, or in that of `queries`; all else is in float32 at least. Gradients reach
    queries and keys.

    Args:
        queries: (n, d).
        keys: (m, d).
        labels: (n,) int64 below m.

    Returns:
        (n,) float32.
    """
    losses: Tensor = _SoftmaxLosses.apply(queries, keys, labels)  # type: ignore[no-untyped-call]
    return losses


class _SoftmaxLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
        kind = queries.device.type
        ctx.format = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else queries.dtype
        q, k = queries.to(ctx.format), keys.to(ctx.format)
        precise = torch.promote_types(ctx.format, torch.float32)
        normals, own = (torch.empty(len(q), dtype=precise, device=q.device) for _ in range(2))
        with torch.autocast(kind, enabled=False):
            for some in _chunks(len(q), len(k), q.device):
                scores = (q[some] @ k.T).to(normals.dtype)
                normals[some] = scores.logsumexp(1)
                own[some] = scores.gather(1, labels[some, None])[:, 0]
        ctx.save_for_backward(queries, keys, labels, normals)
        return normals - own

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, keys, labels, normals = ctx.saved_tensors
        q, k = queries.to(ctx.format), keys.to(ctx.format)
        of_queries = torch.zeros_like(queries)
        of_keys = torch.zeros_like(keys, dtype=normals.dtype)
        for some in _chunks(len(q), len(k), q.device):
            shares = (q[some] @ k.T).to(normals.dtype).sub_(normals[some, None]).exp_()
            shares.scatter_add_(1, labels[some, None], shares.new_full((len(shares), 1), -1.0))
            weighed = shares.mul_(upstream[0][some, None]).to(ctx.format)
            of_queries[some] = (weighed @ k).to(of_queries.dtype)
            of_keys += weighed.T @ q[some]
        return of_queries, of_keys.to(keys.dtype), None


def _chunks(queries: int, keys: int, device: torch.device) -> Iterator[Tensor]:
    """Yield the places of queries whose scores are computed together."""
    if queries:
        yield from torch.arange(queries, device=device).split(max(1, SCORES // max(1, keys)))
