"""The place of the largest number of each row, on GPUs at the speed of their memory; PyTorch's argmax is far from it.

A block of threads takes a row and reads 16 bytes a thread. As for `argmax`, NaN counts as the largest; of equal numbers
the kernel always finds the first, which PyTorch's does not promise on GPUs.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from stages.kernels import TYPES, compiled, numbers

THREADS = 256
SOURCE = r"""
#define AT_ONCE (16 / (int)sizeof(T))
#define ALL 0xffffffffu

struct __align__(16) Some { T x[AT_ONCE]; };

__device__ __forceinline__ bool larger(float x, float than) { return x > than || (x != x && than == than); }

__device__ __forceinline__ void take(float x, int at, float& best, int& place) {
  if (larger(x, best) || (!larger(best, x) && at < place)) { best = x; place = at; }
}

extern "C" __global__ void first_largest(const T* __restrict__ x, long long* places, int columns) {
  const T* row = x + (size_t)blockIdx.x * columns;
  float best = __int_as_float(0xff800000);
  int place = 0x7fffffff;
#pragma unroll 4
  for (int at = threadIdx.x * AT_ONCE; at < columns; at += blockDim.x * AT_ONCE) {
    const Some some = *(const Some*)(row + at);
    place = min(place, at);
#pragma unroll
    for (int k = 0; k < AT_ONCE; k++) {
      const float one = number(some.x[k]);
      if (larger(one, best)) { best = one; place = at + k; }
    }
  }
  for (int step = 1; step < 32; step *= 2)
    take(__shfl_xor_sync(ALL, best, step), __shfl_xor_sync(ALL, place, step), best, place);
  __shared__ float bests[32];
  __shared__ int their_places[32];
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 == 0) { bests[warp] = best; their_places[warp] = place; }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int k = 1; k < blockDim.x / 32; k++) take(bests[k], their_places[k], best, place);
    places[blockIdx.x] = place;
  }
}
"""


def first_largest(x: Tensor) -> Tensor:
    """Return where the largest number of each row is: (rows, columns) → (rows,) int64."""
    step = 16 // x.element_size()
    fits = x.is_cuda and x.dtype in TYPES and x.is_contiguous() and x.shape[1] % step == 0 and x.data_ptr() % 16 == 0
    kernel = compiled(source(x.dtype), "first_largest", x.device) if fits and x.numel() else None
    if kernel is None:
        return x.argmax(dim=1)
    places = torch.empty(len(x), dtype=torch.int64, device=x.device)
    kernel(len(x), THREADS, x, places, x.shape[1])
    return places


@functools.cache
def source(dtype: torch.dtype) -> str:
    """Return the kernel's CUDA C."""
    return numbers(dtype) + SOURCE
