"""How few rows a matrix product may have on a CPU, so that each row has the same bits as among any others.

Libraries choose kernels by the number of rows. Of few rows in bfloat16, oneDNN adds up long sums in another order (seen
with AMX and one thread: below 256 rows for 1024 → 256 numbers, below 652 for 1024 → 1024), so that a sentence's
embedding would depend on which others are in its batch. How few is too few depends on the processor, the sizes and the
threads, so it is measured once in a process for each product that is used, in some hundredths of a second.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

FEW = 4  # rows: with fewer, MKL takes other kernels on AMD's CPUs, whatever MKL_CBWR says
STEPS = (FEW, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048)  # numbers of rows that products are filled up to
MANY, MANY_OF_SHORT = 2304, 300  # rows that others are compared with
SHORT = 256  # numbers of a row: so few are added up in one piece, as far as was seen, and few rows tell if not
MOST_COLUMNS, MOST_OF_SHORT = 8192, 256  # of the result; those of a vocabulary would take seconds


def fewest_rows(inner: int, columns: int, dtype: torch.dtype) -> int:
    """Return to how many rows a product on this CPU is filled up.

    Args:
        inner: the length of a row, over which is summed.
        columns: the length of a row of the result.
        dtype: of the factors. Products in float32 are reproducible by MKL's own setting (`stages/sonar/__init__.py`).

    Returns:
        The number of rows.
    """
    if dtype == torch.float32:
        return FEW
    most = MOST_OF_SHORT if inner <= SHORT else MOST_COLUMNS
    return _measured(inner, min(columns, most), dtype, torch.get_num_threads())


@cache
@torch.no_grad()
def _measured(inner: int, columns: int, dtype: torch.dtype, threads: int) -> int:
    """Compare rows of small products with those of a large one; `threads`, because libraries divide work by them."""
    x, weight = cancelling(MANY_OF_SHORT if inner <= SHORT else MANY, inner, columns, dtype)
    bias = torch.zeros(columns, dtype=dtype)
    whole = F.linear(x, weight, bias)
    for low, high in reversed(list(pairwise(step for step in STEPS if step < len(x)))):
        among = range(low, high, (high - low) // 6) if threads > 1 else (low,)  # with threads, not all of few differ
        for rows in (*among, high - 2, high - 1):
            if not torch.equal(F.linear(x[:rows], weight, bias), whole[:rows]):
                return high
    return FEW


def cancelling(rows: int, inner: int, columns: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return factors whose products cancel, so that what is left of a sum tells in which order it was added up.

    Of plain random numbers, another order changes one rounded sum in 100 000.

    Args:
        rows: of the first factor.
        inner: the numbers of a row.
        columns: of the result.
        dtype: of the factors.
        seed: of the numbers.

    Returns:
        (rows, inner) and (columns, inner).
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(2 * (inner // 2), generator=generator)
    one, other = (torch.randn(size, inner // 2, generator=generator).to(dtype) for size in (rows, columns))
    x, weight = torch.cat([one, one], dim=1)[:, order], torch.cat([other, -other], dim=1)[:, order]
    return F.pad(x, (0, inner % 2)), F.pad(weight, (0, inner % 2))
