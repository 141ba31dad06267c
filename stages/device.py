"""The device that a worker computes on: its number format, its peak, and batches that fit into its memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.overrides import TorchFunctionMode

from stages import kernels
from stages.computing import advance

CALM_PARTS = 8  # without running out of memory, after which a budget is doubled
CACHED, LEAST_TOKENS = 1 << 23, 512  # bytes of a CPU's cache for the widest tensor of a batch, and its least tokens
Made = TypeVar("Made")

# The dense peaks of NVIDIA's data sheets in TFLOP/s; of a number "with sparsity", half.
# Part of the device's name, bfloat16 and float16 on tensor cores, float32; the first that fits counts
_PEAKS = (
    ("GB200", 2500.0, 80.0),
    ("B200", 2250.0, 75.0),
    ("H200 NVL", 835.5, 60.0),
    ("H200", 989.4, 66.9),
    ("H100 NVL", 835.5, 60.0),
    ("H100 PCIe", 756.0, 51.2),
    ("H100", 989.4, 66.9),
    ("A100", 311.9, 19.5),
    ("L40S", 362.0, 91.6),
    ("L4", 121.0, 30.3),
    ("A10G", 70.0, 35.0),
    ("A10", 125.0, 31.2),
)


@contextmanager
def without_memory() -> Iterator[None]:
    """Make the tensors of networks on torch's meta device: they have shapes and no memory, and nothing fills them.

    Filling them there has no effect, except that the first time imports `torch._dynamo`: seconds of CPU per process.
    """
    with torch.device("meta"), _Replacing(dict.fromkeys(_FILLS, lambda tensor, *_args, **_options: tensor)):
        yield


def take_memory(network: torch.nn.Module, device: str | torch.device) -> None:
    """Give the tensors of a network that was made `without_memory` memory on a device; what they hold is undefined."""
    with _Replacing({torch.empty_like: lambda one, device: torch.empty(one.shape, dtype=one.dtype, device=device)}):
        network.to_empty(device=device)  # whose empty_like of a meta tensor would import SymPy


class _Replacing(TorchFunctionMode):
    """Calls other functions in place of some of torch's."""

    def __init__(self, functions: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._functions.get(func, func)(*args, **(kwargs or {}))


_FILLS = torch.nn.init.normal_, torch.nn.init.uniform_, torch.Tensor.normal_, torch.Tensor.uniform_


def prepare_cuda(device: str | torch.device) -> None:
    """Set torch up for networks on a GPU, for this whole process; on other devices this does nothing.

    cuDNN's attention makes a plan for each new shape, which takes tens of milliseconds, and our shapes change all the
    time; flash attention makes none. Sums of 8192 products in float16 lose bits, or overflow. CUDA is not initialised.
    """
    if torch.device(device).type != "cuda":
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def cuda_settings() -> str:
    """Return the settings of `prepare_cuda`, as they are in this process."""
    attention = "on" if torch.backends.cuda.cudnn_sdp_enabled() else "off"
    matmul = torch.backends.cuda.matmul
    short = matmul.allow_fp16_reduced_precision_reduction or matmul.allow_bf16_reduced_precision_reduction
    return f"cuDNN attention {attention}, sums in {'16 bits where it is faster' if short else 'float32'}"


def compute_dtype(precision: str, device: str) -> torch.dtype:
    """Resolve `auto`: float16 on GPUs (the stored format); on CPUs bfloat16 if the CPU multiplies it, otherwise
    float32.

    Without such instructions a bfloat16 product takes four times as long as a float32 one.
    """
    if precision != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]
    if device.startswith("cuda"):
        return torch.float16
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def batch_limit(limit: int, device: str, width: int) -> int:
    """Return how many tokens a batch should have at most.

    On CPUs the widest tensor of the network should stay in the cache, whatever `limit` says. Larger tensors also come
    from the system page by page and go back to it, at every layer: that takes a fifth of SaT's time. The result of a
    token is the same either way.

    Args:
        limit: the most tokens that the settings allow.
        device: `cpu`, `cuda:0`, `mps`.
        width: how many numbers a token has in the network's widest tensor.

    Returns:
        A number of tokens.
    """
    if device.startswith("cuda"):
        return limit
    return min(limit, max(LEAST_TOKENS, CACHED // (4 * width)))


def describe(device: str) -> str:
    """Return `NVIDIA H100 (cuDNN attention off, …, own kernels available)` or `cpu (2 threads)`, for receipts."""
    if device.startswith("cuda"):
        settings = f"{cuda_settings()}, {kernels.stated(torch.device(device))}"
        return f"{torch.cuda.get_device_name(device)} ({settings})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' * (threads != 1)})"


def peak_tflops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak of one device for products of `dtype`; None for CPUs and GPUs that are not in the table."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for part, bfloat16, float32 in _PEAKS:
        if part in name:
            return bfloat16 if dtype in (torch.bfloat16, torch.float16) else float32
    return None


class DeviceMemoryError(RuntimeError):
    """A single sentence, or the data of a whole part, does not fit into the device's memory."""


@dataclass
class Budget:
    """The largest cost of a batch. A stage keeps it from part to part, so that what did not fit is not tried in every
    part.

    `setting`: its name, "batch_tokens"; `unit`: what is counted, "tokens"; `remedy`: what to do if one sentence does
    not fit.
    """

    limit: int
    setting: str
    unit: str
    remedy: str

    def __post_init__(self) -> None:
        self._wanted, self._calm, self._recurs = self.limit, 0, False

    def halve(self, cost: int) -> int:
        """Halve the limit after a batch of this cost did not fit, twice. Returns the limit for the part's next batches.

        The limit is halved, however small the batch was, because another program may have had the memory. If the
        previous part had no room either, our own limit is too high, and it becomes half of this batch.
        """
        self.limit = max(1, (min(cost, self.limit) if self._recurs else self.limit) // 2)
        return min(self.limit, max(1, cost // 2))

    def end_part(self, failures: int) -> None:
        """Try larger batches again after some parts without a failure."""
        self._recurs, self._calm = failures > 0, 0 if failures else self._calm + 1
        if self._calm == CALM_PARTS:
            self.limit, self._calm = min(self._wanted, 2 * self.limit), 0

    def counts(self, failures: int) -> dict[str, float]:
        """Return counts for the receipt: how often a part's batches ran out of memory, and its final budget."""
        if not failures:
            return {"out_of_memory": 0.0}
        return {"out_of_memory": float(failures), f"least.{self.setting}": float(self.limit)}


def trouble(counts: Mapping[str, float]) -> dict[str, float]:
    """Return those counts that a `Budget` makes."""
    return {"out_of_memory": counts.get("out_of_memory", 0.0)} | {
        key: value for key, value in counts.items() if key.startswith("least.")
    }


def in_batches(
    costs: npt.NDArray[np.int64], budget: Budget, compute: Callable[[int, int], None], *, mixed: bool = False
) -> int:
    """Call `compute(start, stop)` for batches of neighbouring rows, within the budget or of one row.

    When a batch runs out of memory, the cache is emptied and the batch is tried once more; if that fails too, the
    budget is halved, and the work continues with half of that batch: nothing else is computed twice.

    Args:
        costs: (rows,), each ≥ 1, in the budget's unit, in descending order, so that the largest batch comes first.
        budget: the largest cost of a batch.
        compute: the work.
        mixed: whether a batch may have rows of several costs.

    Returns:
        How often a batch failed.

    Raises:
        DeviceMemoryError: if one row does not fit.
    """
    ends = [len(costs)] if mixed else np.append(np.flatnonzero(np.diff(costs)) + 1, len(costs))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(costs)])
    start, failures, most, is_second = 0, 0, budget.limit, False
    while start < len(costs):
        fitting = int(np.searchsorted(before, before[start] + most, side="right")) - 1
        stop = min(max(start + 1, fitting), int(ends[np.searchsorted(ends, start, side="right")]))
        cost = int(before[stop] - before[start])
        try:
            compute(start, stop)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            if stop - start == 1 and is_second:
                raise DeviceMemoryError(
                    f"one sentence alone ({cost} {budget.unit}) does not fit into the device's memory "
                    f"({str(error).partition(chr(10))[0]}); end other programs there, take a device with more memory, "
                    f"or {budget.remedy}"
                ) from error
        else:
            start, is_second = stop, False
            advance(float(before[stop] / before[-1]))
            continue
        # here, not in the handler: there the traceback still holds the batch's tensors
        failures += 1
        _empty_cache()
        if is_second:
            most = budget.halve(cost)
        is_second = not is_second
    budget.end_part(failures)
    return failures


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error means that a GPU's memory is full: PyTorch's, the driver's, or that of cuBLAS's
    workspace.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    said = str(error)
    return "CUBLAS_STATUS_ALLOC_FAILED" in said or (
        isinstance(error, torch.AcceleratorError) and "out of memory" in said
    )


def with_room(make: Callable[[], Made], what: str, remedy: str) -> Made:
    """Make something on the device, and try again with an emptied cache if there is too little memory.

    Args:
        make: makes it.
        what: what is made, in the plural, for messages.
        remedy: what else can be done if there is too little memory, for messages.

    Returns:
        What `make` returned.

    Raises:
        DeviceMemoryError: if there is too little memory the second time too.
    """
    try:
        return make()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    _empty_cache()
    try:
        return make()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise DeviceMemoryError(
            f"{what} do not fit into the device's memory ({str(error).partition(chr(10))[0]}); end other programs "
            f"there, take a device with more memory, or {remedy}"
        ) from error


def _empty_cache() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the host's memory; from a GPU through pinned memory, which is several times as fast."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
