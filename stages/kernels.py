"""CUDA C that is compiled at run time by NVRTC, which comes with PyTorch's CUDA packages: nodes need no compiler.

Compiling takes about a second per process and kernel. Without NVRTC callers compute with PyTorch's own kernels instead,
for the whole life of the process: a warning says so once, and every receipt does. A kernel that fails although others
can be compiled is an error.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

EMPTY = 'extern "C" __global__ void nothing() {}'
OUT_OF_MEMORY = 2  # of the driver's results
TYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
# NVRTC's packages have no headers: the type `T`, to float32 and back.
_NUMBERS = r"""
#if TYPE == 2
typedef float T;
#else
typedef unsigned short T;
#endif

__device__ __forceinline__ float number(T x) {
#if TYPE == 0
  float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y;
#elif TYPE == 1
  return __int_as_float(((int)x) << 16);
#else
  return x;
#endif
}

__device__ __forceinline__ T rounded(float x) {
#if TYPE == 0
  T y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y;
#elif TYPE == 1
  const unsigned bits = __float_as_int(x);  // by hand: GPUs before sm_80 have no instruction for it
  return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff;
#else
  return x;
#endif
}
"""


class KernelError(RuntimeError):
    """A kernel cannot be compiled, loaded or launched."""


class Kernel:
    """A kernel on one device. It is launched in the current stream, also while a CUDA graph is captured.

    Args:
        function: the loaded kernel.
        launch: the driver's `cuLaunchKernel`.
        index: the number of the device.
    """

    def __init__(self, function: ctypes.c_void_p, launch: Callable[..., int], index: int) -> None:
        self._function, self._launch, self._index = function, launch, index

    def __call__(self, blocks: int, threads: int, *arguments: Tensor | int | float) -> None:
        """Launch the kernel. Tensors are given as pointers, whole numbers as `int` and others as `float`."""
        values = [_as_c(one) for one in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
        with torch.cuda.device(self._index):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            failed = self._launch(self._function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)
        if failed:
            raise KernelError(f"a kernel was not launched: CUDA error {failed}")


def numbers(dtype: torch.dtype) -> str:
    """Return CUDA C that defines `T` for a type of `TYPES`, `number(T)` → float and `rounded(float)` → T."""
    return f"#define TYPE {TYPES[dtype]}\n{_NUMBERS}"


def stated(device: torch.device) -> str:
    """Return whose kernels this process can use on a GPU, for receipts."""
    return "own kernels available" if torch.version.cuda and not _lacking(_index(device)) else "PyTorch's kernels alone"


def compiled(source: str, name: str, device: torch.device) -> Kernel | None:
    """Compile and load a kernel; later calls return the same one, so the first must be before a CUDA graph is captured.

    Args:
        source: CUDA C, without headers.
        name: its function, `extern "C"`.
        device: where it runs.

    Returns:
        The kernel; None on all but NVIDIA's GPUs, and, with a warning the first time, without NVRTC.

    Raises:
        KernelError: if it cannot be made although others can.
        torch.OutOfMemoryError: if the device has no memory for it.
    """
    if device.type != "cuda" or not torch.version.cuda:
        return None
    index = _index(device)
    if reason := _lacking(index):
        _warn(reason)
        return None
    return _loaded(source, name, index)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@functools.cache
def _lacking(index: int) -> str:
    """Return why no kernel can be compiled for a GPU; "" if an empty one can."""
    try:
        binary(EMPTY, _architecture(index))
    except (OSError, KernelError) as error:
        return str(error)
    return ""


@functools.cache
def _warn(reason: str) -> None:
    version = torch.version.cuda or ""
    package = "nvidia-cuda-nvrtc-cu12" if version.startswith("12.") else "nvidia-cuda-nvrtc"
    warnings.warn(
        "decoding takes about twice the time, and a fit of RVQ a third more: our kernels cannot be compiled, and "
        f"PyTorch's are used instead. Install NVRTC for CUDA {version} (pip's {package}) on every "
        "node: if only some have it, texts may differ where two tokens are almost equally likely. "
        f"The reason: {reason}",
        stacklevel=3,
    )


@functools.cache
def _loaded(source: str, name: str, index: int) -> Kernel:
    made, driver = binary(source, _architecture(index)), ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(index):
        torch.cuda.current_stream().synchronize()  # so that this thread has the device's context
        result = driver.cuModuleLoadData(ctypes.byref(module), made)
        result = result or driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
    if result == OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"CUDA out of memory: the kernel {name} cannot be loaded")
    _check(result, "the CUDA driver")
    return Kernel(function, driver.cuLaunchKernel, index)


def _architecture(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    return f"sm_{major}{minor}"


def binary(source: str, architecture: str) -> bytes:
    """Compile CUDA C for an architecture, such as `sm_90`. Raises KernelError with the compiler's messages."""
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None), "NVRTC")
    try:
        options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
        size = ctypes.c_size_t()
        if nvrtc.nvrtcCompileProgram(program, len(options), options):
            nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc.nvrtcGetProgramLog(program, log)
            raise KernelError(f"NVRTC for {architecture}: {log.value.decode()}")
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "NVRTC")
        made = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, made), "NVRTC")
        return made.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _nvrtc() -> ctypes.CDLL:
    """Return the NVRTC of PyTorch's CUDA version: that of its packages, which knows all its GPUs, or the system's."""
    name = f"libnvrtc.so.{(torch.version.cuda or '').partition('.')[0]}"
    packages = Path(torch.__file__).parent.parent / "nvidia"
    for path in (*sorted(map(str, packages.glob(f"*/lib/{name}"))), name):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise KernelError(f"no {name}, neither in the library path nor in {packages}")


def _as_c(one: Tensor | int | float) -> ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    if isinstance(one, Tensor):
        return ctypes.c_void_p(one.data_ptr())
    return ctypes.c_int(one) if isinstance(one, int) else ctypes.c_float(one)


def _check(result: int, whose: str) -> None:
    if result:
        raise KernelError(f"{whose} answers with error {result}")
