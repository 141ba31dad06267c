"""Residual vector quantisation, LCM 2.3.5: a vector becomes one code per codebook, coarse to fine.

Each codebook quantises what the previous ones left, with beam 1: the nearest centroid is taken. The sum of the
centroids of the first k codes approximates the vector, the better the larger k. Vectors are raw embeddings, as in the
paper, not normalised ones.

Cost: 2 · units · dim operations per row and codebook, 1.1 GFLOP per row at 64 × 8192 and dim 1024, nearly all of it in
one matrix product; memory: the centroids (1.07 GB there) and a few blocks.

Centroids are float16, as fine as the embeddings themselves, and half the size of float32. Rounding loses nothing:
residuals are computed with the stored centroids, so the next codebook sees the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from stages.device import compute_dtype, to_host
from stages.largest import first_largest

SCORES = 1 << 24  # rows · units of one block
ROWS = 2048  # of a block at most
GPU_ROWS = 16_384  # on a GPU: with 2048 rows launching the work takes longer than doing it
GPU_SCORES = 1 << 27  # 256 MB in 16 bits
CHUNK = 1 << 16  # rows whose residuals are held in float32
T = TypeVar("T")


class Blocks(Protocol):
    """The result of `blocks`: a function that runs `work(start, stop)` on blocks of `size` of `rows` rows."""

    def __call__(self, work: Callable[[int, int], T], rows: int, size: int) -> list[T]: ...


@contextmanager
def blocks(device: str) -> Iterator[Blocks]:
    """Make PyTorch compute with one thread per block inside the `with` statement. It cannot be nested.

    So results do not depend on the number of threads: a matrix product that is divided among threads may round
    differently with another number of them, and then a row between two centroids changes sides. On a CPU several blocks
    are computed at once, on a GPU one after the other. Blocks have fixed borders, and results come in order.
    """

    def borders(rows: int, size: int) -> list[tuple[int, int]]:
        return list(pairwise([*range(0, rows, size), rows]))

    if device.startswith("cuda"):
        yield lambda work, rows, size: [work(*one) for one in borders(rows, size)]
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield lambda work, rows, size: list(pool.map(lambda one: work(*one), borders(rows, size)))
    finally:
        torch.set_num_threads(threads)


class RvqRecipe(Protocol):
    """What a fit needs to know; `RvqSettings` has it, with defaults and explanations."""

    @property
    def codebooks(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def initialization(self) -> Literal["progressive", "kmeans"]: ...
    @property
    def backend(self) -> Literal["torch", "faiss"]: ...
    @property
    def iterations(self) -> int: ...
    @property
    def points_per_unit(self) -> int: ...
    @property
    def precision(self) -> str: ...
    @property
    def seed(self) -> int: ...


def block_rows(units: int, device: str | torch.device) -> int:
    """Return the number of rows whose distances to all units are computed at once."""
    if torch.device(device).type == "cuda":
        return min(GPU_ROWS, max(1, GPU_SCORES // units))
    return min(ROWS, max(1, SCORES // units))


class Nearest:
    """Finds the nearest centroid: argmin |x − c|² = argmax x·c − |c|²/2.

    `centroids`: (units, dim); `dtype`: of the product. Everything is scaled by a power of two so that scores are around
    1, where float16 neither overflows nor loses digits.
    """

    def __init__(self, centroids: torch.Tensor, dtype: torch.dtype) -> None:
        exact = centroids.float()
        squares = exact.square().sum(dim=1)
        mean = float(squares.mean())
        scale = 2.0 ** -round(np.log2(mean)) if mean > 0 else 1.0
        self.dtype = dtype
        self.transposed = (exact * scale).to(dtype).T
        self.offset = (squares * (-scale / 2)).to(dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the (rows,) int64 indices of the nearest centroids of (rows, dim)."""
        scores = torch.addmm(self.offset, x.to(self.dtype), self.transposed)
        if scores.is_cuda:
            return first_largest(scores)
        return torch.from_numpy(scores.float().numpy().argmax(axis=1))  # ten times as fast as PyTorch's on a CPU


