"""Kernels of our own compute on a GPU what PyTorch computes. Without pytest, `benchmarks.gpu_all` runs this."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from stages import largest
from stages.kernels import TYPES
from stages.sonar import single_query

DEVICE = os.environ.get("PIPELINE_TEST_DEVICE", "cuda")


def attended_by_pytorch(qkv: Tensor, cache: Tensor, length: int) -> Tensor:
    """What the kernel computes; the cache is filled up to `length` and then holds one more."""
    _, rows, heads, _, width = cache.shape
    query, key, value = qkv.view(rows, 1, 3, heads, width).permute(2, 0, 3, 1, 4).unbind(0)
    cache[0, :, :, length], cache[1, :, :, length] = key[:, :, 0], value[:, :, 0]
    keys, values = cache[:, :, :, : length + 1].unbind(0)
    found = torch.nn.functional.scaled_dot_product_attention(query, keys, values)
    return found.transpose(1, 2).flatten(2)


def given(rows: int, heads: int, width: int, length: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Queries, keys and values, and a cache with room for 70 tokens that is NaN where nothing was written."""
    generator = torch.Generator().manual_seed(length)
    qkv = torch.randn(rows, 1, 3 * heads * width, generator=generator) * 2
    cache = torch.full((2, rows, heads, 70, width), torch.nan)
    cache[:, :, :, :length] = torch.randn(2, rows, heads, length, width, generator=generator)
    return qkv.to(device), cache.to(device)


def hard_rows(columns: int) -> Tensor:
    """Rows with equal numbers, infinities and NaN."""
    x = torch.randn(8, columns, generator=torch.Generator().manual_seed(0))
    x[1] = x[1].round()
    x[2, 17:] = torch.nan
    x[3] = -torch.inf
    x[4, columns - 1] = torch.inf
    x[5] = 1
    x[6] = -x[6].abs() - 5
    x[7, 9:] = torch.inf
    return x


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, width", [(dtype, width) for dtype in TYPES for width in (16, 64, 128)])
def test_attention_on_a_gpu_is_attention(dtype: torch.dtype, width: int) -> None:
    for length in (0, 1, 15, 16, 40, 69):
        qkv, cache = (one.to(dtype) for one in given(300, 4, width, length, DEVICE))
        kernel = single_query.kernel_for(qkv, width)
        if kernel is None and DEVICE == "cpu":
            pytest.skip("a CPU has no such kernel")
        assert kernel
        expected_cache = cache.clone().float()
        expected = attended_by_pytorch(qkv.float(), expected_cache, length)
        found = single_query.by_kernel(kernel, qkv, cache, torch.tensor([length], device=DEVICE))
        tolerance = 1e-4 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(cache.float(), expected_cache, rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, columns", [(dtype, columns) for dtype in TYPES for columns in (24, 8192, 256_256)])
def test_the_largest_on_a_gpu_is_the_first(dtype: torch.dtype, columns: int) -> None:
    x = hard_rows(columns).to(dtype)
    assert largest.first_largest(x.to(DEVICE)).tolist() == x.float().numpy().argmax(axis=1).tolist()
