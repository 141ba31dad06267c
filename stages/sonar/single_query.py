"""Attention of one new token per row to a cache, on GPUs: keys and values are read once, and only those that are there.

PyTorch's kernels compute a tile of 64 queries where there is one. Ours gives each head of each row a warp, whose lanes
read a few keys side by side, 16 bytes or more each; it also writes the new key and value into the cache. How many
places are filled it reads on the device, so one CUDA graph serves all lengths. Scores, softmax and sums are float32 in
a fixed order, the same in any batch.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from stages.kernels import TYPES, Kernel, compiled, numbers

WARPS = 4  # of a block of threads
LOG2_E = 1.4426950408889634

# Eight numbers a lane; PARTS lanes share a key, so a warp reads GROUPS keys at once, and AT_ONCE times as many before
# it computes with the first. Without headers, which NVRTC's packages do not have.
SOURCE = r"""
#define PARTS (WIDTH / 8)
#define GROUPS (32 / PARTS)
#define AT_ONCE 4
#define ALL 0xffffffffu

struct __align__(16) Eight { T x[8]; };

extern "C" __global__ void attend(
    const T* __restrict__ qkv, T* keys, T* values, const long long* position, T* __restrict__ attended,
    int pairs, int heads, int capacity, float scale) {
  const int pair = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (pair >= pairs) return;
  const int lane = threadIdx.x % 32, part = lane % PARTS, group = lane / PARTS;
  const int row = pair / heads, head = pair % heads, dim = heads * WIDTH;
  const T* mine = qkv + (size_t)row * 3 * dim + head * WIDTH + part * 8;
  keys += (size_t)pair * capacity * WIDTH + part * 8;
  values += (size_t)pair * capacity * WIDTH + part * 8;
  const int last = (int)*position;

  const Eight asked = *(const Eight*)mine;
  const Eight new_key = *(const Eight*)(mine + dim), new_value = *(const Eight*)(mine + 2 * dim);
  if (group == 0) {
    *(Eight*)(keys + (size_t)last * WIDTH) = new_key;
    *(Eight*)(values + (size_t)last * WIDTH) = new_value;
  }
  float query[8], sum[8], best = -1e30f, total = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) { query[i] = number(asked.x[i]) * scale; sum[i] = 0; }

  for (int first = 0; first <= last; first += GROUPS * AT_ONCE) {
    Eight key[AT_ONCE], value[AT_ONCE];
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const int at = first + k * GROUPS + group;
      key[k] = new_key;
      value[k] = new_value;
      if (at < last) {
        key[k] = *(const Eight*)(keys + (size_t)at * WIDTH);
        value[k] = *(const Eight*)(values + (size_t)at * WIDTH);
      }
    }
    float score[AT_ONCE], highest = best;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      float dot = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) dot += query[i] * number(key[k].x[i]);
#pragma unroll
      for (int step = 1; step < PARTS; step *= 2) dot += __shfl_xor_sync(ALL, dot, step);
      score[k] = first + k * GROUPS + group <= last ? dot : __int_as_float(0xff800000);
      highest = fmaxf(highest, score[k]);
    }
    const float shrink = exp2f(best - highest);
    best = highest;
    total *= shrink;
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] *= shrink;
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const float weight = exp2f(score[k] - best);
      total += weight;
      // a place that is not there has the new value, whose weight is 0: an infinite one must not become a NaN
      if (first + k * GROUPS + group <= last) {
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += weight * number(value[k].x[i]);
      }
    }
  }
#pragma unroll
  for (int step = PARTS; step < 32; step *= 2) {
    const float highest = fmaxf(best, __shfl_xor_sync(ALL, best, step)), shrink = exp2f(best - highest);
    best = highest;
    total *= shrink;
    total += __shfl_xor_sync(ALL, total, step);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      sum[i] *= shrink;
      sum[i] += __shfl_xor_sync(ALL, sum[i], step);
    }
  }
  if (group == 0) {
    Eight result;
#pragma unroll
    for (int i = 0; i < 8; i++) result.x[i] = rounded(sum[i] / total);
    *(Eight*)(attended + (size_t)row * dim + head * WIDTH + part * 8) = result;
  }
}
"""


def kernel_for(weight: Tensor, width: int) -> Kernel | None:
    """Return the kernel for heads of `width` numbers of the type of a weight and on its device, if there is one."""
    if not weight.is_cuda or weight.dtype not in TYPES or width not in (8, 16, 32, 64, 128, 256):
        return None
    return compiled(source(weight.dtype, width), "attend", weight.device)


@functools.cache
def source(dtype: torch.dtype, width: int) -> str:
    """Return the kernel's CUDA C for heads of `width` numbers."""
    return f"{numbers(dtype)}#define WIDTH {width}\n{SOURCE}"


def by_kernel(kernel: Kernel, qkv: Tensor, cache: Tensor, position: Tensor) -> Tensor:
    """Put the new keys and values into the cache and attend to all that it then holds.

    Args:
        kernel: of `kernel_for`.
        qkv: (rows, 1, 3 · dim), contiguous: query, key and value of the new token.
        cache: (2, rows, heads, capacity, dim / heads), keys and values, each contiguous.
        position: (1,) int64, where the new token stands.

    Returns:
        (rows, 1, dim).
    """
    _, rows, heads, capacity, width = cache.shape
    keys, values = cache.unbind(0)
    attended = torch.empty((rows, 1, heads * width), dtype=qkv.dtype, device=qkv.device)
    blocks, scale = -(-rows * heads // WARPS), LOG2_E * width**-0.5
    kernel(blocks, 32 * WARPS, qkv, keys, values, position, attended, rows * heads, heads, capacity, scale)
    return attended
