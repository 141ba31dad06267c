"""Finds the rows of a page: those of the corpus, those that satisfy a condition, or the first in the order of a column.

    finder = Finder(corpus)
    finder.find(Question(where="autobleu < 20"), start=0, count=50, watch=Watch())

Without condition and order, only the row groups of the page are read. With a condition, its columns are read from the
start until the page is full; how many rows of each row group satisfy it is kept, and later pages continue from there.
With an order, that column and those of the condition are read to the end, once: the values and places of the first 5000
rows are kept, and more when a page lies after them. Memory: a few bytes per row group, and the rows of orders that are
kept, 100 000 at most.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import ConfigError
from pipeline.base.formats import number
from pipeline.base.parallel import in_parallel
from pipeline.conditions.condition import Condition
from pipeline.corpus.part_reader import PART, ROW, Column, PartReader, no_column
from pipeline.corpus.reader import Corpus

Ints = npt.NDArray[np.int64]
Place = tuple[str, int]  # part, and row in it

KEPT = 5_000  # rows of an order that are kept at first; four times as many whenever a page lies after them
DEEPEST = 100_000  # row of an order
QUESTIONS = 16  # whose state is kept
_VALUE = "\0value"  # no column has this name


@dataclass(frozen=True)
class Question:
    """Which rows, in which order. `sort`: a column; without one, the order of the corpus."""

    where: str | None = None
    sort: str | None = None
    descending: bool = False


@dataclass(frozen=True)
class FoundPage:
    """Rows of one page. `found`: the rows of the answer as far as known, from `read` rows; `whole`: these are all."""

    places: list[Place]
    read: int
    found: int
    whole: bool


def can_be_ordered(column: Column) -> bool:
    """Return whether a column holds values that have an order: no lists, structs or vectors."""
    return not pa.types.is_nested(column.type)


class Finder:
    """Answers questions about one corpus, from several threads."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._lock = threading.Lock()
        self._kept: OrderedDict[Question, _Scan | _Order] = OrderedDict()

    def condition(self, where: str | None) -> Condition | None:
        """Parse a condition; None for an empty one. Raises `ExpressionError`."""
        return self._corpus.condition(where, "filter") if where and where.strip() else None

    def find(self, question: Question, start: int, count: int, watch: Watch, *, all_rows: bool = False) -> FoundPage:
        """Return rows `start` to before `start + count` of the answer.

        Args:
            question: which rows.
            start: the number of rows before the page.
            count: how many rows the page has.
            watch: is told of the rows that are read.
            all_rows: read all rows, so that their number is known.

        Returns:
            The rows of the page, and how many rows there are, if that is known.

        Raises:
            ConfigError: for a condition or a column that the corpus does not have, or a page that is too deep;
                `CorpusError` for damaged files.
        """
        where = self.condition(question.where)
        if question.sort is not None:
            column = self._corpus.catalogue.get(question.sort)
            if column is None:
                raise ConfigError(no_column(question.sort, self._corpus.catalogue))
            if not can_be_ordered(column):
                raise ConfigError(f"{question.sort} holds {column.type}, which has no order; choose another column")
            if start + count > DEEPEST:
                raise ConfigError(
                    f"sorted pages end at row {number(DEEPEST)}; reverse the order, or filter by {question.sort}"
                )
        if where is None and question.sort is None:
            return self._in_order(start, count)
        state = self._state(question, where)
        with watch.holding(state.lock):
            return state.find(start, count, watch, all_rows)

    def _state(self, question: Question, where: Condition | None) -> _Scan | _Order:
        with self._lock:
            state = self._kept.get(question)
            if state is None:
                if question.sort is None:
                    assert where
                    state = _Scan(self._corpus, where)
                else:
                    state = _Order(self._corpus, where, question.sort, descending=question.descending)
                self._kept[question] = state
            self._kept.move_to_end(question)
            while len(self._kept) > QUESTIONS:
                self._kept.popitem(last=False)
            return state

    def _in_order(self, start: int, count: int) -> FoundPage:
        corpus, rows = self._corpus, self._corpus.rows
        places: list[Place] = []
        if start < rows:
            part, row = corpus.place(start)
            at = bisect.bisect_left(corpus.parts, part)
            while len(places) < count and at < len(corpus.parts):
                with corpus.reader(corpus.parts[at]) as reader:
                    end = min(reader.rows, row + count - len(places))
                    places += [(reader.part, one) for one in range(row, end)]
                at, row = at + 1, 0
        return FoundPage(places, len(places), rows, whole=True)


