"""Sentences that mean the same: similar embeddings within a cluster (SemDeDup, arXiv 2303.09540, section 3).

Cosines are float32 products of blocks on the device. One that is so near the threshold that its rounding could decide
is computed again in float64 on the host; so the result is the same on every device, with blocks of every size.

Cost: the square of the number of distinct embeddings of a cluster, times their width: each pair is multiplied once.
Memory: the distinct embeddings in 16 bits, on a GPU if they take less than half of what is free there, and some blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stages.device import with_room
from stages.duplicates.hashing import Ints

BLOCK, GPU_BLOCK = 1024, 4096  # embeddings that are compared with as many others at once
NEGATIVE_ZERO = 0x8000  # in float16, equal to zero
HALF_ULP = 2.0**-24  # the largest relative error of one operation in float32
DECIDED = 1 << 20  # numbers of embeddings that are multiplied in float64 at once


def similar(embeddings: npt.NDArray[np.float16], cosine: float, device: str = "cpu") -> tuple[Ints, Ints]:
    """Find similar embeddings of one cluster.

    Args:
        embeddings: (rows, dim), finite, in the order in which one is the first.
        cosine: the least of similar ones.
        device: where they are compared: `cpu`, `cuda:0`. The result does not depend on it.

    Returns:
        (rows,) the first row that is similar to each one, itself if no earlier one is; (rows,) how many are, with
        itself.

    Raises:
        DeviceMemoryError: if the device has too little memory for a few blocks.
    """
    bits = np.ascontiguousarray(embeddings).view(np.uint16)
    rows = np.where(bits == NEGATIVE_ZERO, 0, bits).astype(np.uint16, copy=False).view(np.float16)
    _, firsts, of, counts = np.unique(
        rows.view(f"V{rows.itemsize * rows.shape[1]}").reshape(-1), return_index=True, return_inverse=True,
        return_counts=True,
    )  # fmt: skip
    order = np.argsort(firsts)  # distinct embeddings, as they occur first
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    firsts, counts, of = firsts[order], counts[order], rank[of.reshape(-1)]
    distinct = rows[firsts]
    with _full_precision():
        first, sizes = with_room(
            lambda: _Cluster.of(distinct, cosine, device).compared(counts),
            "blocks of embeddings that are compared",
            "hide it (CUDA_VISIBLE_DEVICES=), so that a CPU compares them",
        )
    return firsts[first][of].astype(np.int64), sizes[of]


def error_of(dim: int) -> float:
    """Return the largest error of a cosine that is a sum of `dim` products in float32, in any order.

    With u = 2⁻²⁴, a component of a unit vector is off by a factor of (1 + u)² (its scale and the product with that), so
    an exact sum of products is off by 4u; their computed sum by γ = dim·u/(1 − dim·u), as the magnitudes of the terms
    add up to 1 at most (Higham, Accuracy and Stability, section 3.1); the threshold, in float32, by u. One more u
    covers squares of these, and the errors of float64.
    """
    return (dim / (1 - dim * HALF_ULP) + 6) * HALF_ULP


@dataclass(frozen=True)
class _Cluster:
    """Distinct embeddings: `host`, `rows`: (rows, dim) float16, as an array and as a tensor, on the device if there is
    room; `squares`: (rows,) float64, of their lengths; `scales`: (rows,) float32 on the device, one over the length.
    """

    host: npt.NDArray[np.float16]
    rows: Tensor
    squares: npt.NDArray[np.float64]
    scales: Tensor
    cosine: float

    @classmethod
    def of(cls, host: npt.NDArray[np.float16], cosine: float, device: str) -> _Cluster:
        squares = np.empty(len(host))
        for some in _slices(len(host), _at_once(host)):
            squares[some] = np.square(host[some], dtype=np.float64).sum(axis=1)
        scales = np.divide(1, np.sqrt(squares), out=np.zeros(len(host)), where=squares > 0)
        gpu = torch.device(device).type == "cuda"
        fits = gpu and host.nbytes < torch.cuda.mem_get_info(device)[0] // 2
        rows = torch.from_numpy(host).to(device if fits else "cpu")
        return cls(host, rows, squares, torch.from_numpy(scales).float().to(device), cosine)

    def compared(self, counts: Ints) -> tuple[Ints, Ints]:
        """Return the first similar one of each, and how many rows are similar to it; `counts`: rows that each is."""
        device = self.scales.device
        first = torch.arange(len(self.host), device=device)
        weights = torch.from_numpy(counts).to(device).double()  # whose sums are exact
        sizes = weights.clone()
        for left, right, alike in self._blocks():
            sizes[left] += alike.double() @ weights[right]
            sizes[right] += alike.double().T @ weights[left]
            earliest = torch.where(alike, left[:, None], len(self.host)).amin(dim=0)
            first[right] = torch.minimum(first[right], earliest)
        return first.cpu().numpy(), sizes.long().cpu().numpy()

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield rows, later rows, and (rows, later rows) whether they are similar: each pair at most once.

        Pairs that are left out are not similar.
        """
        slices = list(_slices(len(self.host), GPU_BLOCK if self.scales.is_cuda else BLOCK))
        error = error_of(self.host.shape[1])
        low, high = self.cosine - error, self.cosine + error
        for number, some in enumerate(slices):
            units = self._units(some)
            for others in slices[number:]:
                cosines = products(units, units if others == some else self._units(others))
                if others == some:
                    cosines.masked_fill_(torch.ones_like(cosines, dtype=torch.bool).tril_(), -2)
                left, right = (torch.nonzero(cosines.amax(dim=dim) >= low)[:, 0] for dim in (1, 0))
                if not len(left):
                    continue
                cosines = cosines[left][:, right]
                alike = cosines >= high
                near = torch.nonzero((cosines >= low) & ~alike)
                left, right = left + some.start, right + others.start
                alike[near[:, 0], near[:, 1]] = self._decided(left[near[:, 0]], right[near[:, 1]])
                yield left, right, alike

    def _units(self, some: slice) -> Tensor:
        """Return rows as float32 vectors of length 1, on the device."""
        return self.rows[some].to(self.scales.device).float().mul_(self.scales[some, None])

    def _decided(self, left: Tensor, right: Tensor) -> Tensor:
        """Return which pairs are similar, by float64. NumPy adds up in the same order on every machine."""
        one, other = left.cpu().numpy(), right.cpu().numpy()
        alike = np.empty(len(one), np.bool_)
        for some in _slices(len(one), _at_once(self.host)):
            a, b = one[some], other[some]
            sums = np.multiply(self.host[a], self.host[b], dtype=np.float64).sum(axis=1)
            lengths = np.sqrt(self.squares[a] * self.squares[b])
            alike[some] = np.divide(sums, lengths, out=np.zeros(len(a)), where=lengths > 0) >= self.cosine
        return torch.from_numpy(alike).to(left.device)


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the products (m, n) of vectors (m, dim) and (n, dim), in float32."""
    return left @ right.T


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply in float32 with all its bits: PyTorch may be told to take fewer (TensorFloat-32, bfloat16)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _at_once(embeddings: npt.NDArray[np.float16]) -> int:
    return max(1, DECIDED // int(embeddings.shape[1]))


def _slices(rows: int, size: int) -> Iterator[slice]:
    return (slice(start, min(rows, start + size)) for start in range(0, rows, size))
