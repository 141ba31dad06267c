"""AdamW and its learning rate (LCM 3.1)."""

from __future__ import annotations

import math

import torch
from torch import nn

from pipeline.config.train import TrainSettings


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Return the rate of a step, counted from 0: linearly up to `lr` at the end of the warm-up, then half a cosine
    down.

    The step after the last one would have `last_lr`.
    """
    warmup, last = settings.warmup, settings.last_lr
    if step < warmup:
        return settings.lr * (step + 1) / warmup
    share = (step - warmup) / max(1, settings.steps - warmup)
    return last + (settings.lr - last) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


def decays(name: str, parameter: nn.Parameter, embeddings: frozenset[str]) -> bool:
    """Return whether weights decay: matrices do; norms, biases, other vectors, and tables of embeddings do not."""
    return parameter.ndim >= 2 and name not in embeddings


def adamw(model: nn.Module, settings: TrainSettings) -> torch.optim.AdamW:
    """Return the optimizer of all parameters of `model`, in two groups: with weight decay and without."""
    tables = frozenset(f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Embedding))
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    groups = [
        {"params": [one for name, one in named if decays(name, one, tables)], "weight_decay": settings.weight_decay},
        {"params": [one for name, one in named if not decays(name, one, tables)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate(0, settings),
        betas=settings.betas,
        eps=settings.eps,
        fused=named[0][1].is_cuda,
    )