@dataclass
class _Scan:
    """A condition, read as far as pages need it. `counts`: the rows of each row group read so far that satisfy it."""

    corpus: Corpus
    where: Condition
    lock: threading.Lock = field(default_factory=threading.Lock)
    groups: list[tuple[int, int]] = field(default_factory=list)  # number of the part, row group
    counts: list[int] = field(default_factory=list)
    read: int = 0
    found: int = 0
    whole: bool = False

    def find(self, start: int, count: int, watch: Watch, all_rows: bool) -> FoundPage:
        places: list[Place] = []
        before = 0
        for (part, group), satisfying in zip(list(self.groups), list(self.counts), strict=True):
            if before < start + count and before + satisfying > start:
                with self.corpus.reader(self.corpus.parts[part]) as reader:
                    rows, _ = self._satisfying(reader, group)
                places += _page_of(reader.part, rows, before, start, count)
                watch.see(self.read, self.found)
            before += satisfying
        watch.see(self.read, self.found)
        if not self.whole and (self.found <= start + count or all_rows):
            for name, rows, before in self._go_on(watch):
                places += _page_of(name, rows, before, start, count)
                if self.found > start + count and not all_rows:  # one more says that there is a next page
                    break
        self.whole = self.whole or self.read == self.corpus.rows
        return FoundPage(places, self.read, self.found, self.whole)

    def _go_on(self, watch: Watch) -> Iterator[tuple[str, Ints, int]]:
        """Yield part, rows that satisfy the condition, and how many did before, of the row groups not yet read."""
        part, group = self.groups[-1] if self.groups else (0, -1)
        for number_ in range(part, len(self.corpus.parts)):
            with self.corpus.reader(self.corpus.parts[number_]) as reader:
                for one in range(group + 1 if number_ == part else 0, reader.groups):
                    rows, read = self._satisfying(reader, one)
                    before = self.found
                    self.groups.append((number_, one))
                    self.counts.append(len(rows))
                    self.read += read
                    self.found += len(rows)
                    watch.see(self.read, self.found)
                    yield reader.part, rows, before
        self.whole = True

    def _satisfying(self, reader: PartReader, group: int) -> tuple[Ints, int]:
        batch = reader.batch((ROW,), self.where, group)
        return batch.table[ROW].to_numpy(), batch.rows


def _page_of(part: str, rows: Ints, before: int, start: int, count: int) -> list[Place]:
    inside = rows[max(0, start - before) : max(0, start + count - before)]
    return [(part, row) for row in inside.tolist()]


