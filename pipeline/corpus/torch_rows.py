"""Rows of a corpus for PyTorch's `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from pipeline.conditions.condition import Condition
from pipeline.corpus.frames import Row, RowSource
from stages.arrow import embedding_matrix


class TorchRows(IterableDataset[Row]):
    """Sentences in the order of the corpus; each worker of a `DataLoader` reads other parts.

    A row is a dict by column: a vector is a tensor, everything else a Python value. `rank` and `world` are for several
    processes, each of which reads other parts. Memory: one row group (8192 rows) per worker.

    Args:
        source: what offers rows.
        names: the columns of each row.
        where: a condition that rows must satisfy; None for all rows.
        rank: the number of this process, from 0.
        world: how many processes read the corpus together.

    Raises:
        ValueError: if the rank is not below the number of processes.
    """

    def __init__(
        self, source: RowSource, names: tuple[str, ...], where: Condition | None, rank: int = 0, world: int = 1
    ) -> None:
        if not 0 <= rank < world:
            raise ValueError(f"rank is {rank} and world is {world}; allowed: 0 ≤ rank < world")
        self._source, self._names, self._where = source, names, where
        self._rank, self._world = rank, world

    def __iter__(self) -> Iterator[Row]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        parts = self._source.parts[self._rank * workers + number :: self._world * workers]
        for batch in self._source.batches(*self._names, where=self._where, parts=parts):
            columns = [_values(batch.table[name]) for name in self._names]
            for values in zip(*columns, strict=True):
                yield dict(zip(self._names, values, strict=True))


def _values(column: pa.ChunkedArray) -> list[Any]:
    if not len(column) or not pa.types.is_fixed_size_list(column.type):
        values: list[Any] = column.to_pylist()
        return values
    matrix = embedding_matrix(column)
    # copies, which belong to torch; uint16 supports few operations
    return list(torch.from_numpy(matrix.astype(np.int64) if matrix.dtype == np.uint16 else matrix.copy()))
