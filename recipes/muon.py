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
    dtype; of (matrices, rows, columns) each.
    """
    multiply = torch.addmm if matrix.ndim == 2 else torch.baddbmm
    wide = matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
    x = (wide / wide.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)).to(dtype)
    a, b, c = _QUINTIC
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = multiply(x, multiply(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    result: Tensor = x if wide is matrix else x.mT
    return result


class Muon(torch.optim.Optimizer):
    """For two-dimensional parameters only; give embeddings, norms and biases to AdamW.

    On a GPU, matrices of one shape are worked on together: there the number of kernels decides how long it takes.
    """

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
            alike: dict[Any, list[nn.Parameter]] = {}
            for number, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    alike.setdefault(parameter.shape if parameter.is_cuda else number, []).append(parameter)
            for parameters in alike.values():
                directions = [self._direction(parameter, group["momentum"]) for parameter in parameters]
                alone = len(directions) == 1
                found = orthogonalised(directions[0] if alone else torch.stack(directions), self.dtype)
                for parameter, update in zip(parameters, [found] if alone else found, strict=True):
                    rate = group["lr"] * 0.2 * math.sqrt(max(parameter.shape))
                    parameter.add_(update.to(parameter.dtype), alpha=-rate)

    def _direction(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        kept: Tensor = state["momentum"]
        kept.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(kept, momentum)
