"""The device a worker computes on: its number format, and batches that fit into its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


def prepare_cuda(device: str | torch.device) -> None:
    """Settings of torch, for this whole process, that every network on a GPU wants; nothing on other devices.

    cuDNN's attention makes a plan for each new shape, which takes tens of milliseconds, and our shapes are new all the
    time; flash attention makes none. Sums of 8192 products in float16 lose bits, or overflow. CUDA is not initialised.
    """
    if torch.device(device).type != "cuda":
        return
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def cuda_settings() -> str:
    """What `prepare_cuda` decides, as it stands in this process."""
    attention = "on" if torch.backends.cuda.cudnn_sdp_enabled() else "off"
    matmul = torch.backends.cuda.matmul
    short = matmul.allow_fp16_reduced_precision_reduction or matmul.allow_bf16_reduced_precision_reduction
    return f"cuDNN attention {attention}, sums in {'16 bits where it is faster' if short else 'float32'}"


def compute_dtype(precision: str, device: str) -> torch.dtype:
    """`auto`: float16 on GPUs (the stored format); on CPUs bfloat16 where the CPU multiplies it, else float32.

    Without such instructions a bfloat16 product takes four times as long as a float32 one.
    """
    if precision != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[precision]
    if device.startswith("cuda"):
        return torch.float16
    has_bf16 = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if has_bf16 else torch.float32


def describe(device: str) -> str:
    """`NVIDIA H100 80GB HBM3 (cuDNN attention off, …)` or `cpu (2 threads)`: what goes into receipts."""
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)} ({cuda_settings()})"
    return f"cpu ({torch.get_num_threads()} threads)"


class DeviceMemoryError(RuntimeError):
    """One sentence alone does not fit into the device's memory."""


@dataclass
class Budget:
    """What one batch may cost. A stage keeps it from part to part, so that what did not fit once is not tried again.

    setting: its name, "batch_tokens"; unit: what is counted, "tokens"; remedy: what to do if one sentence does not fit.
    """

    limit: int
    setting: str
    unit: str
    remedy: str

    def counts(self, halvings: int) -> dict[str, float]:
        """For the receipt: how often a part's batches were halved, and with which budget it was done."""
        if not halvings:
            return {"out_of_memory": 0.0}
        return {"out_of_memory": float(halvings), f"least.{self.setting}": float(self.limit)}


def in_batches(costs: npt.NDArray[np.int64], budget: Budget, compute: Callable[[int, int], None]) -> int:
    """Call `compute(start, stop)` for batches of neighbouring rows of equal cost, within the budget or of one row.

    costs: (rows,), each ≥ 1, in the budget's unit. Give them in descending order, so that the batch that needs the most
    memory comes at once. When a batch runs out of memory, the budget becomes half of what that batch cost, and the work
    goes on with its first row: nothing else is computed twice. Returns how often that happened. Raises
    `DeviceMemoryError` if one row does not fit.
    """
    ends = np.append(np.flatnonzero(np.diff(costs)) + 1, len(costs))
    start, halvings = 0, 0
    while start < len(costs):
        cost = int(costs[start])
        stop = min(start + max(1, budget.limit // cost), int(ends[np.searchsorted(ends, start, side="right")]))
        try:
            compute(start, stop)
        except torch.OutOfMemoryError as error:
            if stop - start == 1:
                raise DeviceMemoryError(
                    f"one sentence alone ({cost} {budget.unit}) does not fit into the device's memory "
                    f"({str(error).partition(chr(10))[0]}); end other programs there, take a device with more memory, "
                    f"or {budget.remedy}"
                ) from error
        else:
            start = stop
            continue
        # here, not in the handler: there the traceback still holds the batch's tensors
        budget.limit = max(1, (stop - start) * cost // 2)
        halvings += 1
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return halvings


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory; from a GPU through pinned memory, which is several times as fast."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
