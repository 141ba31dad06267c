"""Converts rows of a corpus to tables of other libraries: pandas, Polars, Hugging Face datasets.

Each library is imported on demand, and the error says what to install. Memory: the rows that were asked for; a
streaming dataset holds one row group (8192 rows).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from pipeline.base.errors import CorpusError
from pipeline.conditions.condition import Condition
from pipeline.corpus.part_reader import PartBatch

Row = dict[str, Any]


class RowSource(Protocol):
    """What a corpus offers to readers of its rows."""

    @property
    def parts(self) -> list[str]:
        """The names of the parts, in order."""

    def schema(self, *columns: str) -> pa.Schema:
        """Return the schema of these columns."""

    def batches(
        self, *columns: str, where: Condition | None = None, parts: Sequence[str] | None = None
    ) -> Iterator[PartBatch]:
        """Yield one row group after the other.

        Args:
            *columns: the names of the columns to read.
            where: a condition that rows must satisfy; None for all rows.
            parts: the parts to read, in this order; None for all.

        Yields:
            The rows of one row group.
        """


def library(name: str, method: str) -> Any:
    """Import an optional library. If it is missing, raises `CorpusError` with the command that installs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CorpusError(
            f"Corpus.{method} needs the package {name}, which cannot be imported ({error}); install it: "
            f"pip install {name}"
        ) from error


def to_polars(table: pa.Table) -> Any:
    """Return a `polars.DataFrame`."""
    return library("polars", "to_polars").from_arrow(table)


def to_pandas(table: pa.Table) -> Any:
    """Return a `pandas.DataFrame`: vectors are NumPy arrays, integers with nulls have the type `Int64` or the like."""
    library("pandas", "to_pandas")
    frame = table.to_pandas(integer_object_nulls=True)
    for field in table.schema:
        if pa.types.is_integer(field.type) and table[field.name].null_count:
            kind = str(field.type)
            frame[field.name] = frame[field.name].astype(f"UInt{kind[4:]}" if kind[0] == "u" else f"Int{kind[3:]}")
    return frame


def to_datasets(table: pa.Table) -> Any:
    """Return a `datasets.Dataset` over the same memory."""
    return library("datasets", "to_datasets").Dataset(table)


def to_streaming_datasets(source: RowSource, names: tuple[str, ...], where: Condition | None) -> Any:
    """Return a `datasets.IterableDataset`, which reads one row group after the other.

    Args:
        source: what offers rows.
        names: the columns.
        where: a condition that rows must satisfy; None for all rows.

    Returns:
        The dataset; nothing is read before it is iterated over.
    """
    datasets = library("datasets", "to_datasets")
    features = datasets.Features.from_arrow_schema(source.schema(*names))

    def rows() -> Iterator[Row]:
        for batch in source.batches(*names, where=where):
            yield from batch.table.to_pylist()

    return datasets.IterableDataset.from_generator(rows, features=features)
