"""The sentences nearest to a vector, exactly: every embedding is compared, row group by row group.

Cost: the embeddings are read once (2 · dim bytes per sentence before compression) and compared by one core, 350 000 a
second at 1024 dimensions. Memory: one row group (8192 rows, 48 MB at 1024 dimensions) and the k best rows. A row's
score depends on nothing but the row and the query, and of rows with equal scores the first in the order of the corpus
counts, so the same query has the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.base.errors import CorpusError
from pipeline.conditions.condition import Condition
from pipeline.corpus.frames import RowSource
from pipeline.corpus.part_reader import PART, ROW, PartReader
from stages.arrow import embedding_matrix
from stages.stage import NON_FINITE

Metric = Literal["cosine", "euclidean"]
Query = int | tuple[str | int, int] | npt.ArrayLike  # a row of the corpus, (part, row), or a vector
SPARE = 10  # candidates of an index beyond twice those asked for: it orders them by rounded vectors
_BLOCK = 1024  # rows that are turned into float32 at a time


class Searchable(RowSource, Protocol):
    """A corpus that can be searched: its rows, and single rows by their number."""

    def reader(self, part: str | int) -> PartReader:
        """Return a reader of a part's columns."""

    def place(self, row: int) -> tuple[str, int]:
        """Return part, and row in it, of a row of the whole corpus."""


class Candidates(Protocol):
    """An index, which names rows that are likely to be near."""

    def candidates(self, query: npt.NDArray[np.float32], k: int) -> list[tuple[str, int]]:
        """Return part and row of up to k rows."""


@dataclass(frozen=True)
class Neighbour:
    """A row near the query. `score`: cosine, or the Euclidean distance."""

    part: str
    row: int
    score: float


def find_nearest(
    source: Searchable,
    query: Query,
    k: int,
    names: tuple[str, ...],
    where: Condition | None,
    metric: Metric,
    index: Candidates | None = None,
) -> pa.Table:
    """Find the k rows nearest to a query, best first.

    Args:
        source: what offers rows and embeddings.
        query: the number of a row, (part, row), or a vector of the embeddings' width.
        k: how many rows to return, at least 1.
        names: the columns to return.
        where: a condition that rows must satisfy; None for all rows.
        metric: `cosine`, or `euclidean`, whose scores are distances.
        index: names the rows that are compared; None to compare all of them.

    Returns:
        `score`, `part`, `row` and the named columns.

    Raises:
        CorpusError: for another metric, a k below 1, or a query that is not a usable vector.
    """
    if metric not in get_args(Metric) or k < 1:
        raise CorpusError(f"metric is {metric!r} and k is {k}; allowed: {', '.join(get_args(Metric))}, and k ≥ 1")
    without = _place(source, query)
    width = source.schema("embedding").field(0).type.list_size
    vector = _embedding(source, *without) if without else np.asarray(query, np.float32)
    if vector.shape != (width,) or not np.isfinite(vector).all() or not vector.any():
        got = f"row {without[1]} of part {without[0]}, whose embedding is 0" if without else f"of shape {vector.shape}"
        raise CorpusError(
            f"a query is a sentence, a row, (part, row), or {width} finite numbers, not all 0; this one is {got}"
        )
    if index:
        found = _nearest_of(source, index.candidates(vector, 2 * k + SPARE), vector, k, metric, without)
    else:
        found = _nearest_rows(source, vector, k, metric, where, without)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "score": pa.array([one.score for one in found], pa.float64()),
        PART: pa.array([one.part for one in found], pa.string()),
        ROW: pa.array([one.row for one in found], pa.int64()),
    }
    others = tuple(name for name in names if name not in columns)
    rows = pa.concat_tables([source.schema(*others).empty_table(), *(_row(source, one, others) for one in found)])
    schema = pa.schema([*((name, one.type) for name, one in columns.items()), *rows.schema])
    return pa.table(columns | {name: rows[name] for name in others}, schema=schema)


