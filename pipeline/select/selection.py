"""Which sentences of a corpus are used, and which of them belong together, for trainer and exporter.

    selection = Selection(corpus, SelectSettings(where="autobleu >= 30 and chars >= 10"))
    for part in corpus.parts:
        chosen = selection.part(part)       # row ranges, as numpy arrays

Nothing is copied or written: the same corpus and settings give the same rows again, and `selection.digest` names them.
A sentence whose embedding is not finite is never used. Every sentence that is not used is counted once, under the first
reason that removed it: not finite, a clause of the condition, its document, or a sequence that is too short. Counts
that do not balance are an error. Cost: one pass over the small columns that the condition reads, row group by row
group, 16 parts at a time; memory: a few bytes for each of their rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.parallel import prefetch
from pipeline.config.select import SelectSettings
from pipeline.console.progress import RowProgress
from pipeline.corpus.fingerprint import fingerprint_of_mapping
from pipeline.corpus.part_reader import ROW, PartReader
from pipeline.corpus.reader import Corpus
from pipeline.storage import layout
from stages.arrow import changes
from stages.stage import NON_FINITE

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

STATUS = "status"
NOT_FINITE = "not finite"
WITH_DOCUMENT = "left out with their document"
TOO_SHORT = "in documents or sequences too short"


@dataclass
class Counts:
    """Where every sentence and document went. `removed`: sentences by reason; `pieces`: the number of sequences."""

    sentences: int = 0
    kept: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    documents: int = 0
    whole: int = 0
    shortened: int = 0  # lost sentences, but not all of them
    dropped: int = 0
    pieces: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of another part."""
        for name in ("sentences", "kept", "documents", "whole", "shortened", "dropped", "pieces"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.removed.items():
            self.removed[reason] = self.removed.get(reason, 0) + count

    def check(self, where: str) -> None:
        """Raise `CorpusError` unless in = kept + removed, for sentences and for documents."""
        removed = sum(self.removed.values())
        if self.sentences != self.kept + removed or self.documents != self.whole + self.shortened + self.dropped:
            raise CorpusError(
                f"the selection from {where} does not balance: {self.sentences} sentences in, {self.kept} kept + "
                f"{removed} removed; {self.documents} documents in, {self.whole} whole + {self.shortened} shortened + "
                f"{self.dropped} dropped"
            )


@dataclass(frozen=True)
class PartSelection:
    """The rows that are used of one part, as row ranges without gaps, in the order of the part.

    `doc`: the number of the document in the part. `piece`: the number of the sequence in that document. Row ranges of
    the same doc and piece follow each other as one sequence: with `drop-sentences` a sequence has several row ranges,
    otherwise one. All arrays have one entry per row range.
    """

    part: str
    doc: Ints
    piece: Ints
    first_row: Ints
    rows: Ints
    counts: Counts

    @cached_property
    def row_numbers(self) -> Ints:
        """(sentences,) The rows that are used, ascending."""
        before = np.cumsum(self.rows) - self.rows
        return np.repeat(self.first_row - before, self.rows) + np.arange(self.rows.sum())

    @cached_property
    def sequence_starts(self) -> Ints:
        """(sequences,) The first row range of every sequence."""
        return np.flatnonzero(changes(self.doc) | changes(self.piece))

    @cached_property
    def sequence_rows(self) -> Ints:
        """(sequences,) The number of sentences of every sequence."""
        return _sums(self.rows, self.sequence_starts)


class Selection:
    """What a section `select` selects from a corpus; nothing is opened until a part is asked for.

    Args:
        corpus: the corpus.
        settings: the section `select`; `ExpressionError` is raised for a condition that the corpus cannot answer.
        origin: the option or setting that holds the condition, for messages.
    """

    def __init__(self, corpus: Corpus, settings: SelectSettings, origin: str = "select.where") -> None:
        self.corpus, self.settings, self._origin = corpus, settings, origin
        self.parts = corpus.parts  # those that are selected from
        self.first = 0  # the number of the first of them in the corpus
        self.condition = corpus.condition(settings.where, origin) if settings.where is not None else None
        self.clauses = self.condition.clauses if self.condition else ()
        status = (STATUS,) if STATUS in corpus.catalogue else ()
        self.columns = tuple(dict.fromkeys((*(self.condition.columns if self.condition else ()), *status)))
        nullable = {column.name for column in corpus.catalogue.values() if column.nullable}
        self._open = self.condition.undecided(nullable) if self.condition else ()
        self.reasons = (NOT_FINITE, *dict.fromkeys(clause.text for clause in self.clauses), WITH_DOCUMENT, TOO_SHORT)

    @cached_property
    def digest(self) -> str:
        """32 hex digits of what decides the rows: the settings, and the digests of the columns that they use."""
        named = [self.corpus.catalogue[name] for name in self.columns]
        keys = sorted({"documents.rows", *(f"{column.family}.{column.name}" for column in named if column.family)})
        parts = ((part, self._used_of(part, keys)) for part in self.corpus.parts)
        return fingerprint_of_mapping([self.settings.meaningful(), keys], parts)

    def _used_of(self, part: str, keys: Sequence[str]) -> list[str]:
        """Return the digests of these columns of a part, and which of its documents were purged."""
        digests: dict[str, str] = {}
        for receipt in self.corpus.state_of(part).receipts.values():
            digests |= receipt.columns
        return [digests[key] for key in keys] + sorted(self.corpus.tombstones.of(layout.part_owner(part)))

    def share(self, which: int, of: int) -> Selection:
        """Return the selection from one of `of` equal shares of the parts; the first is number 1."""
        one = copy.copy(self)
        one.first = len(self.parts) * (which - 1) // of
        one.parts = self.parts[one.first : len(self.parts) * which // of]
        return one

    def reader(self, part: str) -> PartReader:
        """Return a reader of a part's columns; use it in a `with` statement."""
        return self.corpus.reader(part)

    def part(self, part: str) -> PartSelection:
        """Select from a part. Raises `ConfigError` for a null where the condition does not say what null means."""
        return self._opened(self.reader(part))

    def of(self, reader: PartReader) -> PartSelection:
        """Return `part` of an open reader; different parts may be processed in different threads."""
        documents = reader.documents(["rows", "first_row"])
        rows: Ints = documents["rows"].to_numpy().astype(np.int64)
        first: Ints = documents["first_row"].to_numpy().astype(np.int64)
        removed = dict.fromkeys(self.reasons, 0)
        if (first != np.cumsum(rows) - rows).any() or rows.sum() != reader.rows:
            raise CorpusError(
                f"{self.corpus.url}: the documents of part {reader.part} do not cover its {reader.rows} rows one after "
                "the other; delete its receipt and run again"
            )
        kept = self._kept(reader, removed)
        doc = np.repeat(np.arange(len(rows)), rows)
        if self.settings.broken == "drop-documents":
            found = np.bincount(doc[kept], minlength=len(rows))
            removed[WITH_DOCUMENT] = int(found[found < rows].sum())
            kept &= (found == rows)[doc]
        chosen = _row_ranges(kept, doc, joined=self.settings.broken == "drop-sentences")
        range_doc, first_row, length, removed[TOO_SHORT] = _long_enough(*chosen, self.settings.min_sentences)
        piece = _numbers(range_doc) if self.settings.broken == "split-documents" else np.zeros_like(range_doc)
        left = np.bincount(range_doc, weights=length, minlength=len(rows)).astype(np.int64)
        whole, dropped = (left == rows) & (rows > 0), left == 0
        counts = Counts(
            sentences=reader.rows,
            kept=int(length.sum()),
            removed=removed,
            documents=len(rows),
            whole=int(whole.sum()),
            shortened=int((~whole & ~dropped).sum()),
            dropped=int(dropped.sum()),
        )
        result = PartSelection(reader.part, range_doc, piece, first_row, length, counts)
        counts.pieces = len(result.sequence_starts)
        counts.check(f"part {reader.part}")
        return result

    def __iter__(self) -> Iterator[PartSelection]:
        """Yield part after part, in the order of the corpus; some are read ahead."""
        return prefetch(self._opened, map(self.reader, self.parts))

    def _opened(self, reader: PartReader) -> PartSelection:
        with reader:
            return self.of(reader)

    def count(self, progress: RowProgress) -> Counts:
        """Count over all parts."""
        total = Counts(removed=dict.fromkeys(self.reasons, 0))
        for chosen in self:
            total.add(chosen.counts)
            progress.add(chosen.counts.sentences)
        total.check(self.corpus.url)
        return total

    def _kept(self, reader: PartReader, removed: dict[str, int]) -> Bools:
        """Return (rows,) which rows are finite and satisfy every clause; the others are counted."""
        kept = np.zeros(reader.rows, np.bool_)
        for batch in reader.batches((*(name for name in self.columns if name != ROW), ROW)):
            left = batch.table.combine_chunks()
            if STATUS in self.columns:
                left = self._without(left, left.filter(pc.field(STATUS) != NON_FINITE), NOT_FINITE, removed)
            for name in self._open:
                if left[name].null_count:
                    self._refuse(name, left[name].null_count, left.num_rows, reader.part)
            for clause in self.clauses:
                left = self._without(left, clause.filter(left), clause.text, removed)
            kept[left[ROW].to_numpy()] = True
        return kept

    @staticmethod
    def _without(table: pa.Table, left: pa.Table, reason: str, removed: dict[str, int]) -> pa.Table:
        removed[reason] += table.num_rows - left.num_rows
        return left

    def _refuse(self, column: str, nulls: int, rows: int, part: str) -> None:
        clause = next(one for one in self.clauses if column in one.columns and column not in one.null_columns)
        keep, leave_out = clause.with_nulls(self._open)
        raise ConfigError(
            f"{self._origin}: {column} is null in {nulls} of {rows} rows (part {part}): they were not sampled, or "
            f"have none, and `{clause.text}` does not say what becomes of them. To keep them: {keep}; to leave them "
            f"out: {leave_out}"
        )


def _row_ranges(kept: Bools, doc: Ints, joined: bool) -> tuple[Ints, Ints, Ints, Ints]:
    """Return row ranges of kept rows within documents: doc, first row, rows, and the number of their sequence.

    With `joined`, all row ranges of a document form one sequence.
    """
    new = changes(doc)
    starts = np.flatnonzero(kept & (new | ~np.concatenate([[False], kept[:-1]])))
    ends = np.flatnonzero(kept & np.concatenate([new[1:] | ~kept[1:], [True]]))  # inclusive
    range_doc = doc[starts]
    sequence = np.cumsum(changes(range_doc)) if joined else np.arange(1, len(starts) + 1)
    return range_doc, starts, ends + 1 - starts, sequence - 1


def _long_enough(doc: Ints, first: Ints, rows: Ints, sequence: Ints, least: int) -> tuple[Ints, Ints, Ints, int]:
    """Return doc, first row and rows of the row ranges in sequences with at least `least` rows, and the rows of the
    others.
    """
    long = (np.bincount(sequence, weights=rows) >= least)[sequence] if len(sequence) else np.zeros(0, np.bool_)
    return doc[long], first[long], rows[long], int(rows[~long].sum())


def _numbers(doc: Ints) -> Ints:
    """Return 0, 1, 2, … within every stretch of equal values."""
    starts = np.flatnonzero(changes(doc))
    return np.arange(len(doc)) - np.repeat(starts, np.diff(starts, append=len(doc)))


def _sums(values: Ints, starts: Ints) -> Ints:
    """Return the sums of the values from each start to the next."""
    before: Ints = np.concatenate([[0], np.cumsum(values)])
    sums: Ints = np.diff(before[np.append(starts, len(values))])
    return sums
