"""Layers of Large Concept Models, on packed documents: (positions, dim) tensors without padding.

Nothing has biases except the projections at both ends, timestep embeddings and AdaLN. Norms are computed in float32,
whatever autocast does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.lcm.attention import Cache, Rotations, SelfAttention
from stages.lcm.packing import Packing
from stages.scaler.robust import RobustScaler

FREQUENCIES = 256  # of a timestep embedding, LCM 2.3.4
LONGEST_PERIOD = 10_000.0
EPSILON = 1e-6


class RMSNorm(nn.Module):
    """x / rms(x), times a learned scale unless AdaLN gives one."""

    def __init__(self, dim: int, learned: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim)) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (…, dim), in the same format."""
        weight = None if self.weight is None else self.weight.float()  # which FSDP casts
        return F.rms_norm(x.float(), x.shape[-1:], weight, EPSILON).to(x.dtype)


class SwiGLU(nn.Module):
    """(SiLU(x W1) ⊙ x W2) W3 with an inner size of `inner`."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * inner, bias=False)
        self.out = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (positions, dim) to (positions, dim)."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        projected: Tensor = self.out(F.silu(gate) * up)
        return projected


class FeedForward(nn.Module):
    """GELU(x W1) W2 with an inner size of `inner`."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, inner, bias=False)
        self.out = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (positions, dim) to (positions, dim)."""
        projected: Tensor = self.out(F.gelu(self.up(x)))
        return projected


class Block(nn.Module):
    """Pre-norm: x + attention(norm(x)), then x + feed_forward(norm(x)), each with dropout before it is added.

    Args:
        dim: the width of the model.
        heads: the number of heads.
        feed_forward: the feed-forward network, dim → dim.
        dropout: the share of values that are dropped in training.
        head_dim: the width of a head; None for dim / heads.
    """

    def __init__(
        self, dim: int, heads: int, feed_forward: nn.Module, dropout: float, head_dim: int | None = None
    ) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.attention = SelfAttention(dim, heads, head_dim)
        self.feed_forward_norm = RMSNorm(dim)
        self.feed_forward = feed_forward
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, packing: Packing | None, rotations: Rotations | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Apply the block.

        Args:
            x: (positions, dim).
            packing: the documents; None if all positions see only themselves.
            rotations: the rotations of queries and keys; None without RoPE.
            cache: keys and values of earlier positions, as for `SelfAttention`.

        Returns:
            (positions, dim).
        """
        x = x + self.dropout(self.attention(self.attention_norm(x), packing, rotations, cache))
        out: Tensor = x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        return out


class TimestepEmbedding(nn.Module):
    """Sines and cosines of 256 dimensions, then a two-layer MLP with SiLU, LCM 2.3.4."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = nn.Linear(FREQUENCIES, dim)
        self.second = nn.Linear(dim, dim)

    def forward(self, t: Tensor) -> Tensor:
        """Embed timesteps (entries,) from 0 → (entries, dim)."""
        half = FREQUENCIES // 2
        exponents = torch.arange(half, device=t.device, dtype=torch.float32) / half
        angles = t[:, None].float() * LONGEST_PERIOD**-exponents
        embedded: Tensor = self.second(F.silu(self.first(torch.cat([angles.cos(), angles.sin()], dim=1))))
        return embedded


class _Picked(torch.autograd.Function):
    """Rows of a table by their numbers; the gradient of the table is a matrix product with a one-hot matrix."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.entries = len(table)
        return table.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        numbers = torch.arange(ctx.entries, device=index.device)
        return (index[:, None] == numbers).to(gradient.dtype).T @ gradient, None


