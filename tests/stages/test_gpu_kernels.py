"""Kernels for GPUs: on a CPU, with a thread per lane, their CUDA C computes what PyTorch does.

g++ compiles the very source, with words of CUDA that are defined here. Only float32: 16 bits are loaded with
instructions of GPUs.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stages import largest
from stages.kernels import Kernel
from stages.sonar import single_query
from stages.sonar.networks import SonarTextDecoder
from tests.stages.test_kernels_gpu import attended_by_pytorch, given, hard_rows

HEAD = r"""
#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __align__(x) alignas(x)
#define __shared__ static
struct Place { int x; };
static thread_local Place blockIdx, threadIdx;
static Place blockDim;
static float floats[1024];
static int ints[1024];
static std::barrier<>* together;
static float __int_as_float(int x) { return std::bit_cast<float>(x); }
static void __syncthreads() { together->arrive_and_wait(); }
static float* slots(float) { return floats; }
static int* slots(int) { return ints; }
template <typename V> V __shfl_xor_sync(unsigned, V mine, int step) {
  slots(mine)[threadIdx.x] = mine;
  together->arrive_and_wait();
  V other = slots(mine)[threadIdx.x ^ step];
  together->arrive_and_wait();
  return other;
}
using std::min;
"""
TAIL = r"""
template <typename F> static void launch(int blocks, int size, F work) {
  blockDim.x = size;
  for (int block = 0; block < blocks; block++) {
    std::barrier<> all(size);
    together = &all;
    std::vector<std::thread> threads;
    for (int at = 0; at < size; at++)
      threads.emplace_back([=] { blockIdx.x = block; threadIdx.x = at; work(); together->arrive_and_drop(); });
    for (auto& one : threads) one.join();
  }
}
"""
RUN = {
    "attend": """extern "C" void run(int blocks, int size, float* qkv, float* keys, float* values, long long* position,
        float* attended, int pairs, int heads, int capacity, float scale) {
      launch(blocks, size, [=] { attend(qkv, keys, values, position, attended, pairs, heads, capacity, scale); }); }""",
    "first_largest": """extern "C" void run(int blocks, int size, float* x, long long* places, int columns) {
      launch(blocks, size, [=] { first_largest(x, places, columns); }); }""",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return tmp_path_factory.mktemp("kernels")


class OnCpu(Kernel):
    """Launches what g++ made of a kernel."""

    def __init__(self, folder: Path, source: str, name: str) -> None:
        code, library = folder / f"{name}.cpp", folder / f"{name}-{hash(source)}.so"
        code.write_text(HEAD + source + TAIL + RUN[name])
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", str(code), "-o", str(library)]
        subprocess.run(command, check=True)
        self._run = ctypes.CDLL(str(library)).run

    def __call__(self, blocks: int, threads: int, *arguments: Tensor | int | float) -> None:
        given = [ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else one for one in arguments]
        self._run(blocks, threads, *(ctypes.c_float(one) if isinstance(one, float) else one for one in given))


@pytest.mark.parametrize("width", [8, 64, 256])
def test_the_source_of_attention_computes_attention(built: Path, width: int) -> None:
    kernel = OnCpu(built, single_query.source(torch.float32, width), "attend")
    for length in (0, 1, 3, 15, 16, 40):
        qkv, cache = given(2, 2, width, length)
        expected_cache = cache.clone()
        expected = attended_by_pytorch(qkv, expected_cache, length)
        found = single_query.by_kernel(kernel, qkv, cache, torch.tensor([length]))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(cache, expected_cache, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columns", [20, 1000, 3000])
def test_the_source_of_the_largest_finds_the_first(built: Path, columns: int) -> None:
    x, found = hard_rows(columns), torch.empty(8, dtype=torch.int64)
    kernel = OnCpu(built, largest.source(torch.float32), "first_largest")
    kernel(len(x), 64, x, found, columns)
    assert found.tolist() == x.numpy().argmax(axis=1).tolist()


@pytest.mark.parametrize("seen", [1, 7, 12])
def test_attention_by_products_is_attention(seen: int) -> None:
    torch.manual_seed(0)
    query, keys, values = torch.randn(3, 4, 1, 16), torch.randn(3, 4, 20, 16), torch.randn(3, 4, 20, 16)
    mask = torch.arange(12)[None] < seen
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys[:, :, :seen], values[:, :, :seen])
    found = single_query.by_products(query, keys[:, :, :12], values[:, :, :12], mask)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_on_a_cpu_no_kernel_is_used() -> None:
    assert not SonarTextDecoder(dim=64, layers=1, heads=2, ffn_dim=96, vocab_size=80, max_tokens=64).attends_by_kernel()
    x = hard_rows(16)[:2]
    assert largest.first_largest(x).tolist() == x.argmax(dim=1).tolist()
