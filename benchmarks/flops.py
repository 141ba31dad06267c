"""How many floating point operations the networks need, and how many a second this machine gives their matmuls.

Imports nothing else but torch, so that any process can measure. Rates cost a third of a second a shape.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from stages.sonar.flops import decoder_flops, encoder_flops

__all__ = ["Shape", "combined_rate", "decoder_flops", "encoder_flops", "layer_shapes", "matmul_rates", "wait"]

SECONDS = 0.3  # of the measurements of one shape


@dataclass(frozen=True)
class Shape:
    """The sizes of an encoder or a decoder, the published ones if nothing else is said; the vocabulary is apart."""

    dim: int = 1024
    layers: int = 24
    heads: int = 16
    ffn_dim: int = 8192


def layer_shapes(dim: int, ffn_dim: int) -> list[tuple[int, int]]:
    """Return (in, out) of the matmuls of one layer: fused q, k, v; attention output; the feed-forward network's two."""
    return [(dim, 3 * dim), (dim, dim), (dim, ffn_dim), (ffn_dim, dim)]


def matmul_rates(rows: int, shapes: Sequence[tuple[int, int]], dtype: torch.dtype, device: str = "cpu") -> list[float]:
    """Measure FLOP/s of `F.linear` with bias for each (in, out): the median of five equally long measurements."""
    found = []
    for inner, outer in shapes:
        x = torch.randn(rows, inner, device=device).to(dtype)
        weight, bias = torch.randn(outer, inner, device=device).to(dtype), torch.zeros(outer, device=device).to(dtype)
        once = _seconds_of(1, x, weight, bias)  # warms up
        once = min(once, _seconds_of(1, x, weight, bias))
        repeats = max(1, int(SECONDS / 5 / once))
        each = statistics.median(_seconds_of(repeats, x, weight, bias) / repeats for _ in range(5))
        found.append(2.0 * rows * inner * outer / each)
    return found


def combined_rate(rates: Sequence[float], shapes: Sequence[tuple[int, int]]) -> float:
    """Return FLOP/s of one matmul of each shape, one after the other."""
    work = [inner * outer for inner, outer in shapes]
    return sum(work) / sum(amount / rate for amount, rate in zip(work, rates, strict=True))


@torch.inference_mode()
def _seconds_of(repeats: int, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> float:
    wait(x.device.type)
    start = time.perf_counter()
    for _ in range(repeats):
        F.linear(x, weight, bias)
    wait(x.device.type)
    return time.perf_counter() - start


def wait(device: str) -> None:
    """Wait until the device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
