"""The peak rates of GPUs, for the MFU: dense products, from NVIDIA's data sheets, in TFLOP/s.

If a sheet gives a number "with sparsity", half of it is used. Without a known peak there is no MFU.
"""

from __future__ import annotations

import torch

# part of the device's name, bfloat16 and float16 on tensor cores, float32; the first that fits counts
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


def peak_tflops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak of one device for products of `dtype`; None for CPUs and GPUs that are not in the table."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for part, bfloat16, float32 in _PEAKS:
        if part in name:
            return bfloat16 if dtype in (torch.bfloat16, torch.float16) else float32
    return None
