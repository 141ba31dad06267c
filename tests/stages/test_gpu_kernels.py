"""Kernels for GPUs: on a CPU, with a thread per lane, their CUDA C computes what PyTorch does.

g++ compiles the very source, with words of CUDA that are defined here. Not float16, which is loaded with an instruction
of GPUs.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pipeline.base.captured import LONGEST
from stages import kernels, largest
from stages.kernels import Kernel, KernelError
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
static int __float_as_int(float x) { return std::bit_cast<int>(x); }
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
    "attend": """extern "C" void run(int blocks, int size, T* qkv, T* keys, T* values, long long* position,
        T* attended, int pairs, int heads, int capacity, float scale) {
      launch(blocks, size, [=] { attend(qkv, keys, values, position, attended, pairs, heads, capacity, scale); }); }""",
    "first_largest": """extern "C" void run(int blocks, int size, T* x, long long* places, int columns) {
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


@pytest.mark.parametrize(
    "dtype, width", [(torch.float32, 8), (torch.float32, 64), (torch.float32, 256), (torch.bfloat16, 64)]
)
def test_the_source_of_attention_computes_attention(built: Path, dtype: torch.dtype, width: int) -> None:
    kernel = OnCpu(built, single_query.source(dtype, width), "attend")
    for length in (0, 1, 3, 15, 16, 40):
        qkv, cache = (one.to(dtype) for one in given(2, 2, width, length))
        expected_cache = cache.clone().float()
        expected = attended_by_pytorch(qkv.float(), expected_cache, length)
        found = single_query.by_kernel(kernel, qkv, cache, torch.tensor([length]))
        half_a_step = 0 if dtype == torch.float32 else 2**-8
        torch.testing.assert_close(found.float(), expected, rtol=half_a_step + 1e-5, atol=1e-5)
        torch.testing.assert_close(cache.float(), expected_cache, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype, columns", [(torch.float32, 20), (torch.float32, 3000), (torch.bfloat16, 1000)])
def test_the_source_of_the_largest_finds_the_first(built: Path, dtype: torch.dtype, columns: int) -> None:
    x, found = hard_rows(columns).to(dtype), torch.empty(8, dtype=torch.int64)
    kernel = OnCpu(built, largest.source(dtype), "first_largest")
    kernel(len(x), 64, x, found, columns)
    assert found.tolist() == x.float().numpy().argmax(axis=1).tolist()


def test_on_a_cpu_no_kernel_is_used() -> None:
    assert not SonarTextDecoder(dim=64, layers=1, heads=2, ffn_dim=96, vocab_size=80, max_tokens=64).attends_by_kernel()
    x = hard_rows(16)[:2]
    assert largest.first_largest(x).tolist() == x.argmax(dim=1).tolist()


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As much of an NVIDIA GPU as is asked before a kernel is loaded; nothing of other tests is remembered."""
    caches = kernels._lacking, kernels._warn, kernels._loaded
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


def test_without_nvrtc_one_warning_and_every_receipt_say_so(on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> ctypes.CDLL:
        raise KernelError("no libnvrtc.so.13")

    monkeypatch.setattr(kernels, "_nvrtc", none)
    with pytest.warns(UserWarning, match=r"twice the time.* on every node.*: no libnvrtc\.so\.13") as warned:
        for name in ("attend", "attend", "first_largest"):
            assert kernels.compiled("", name, torch.device("cuda")) is None
    assert len(warned) == 1 and len(str(warned[0].message)) < LONGEST
    assert kernels.stated(torch.device("cuda", 0)) == "PyTorch's kernels alone"


def test_a_kernel_that_fails_where_others_do_not_is_an_error(on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def binary(source: str, architecture: str) -> bytes:
        if source != kernels.EMPTY:
            raise KernelError(f"NVRTC for {architecture}: no")
        return b""

    monkeypatch.setattr(kernels, "binary", binary)
    assert kernels.stated(torch.device("cuda")) == "own kernels available"
    with pytest.raises(KernelError, match="NVRTC for sm_90: no"):
        kernels.compiled("a mistake", "attend", torch.device("cuda"))