def _place(source: Searchable, query: Query) -> tuple[str, int] | None:
    """Return the row that a query names, if it names one."""
    if isinstance(query, int | np.integer):
        return source.place(int(query))
    if isinstance(query, tuple) and len(query) == 2 and isinstance(query[1], int | np.integer):
        with source.reader(query[0]) as reader:
            return reader.part, int(query[1])
    return None


def _embedding(source: Searchable, part: str, row: int) -> npt.NDArray[np.float32]:
    with source.reader(part) as reader:
        found: npt.NDArray[np.float32] = embedding_matrix(reader.take(("embedding",), [row])["embedding"])[0].astype(
            np.float32
        )
        return found


def _row(source: Searchable, found: Neighbour, names: tuple[str, ...]) -> pa.Table:
    with source.reader(found.part) as reader:
        return reader.take(names, [found.row])


def _nearest_rows(
    source: RowSource,
    query: npt.NDArray[np.float32],
    k: int,
    metric: Metric = "cosine",
    where: Condition | None = None,
    without: tuple[str, int] | None = None,
) -> list[Neighbour]:
    """Return the k best rows, best first, or all if there are fewer; `without` is a (part, row) to leave out.

    Rows whose embedding was not finite, and is stored as zeros, are left out.
    """
    best: list[Neighbour] = []
    for batch in source.batches("embedding", "status", "part", "row", where=where):
        table = batch.table
        if not table.num_rows:
            continue
        part = table["part"][0].as_py()
        rows = table["row"].to_numpy()
        badness = _badness(embedding_matrix(table["embedding"]), query, metric)
        badness[table["status"].to_numpy() == NON_FINITE] = np.inf
        if without and without[0] == part:
            badness[rows == without[1]] = np.inf
        if len(best) == k:
            badness[badness >= _sign(metric) * best[-1].score] = np.inf
        order = np.argsort(badness, kind="stable")[:k]
        found = [
            Neighbour(part, int(rows[one]), float(_sign(metric) * badness[one]))
            for one in order
            if np.isfinite(badness[one])
        ]
        best = sorted([*best, *found], key=lambda one: _sign(metric) * one.score)[:k]  # stable: earlier rows first
    return best


def _nearest_of(
    source: Searchable,
    rows: list[tuple[str, int]],
    query: npt.NDArray[np.float32],
    k: int,
    metric: Metric,
    without: tuple[str, int] | None,
) -> list[Neighbour]:
    """Return the k best of these rows, best first, by their embeddings; each row group is read once."""
    found = []
    for part in sorted({part for part, _ in rows}):
        mine = sorted(row for of, row in rows if of == part and (of, row) != without)
        with source.reader(part) as reader:
            for group in range(reader.groups):
                low, high = reader.bounds(group)
                some = [row for row in mine if low <= row < high]
                if some:
                    column = reader.read(("embedding",), group)["embedding"].take(pa.array([row - low for row in some]))
                    badness = _badness(embedding_matrix(column), query, metric)
                    scores = (_sign(metric) * badness).tolist()
                    found += [Neighbour(part, row, score) for row, score in zip(some, scores, strict=True)]
    return sorted(found, key=lambda one: _sign(metric) * one.score)[:k]


def _sign(metric: Metric) -> int:
    return -1 if metric == "cosine" else 1


def _badness(
    embeddings: npt.NDArray[np.float16], query: npt.NDArray[np.float32], metric: Metric
) -> npt.NDArray[np.float64]:
    """Return (rows,) numbers, smaller is nearer. Each row is summed alone, so the other rows do not affect its
    score.
    """
    found = np.empty(len(embeddings))
    unit = query / np.float32(np.sqrt(np.einsum("i,i->", query, query)))
    for start in range(0, len(embeddings), _BLOCK):
        some = embeddings[start : start + _BLOCK].astype(np.float32)
        place = slice(start, start + len(some))
        if metric == "euclidean":
            some -= query
            found[place] = np.sqrt(np.einsum("ij,ij->i", some, some))
        else:
            norms = np.sqrt(np.einsum("ij,ij->i", some, some))
            with np.errstate(invalid="ignore", divide="ignore"):
                cosines = np.einsum("ij,j->i", some, unit) / norms
            found[place] = np.where(norms > 0, -cosines, np.inf)
    return found
