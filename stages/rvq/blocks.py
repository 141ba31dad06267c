"""Works on blocks of rows such that results do not depend on the number of threads; and what a fit of codebooks needs.

A matrix product that is divided among threads may round differently with another number of them, and then a row between
two centroids changes sides. So on a CPU each block is computed by one thread, several blocks at once; on a GPU one
block after the other. Blocks have fixed borders, and results come in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Literal, Protocol, TypeVar

import torch

T = TypeVar("T")


class Blocks(Protocol):
    """The result of `blocks`: a function that runs `work(start, stop)` on blocks of `size` of `rows` rows."""

    def __call__(self, work: Callable[[int, int], T], rows: int, size: int) -> list[T]: ...


@contextmanager
def blocks(device: str) -> Iterator[Blocks]:
    """Make PyTorch compute with one thread per block inside the `with` statement. It cannot be nested."""

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
