"""Finds the rows that are nearest to one, as `Corpus.nearest` does, and tells how far the search is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from pipeline.conditions.condition import Condition
from pipeline.corpus.nearest import Candidates, find_nearest
from pipeline.corpus.part_reader import PartBatch, PartReader
from pipeline.corpus.reader import Corpus
from pipeline.quality.browse.shown import DECODED, SHORT, TEXT, shown_row
from pipeline.quality.browse.watch import Watch

COUNT = 12


class _WatchedCorpus:
    """A corpus of which each row group that is read is told to a watch."""

    def __init__(self, corpus: Corpus, watch: Watch) -> None:
        self._corpus, self._watch = corpus, watch

    @property
    def parts(self) -> list[str]:
        return self._corpus.parts

    def schema(self, *columns: str) -> pa.Schema:
        return self._corpus.schema(*columns)

    def reader(self, part: str | int) -> PartReader:
        return self._corpus.reader(part)

    def place(self, row: int) -> tuple[str, int]:
        return self._corpus.place(row)

    def batches(
        self, *columns: str, where: Condition | None = None, parts: Sequence[str] | None = None
    ) -> Iterator[PartBatch]:
        read = found = 0
        for batch in self._corpus.batches(*columns, where=where, parts=parts):
            read += batch.rows
            found += batch.table.num_rows
            self._watch.see(read, found)
            yield batch


def neighbours(
    corpus: Corpus, part: str, row: int, where: Condition | None, index: Candidates | None, watch: Watch
) -> list[dict[str, Any]]:
    """Return the nearest rows, best first, each with its `score` (cosine).

    Args:
        corpus: the corpus.
        part: the part of the row.
        row: its number in the part.
        where: a condition that the others must satisfy; without one and with an index, only likely rows are compared.
        index: an index of the whole corpus; None to compare all rows.
        watch: is told of the rows that are compared.

    Returns:
        At most `COUNT` rows as `shown_row` returns them.

    Raises:
        CorpusError: for a row that does not exist or has no usable embedding.
    """
    names = tuple(name for name in (TEXT, DECODED, "lang", "autobleu", "doc_id") if name in corpus.catalogue)
    index = index if where is None else None
    found = find_nearest(_WatchedCorpus(corpus, watch), (part, row), COUNT, names, where, "cosine", index)
    return [shown_row(one, names, SHORT) | {"score": one["score"]} for one in found.to_pylist()]
