"""Attention over packed documents: (positions, dim) tensors in and out, blocks in between.

Nothing here has biases: a zero vector has a key and a value of zero. Rotations are computed in float32, whatever
autocast does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.lcm.packing import Packing

BASE = 10_000.0  # of RoPE, where a card names no other


@dataclass(frozen=True)
class Rotations:
    """RoPE: cosines and sines (rows, 1, width, head_dim / 2) float32 of a packing's positions in their documents."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, packing: Packing, head_dim: int, base: float = BASE) -> Rotations:
        """Return the rotations of heads.

        Args:
            packing: the documents.
            head_dim: how many dimensions a head has.
            base: θ.

        Returns:
            Cosines and sines for the packing's positions.
        """
        device = packing.positions.device
        exponents = torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim
        angles = packing.positions[:, None, :, None] * base**-exponents
        return cls(angles.cos(), angles.sin())

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate queries or keys (rows, heads, width, head_dim): the two halves form planes."""
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], dim=-1).to(x.dtype)


class Cache:
    """Keys and values of one block: those that do not change between the steps of a sampler, or, where it grows, of all
    that was read.
    """

    def __init__(self, grows: bool = False) -> None:
        self.kept: tuple[Tensor, Tensor] | None = None
        self.grows = grows


class SelfAttention(nn.Module):
    """Multi-head attention over packed documents.

    The input may hold more positions than the packing places: the others see only themselves, as does every position
    without a packing. Their softmax is over one key, so that query and key have no effect: out(value(x)).

    Args:
        dim: the width of the model.
        heads: the number of heads.
        head_dim: the width of a head; None for dim / heads; all heads together need not be as wide as the model.
    """

    def __init__(self, dim: int, heads: int, head_dim: int | None = None) -> None:
        super().__init__()
        self.heads, self.inner = heads, heads * (head_dim or dim // heads)
        self.qkv = nn.Linear(dim, 3 * self.inner, bias=False)
        self.out = nn.Linear(self.inner, dim, bias=False)

    def forward(
        self, x: Tensor, packing: Packing | None, rotations: Rotations | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Attend within documents.

        A fresh cache stores keys and values; later ones are appended to those it holds: for this call, or for good in a
        cache that grows. The mask of `packing` must agree with that.

        Args:
            x: (positions, dim); positions beyond those of the packing see only themselves.
            packing: the documents; None if all positions see only themselves.
            rotations: the rotations of queries and keys; None without RoPE.
            cache: keys and values of earlier positions.

        Returns:
            (positions, dim).
        """
        placed = 0 if packing is None else len(packing.scatter)
        mixed = []
        if packing is not None:
            q, k, v = _heads(packing.blocks(self.qkv(x[:placed])), 3, self.heads)
            if rotations is not None:
                q, k = rotations(q), rotations(k)
            if cache is not None:
                fresh = cache.kept is None
                if cache.kept is not None:
                    k, v = (torch.cat(pair, dim=2) for pair in zip(cache.kept, (k, v), strict=True))
                if fresh or cache.grows:
                    cache.kept = k, v
            mixed.append(_attend(q, k, v, packing))
        if placed < len(x):
            mixed.append(F.linear(x[placed:], self.qkv.weight[2 * self.inner :]))
        attended: Tensor = self.out(mixed[0] if len(mixed) == 1 else torch.cat(mixed))
        return attended


class OwnAttention(nn.Module):
    """Attention of every position to itself alone: what `SelfAttention` computes without a packing.

    It has no queries and keys, some of which would never get a gradient in `SelfAttention`.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (positions, dim) to the same."""
        attended: Tensor = self.out(self.value(x))
        return attended

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load weights, also of a `SelfAttention`: the last third of its projection makes values."""
        of_three = state_dict.pop(f"{prefix}qkv.weight", None)
        if of_three is not None:
            state_dict[f"{prefix}value.weight"] = of_three[2 * of_three.shape[1] :]
        super()._load_from_state_dict(state_dict, prefix, *rest)


class CrossAttention(nn.Module):
    """Multi-head attention of queries to a context, which is packed too."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(
        self, x: Tensor, queries: Packing, context: Tensor, keys: Packing, cache: Cache | None = None
    ) -> Tensor:
        """Attend from positions to sentences of a context.

        Args:
            x: (positions, dim).
            queries: the packing of the positions, whose mask says what each sees.
            context: (sentences, dim).
            keys: the packing of the context.
            cache: keys and values of the context, stored by the first call.

        Returns:
            (positions, dim).
        """
        (q,) = _heads(queries.blocks(self.q(x)), 1, self.heads)
        if cache is None or cache.kept is None:
            k, v = _heads(keys.blocks(self.kv(context)), 2, self.heads)
            if cache is not None:
                cache.kept = k, v
        else:
            k, v = cache.kept
        attended: Tensor = self.out(_attend(q, k, v, queries))
        return attended


def _heads(blocks: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split (rows, width, parts · dim) into `parts` tensors (rows, heads, width, head_dim)."""
    rows, width, dim = blocks.shape
    return torch.unbind(blocks.view(rows, width, parts, heads, dim // (parts * heads)).permute(2, 0, 3, 1, 4))


def _attend(q: Tensor, k: Tensor, v: Tensor, queries: Packing) -> Tensor:
    """Attend: (rows, heads, width, head_dim) of each → (positions, dim)."""
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=queries.mask)
    return queries.flat(mixed.transpose(1, 2).flatten(2))
