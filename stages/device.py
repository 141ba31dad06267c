"""The device a worker computes on: its number format, and batches that fit into its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


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
    """`NVIDIA H100 80GB HBM3` or `cpu (2 threads)`: what goes into receipts."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
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