class _Order:
    """The first rows in the order of a column: values and places, the best first; of equal values, in corpus order.

    Rows without a value come last, whichever way the order goes.
    """

    def __init__(self, corpus: Corpus, where: Condition | None, column: str, *, descending: bool) -> None:
        self.lock = threading.Lock()
        self._corpus, self._where, self._column, self._descending = corpus, where, column, descending
        self._keys = [(_VALUE, "descending" if descending else "ascending"), ("at", "ascending"), (ROW, "ascending")]
        self._best: pa.Table | None = None
        self._kept = KEPT
        self._found = 0

    def find(self, start: int, count: int, watch: Watch, all_rows: bool) -> FoundPage:
        while self._best is None or (self._best.num_rows < self._found and self._best.num_rows < start + count):
            if self._best is not None:
                self._kept = min(DEEPEST, 4 * self._kept)
            self._best = self._read(watch)
        page = self._best.slice(start, count)
        parts = [self._corpus.parts[at] for at in page["at"].to_pylist()]
        return FoundPage(
            list(zip(parts, page[ROW].to_pylist(), strict=True)), self._corpus.rows, self._found, whole=True
        )

    def _read(self, watch: Watch) -> pa.Table:
        """Read the column, and return its first rows."""
        best, waiting, size = None, list[pa.Table](), 0
        read = found = 0
        for at, part in enumerate(self._corpus.parts):
            with self._corpus.reader(part) as reader:
                for batch in reader.batches(tuple(dict.fromkeys((self._column, ROW))), self._where):
                    read += batch.rows
                    found += batch.table.num_rows
                    places = pa.array(np.full(batch.table.num_rows, at, np.int32))
                    valued = {_VALUE: batch.table[self._column], "at": places, ROW: batch.table[ROW]}
                    table = self._better(pa.table(valued), best)
                    if table.num_rows or not (best or waiting):
                        waiting.append(table)
                        size += table.num_rows
                    if size > self._kept:
                        best, waiting, size = self._first([*([best] if best else []), *waiting]), [], 0
                    watch.see(read, found)
        self._found = found
        return self._first([*([best] if best else []), *waiting])

    def _better(self, table: pa.Table, best: pa.Table | None) -> pa.Table:
        """Return the rows that may come before the last of the best; with equal values, they come after it."""
        if best is None or best.num_rows < self._kept:
            return table
        last = best[_VALUE][-1]
        values = table[_VALUE]
        if not last.is_valid or (pa.types.is_floating(last.type) and last.as_py() != last.as_py()):
            return table.filter(pc.is_valid(values))
        return table.filter(pc.greater(values, last) if self._descending else pc.less(values, last))

    def _first(self, tables: list[pa.Table]) -> pa.Table:
        table = pa.concat_tables(tables)
        order = pc.sort_indices(table, sort_keys=self._keys)  # null comes last, either way
        return table.take(order[: self._kept]).combine_chunks()


def values_of(corpus: Corpus, places: list[Place], names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the values of some rows; each row group is read once.

    Args:
        corpus: the corpus.
        places: (part, row) of each.
        names: the columns to read.

    Returns:
        `part`, `row` and the named columns of each row, in the order of `places`.
    """
    found: dict[Place, dict[str, Any]] = {}
    wanted: dict[str, list[int]] = {}
    for part, row in places:
        wanted.setdefault(part, []).append(row)

    def read(part: str) -> list[dict[str, Any]]:
        with corpus.reader(part) as reader:
            rows: list[dict[str, Any]] = reader.take(
                tuple(dict.fromkeys((*names, PART, ROW))), wanted[part]
            ).to_pylist()
            return rows

    for rows in in_parallel(read, list(wanted)):
        found |= {(row[PART], row[ROW]): row for row in rows}
    return [found[place] for place in places]


class GivenUpError(Exception):
    """Nobody waits for the result any more."""


class Watch:
    """Stands between work in a thread and those who wait for it."""

    def __init__(self) -> None:
        self.read = self.found = 0
        self._given_up = threading.Event()

    def see(self, read: int, found: int = 0) -> None:
        """Note how far the work is. Raises `GivenUpError` if nobody waits for it; so call it often."""
        self.read, self.found = read, found
        self.check()

    def check(self) -> None:
        """Raise `GivenUpError` if nobody waits for the work."""
        if self._given_up.is_set():
            raise GivenUpError

    def give_up(self) -> None:
        """Let the work end at its next check."""
        self._given_up.set()

    @contextmanager
    def holding(self, lock: threading.Lock) -> Iterator[None]:
        """Hold a lock; a caller that gives up stops waiting for it."""
        while not lock.acquire(timeout=0.1):
            self.check()
        try:
            yield
        finally:
            lock.release()