@dataclass(frozen=True)
class Lookup:
    """Rows of a small table, picked per position; the gradient is a sum in a fixed order, by a matrix product.

    A timestep's projections are the same wherever it occurs, so they are computed once per timestep and not per
    position: for AdaLN's dim → 9 · dim that saves a third of the denoiser's operations.

    entries: (entries,) int64, numbers of the table's rows. index: (positions,) int64, the row of each; None: the one
    row of the table is everybody's.
    """

    entries: Tensor
    index: Tensor | None

    @classmethod
    def over(cls, index: Tensor, count: int) -> Lookup:
        """Make an index of (positions,) numbers below `count`; the table gets a multiple of 8 rows, which matrix units
        like, by repeating the last.
        """
        numbers = torch.arange(-(-count // 8) * 8, device=index.device)
        return cls(numbers.clamp(max=count - 1), index)

    @classmethod
    def same(cls, index: Tensor) -> Lookup:
        """Return an index in which all positions have the row of the first."""
        return cls(index[:1], None)

    def __call__(self, table: Tensor) -> Tensor:
        """Map (entries, dim) to (positions, dim), or (1, dim) for all."""
        if self.index is None:
            return table
        picked: Tensor = _Picked.apply(table, self.index)  # type: ignore[no-untyped-call]
        return picked

    @staticmethod
    def flops(entries: int, dim: int, positions: float) -> float:
        """Count the operations of the gradient of a table; picking rows takes none.

        Args:
            entries: how many rows the table has.
            dim: the width of a row.
            positions: how many rows are picked.

        Returns:
            FLOPs.
        """
        return 2.0 * entries * dim * positions


class PreNet(nn.Module):
    """LCM eq. 1, after `Scaling.normalize`: dimensions of embeddings → of the model."""

    def __init__(self, dim: int, model_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, model_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (positions, dim) normalised to (positions, model_dim)."""
        projected: Tensor = self.project(x)
        return projected


class PostNet(nn.Module):
    """LCM eq. 2, before `Scaling.denormalize`: dimensions of the model → of embeddings, after a norm. Starts at 0."""

    def __init__(self, model_dim: int, dim: int) -> None:
        super().__init__()
        self.norm = RMSNorm(model_dim)
        self.project = nn.Linear(model_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Map (positions, model_dim) to (positions, dim) float32, normalised."""
        projected: Tensor = self.project(self.norm(x))
        return projected.float()


class Scaling(nn.Module):
    """LCM eq. 4 with the scaler's numbers as buffers, which move to a GPU and into checkpoints with the model."""

    median: Tensor
    iqr: Tensor

    def __init__(self, scaler: RobustScaler) -> None:
        super().__init__()
        self.clip = scaler.clip
        self.register_buffer("median", scaler.median.float().clone())
        self.register_buffer("iqr", scaler.iqr.float().clone())

    @property
    def _scaler(self) -> RobustScaler:
        return RobustScaler(self.median, self.iqr, self.clip)

    def normalize(self, x: Tensor) -> Tensor:
        """Normalise (…, dim) in any format → float32."""
        return self._scaler.normalize(x)

    def denormalize(self, x: Tensor) -> Tensor:
        """Undo `normalize`: (…, dim) in any format → float32."""
        return self._scaler.denormalize(x)


def initialize(model: nn.Module, residual_layers: int) -> None:
    """Draw fresh weights: normal with a standard deviation of 1/√(inputs), so that variances are kept at any size
    (0.022 at 2048); what writes into the residual stream 1/√(2 · layers) of that. Biases 0. LCM is silent here.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            scale = (2 * residual_layers) ** -0.5 if name.endswith(".out") else 1.0
            nn.init.normal_(module.weight, std=scale / math.sqrt(module.in_features))
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        if isinstance(module, PostNet):  # the first prediction is the median
            nn.init.zeros_(module.project.weight)


def matmul_flops(weights: float, positions: float) -> float:
    """Count the operations of `weights` numbers in matrices on each of `positions` vectors: 2 forward, 2 for each of
    the two gradients.
    """
    return 6 * weights * positions


def attention_flops(dim: int, pairs: float) -> float:
    """Count the operations of scores and mixing over `pairs` of query and key, forward and backward, all heads
    together.
    """
    return 12 * dim * pairs


Model = TypeVar("Model", bound=nn.Module)
Arguments = ParamSpec("Arguments")


def inference(
    method: Callable[Concatenate[Model, Arguments], Tensor],
) -> Callable[Concatenate[Model, Arguments], Tensor]:
    """Run a method without gradients and without dropout, whatever mode its module is in."""

    @functools.wraps(method)
    def quietly(self: Model, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                return method(self, *args, **kwargs)
        finally:
            self.train(training)

    return quietly
