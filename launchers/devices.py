"""The devices of this machine."""

from __future__ import annotations


def devices() -> list[str]:
    """`cuda` once for each GPU, or one `cpu`."""
    import torch

    return ["cuda"] * torch.cuda.device_count() if torch.cuda.is_available() else ["cpu"]
