"""Noise on embeddings, LCM eq. 27; each row's noise depends only on its `u`, the seed and the level.

So it is the same in any batch, part or corpus that holds the row, and a level's noise is the same whatever the other
levels are: Philox is a function of a key and a counter. Cost: 25 µs of one core for a vector of 1024.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.scaler.robust import RobustScaler

Floats = npt.NDArray[np.float64]


def noise(u: Floats, levels: Floats, seed: int, dim: int) -> npt.NDArray[np.float32]:
    """Return standard normal noise that depends on the row, the level and the seed only.

    Args:
        u: (rows,) the rows' uniform numbers.
        levels: (rows,) the variance of each.
        seed: the seed.
        dim: the width of embeddings.

    Returns:
        (rows, dim) float32.
    """
    found = np.empty((len(u), dim), np.float32)
    bits = np.random.Philox(0)
    normal = np.random.Generator(bits)
    state: Any = {**bits.state, "buffer_pos": 4, "has_uint32": 0}  # nothing left over from another row
    for row, (of_row, of_level) in enumerate(zip(_bits(u), _bits(levels), strict=True)):
        words = {"key": np.array([of_row, seed], np.uint64), "counter": np.array([0, 0, 0, of_level], np.uint64)}
        bits.state = state | {"state": words}
        normal.standard_normal(dtype=np.float32, out=found[row])
    return found


def perturbed(embeddings: Tensor, eps: Tensor, levels: Tensor, scaler: RobustScaler) -> Tensor:
    """Add noise to embeddings.

    Constant dimensions keep their values: their scale is unknown, and noise of variance α in absolute units would drown
    an embedding.

    Args:
        embeddings: (rows, dim).
        eps: (rows, dim) standard normal noise.
        levels: (rows,) the variance α of each, in [0, 1].
        scaler: the robust scaler in whose space noise is added.

    Returns:
        (rows, dim) float32.
    """
    x, alpha = embeddings.to(torch.float32), levels.to(torch.float32).unsqueeze(1)
    noisy = (1 - alpha).sqrt() * scaler.normalize(x) + alpha.sqrt() * eps  # LCM eq. 27
    return torch.where(scaler.constant.to(x.device), x, scaler.denormalize(noisy))


def _bits(numbers: Floats) -> list[int]:
    found: list[int] = np.ascontiguousarray(numbers, np.float64).view(np.uint64).tolist()
    return found