def take_nearest(
    residual: torch.Tensor, centroids: torch.Tensor, dtype: torch.dtype, each_block: Blocks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Subtract from every row, in place, its nearest centroid.

    The residual may be on the host and the centroids on a GPU: blocks then travel there and back.

    Args:
        residual: (rows, dim), floating point, which is changed.
        centroids: (units, dim), floating point.
        dtype: the type of products.
        each_block: calls a function for blocks of rows.

    Returns:
        (rows,) int64, the index of each row's centroid; (rows,) float32, the squared norm of the rest.
    """
    nearest = Nearest(centroids, dtype)
    # Made beforehand: small results between freed blocks would keep glibc from using the memory of the blocks again.
    indices = torch.empty(len(residual), dtype=torch.int64, device=centroids.device)
    squares = torch.empty(len(residual), device=centroids.device)

    def take(start: int, stop: int) -> None:
        x = residual[start:stop].to(centroids.device)
        indices[start:stop] = found = nearest(x)
        left = x.float() - centroids[found].float()
        residual[start:stop] = left
        squares[start:stop] = left.square().sum(dim=1)

    each_block(take, len(residual), block_rows(len(centroids), centroids.device))
    return indices, squares


@dataclass(frozen=True)
class Codebooks:
    """Fitted codebooks. `centroids`: (codebooks, units, dim) float16; `settings`, `numbers`: of the fit, and its
    quality.
    """

    centroids: torch.Tensor
    settings: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, float | list[float]] = field(default_factory=dict)

    def to(self, device: str) -> Self:
        """Return the same on a device."""
        return replace(self, centroids=self.centroids.to(device))

    def encode(self, embeddings: npt.NDArray[np.float16], precision: str = "auto") -> npt.NDArray[np.uint16]:
        """Quantise: (rows, dim) → codes (rows, codebooks)."""
        return self.quantise(embeddings, precision)[0]

    def quantise(
        self, embeddings: npt.NDArray[np.float16], precision: str = "auto"
    ) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32]]:
        """Quantise: (rows, dim) → codes (rows, codebooks), and the squared error of each row (rows,).

        On a CPU the codes do not depend on the number of threads. `precision`: of distances, see `compute_dtype`.
        """
        count, _, dim = self.centroids.shape
        if embeddings.ndim != 2 or embeddings.shape[1] != dim:
            raise ValueError(f"these codebooks quantise (rows, {dim}); the embeddings are {embeddings.shape}")
        device = str(self.centroids.device)
        dtype = compute_dtype(precision, device)
        codes = np.empty((len(embeddings), count), np.uint16)
        errors = np.empty(len(embeddings), np.float32)
        with blocks(device) as each_block:
            for first in range(0, len(embeddings), CHUNK):
                rows = slice(first, first + CHUNK)
                residual = torch.from_numpy(np.require(embeddings[rows], requirements=("C", "W"))).to(device).float()
                indices = torch.empty((count, len(residual)), dtype=torch.int32, device=residual.device)
                for level, centroids in enumerate(self.centroids):
                    found, left = take_nearest(residual, centroids, dtype, each_block)
                    indices[level] = found
                codes[rows] = to_host(indices).numpy().T  # at once: after each codebook the device would wait
                errors[rows] = left.cpu().numpy()
        return codes, errors

    def decode(self, codes: npt.NDArray[np.uint16], first: int | None = None) -> torch.Tensor:
        """Dequantise: codes (rows, codebooks) → (rows, dim) float32 on the centroids' device, from the first `first`
        codes.
        """
        count, _, dim = self.centroids.shape
        first = count if first is None else first
        if not 1 <= first <= count or codes.ndim != 2 or codes.shape[1] < first:
            raise ValueError(f"dequantise {codes.shape} codes up to {first}: give (rows, ≥ first), 1 ≤ first ≤ {count}")
        indices = torch.from_numpy(codes[:, :first].astype(np.int64)).to(self.centroids.device)
        x = torch.zeros((len(codes), dim), device=self.centroids.device)
        for level in range(first):
            x += self.centroids[level][indices[:, level]]
        return x

    def to_bytes(self, provenance: Mapping[str, Any]) -> bytes:
        """Return the artifact's file."""
        from stages.artifact import to_bytes  # here, so that fits are timed where safetensors is missing

        about = {"settings": dict(self.settings), "numbers": dict(self.numbers), "provenance": provenance}
        return to_bytes("rvq", {"centroids": self.centroids}, about)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read the codebooks of a file. Raises ValueError if there are none."""
        from stages.artifact import from_bytes

        tensors, about = from_bytes("rvq", data)
        return cls(tensors["centroids"], about["settings"], about["numbers"])
