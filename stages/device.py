"""The device a worker computes on, and the number format it computes in."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16", "float16"]


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
