"""The row ranges of an index, collected by one process, or by several of which each visits an N-th of the parts.

A share writes its row ranges beside the index, as `<digest>.share-3-of-100.train-00000.runs`, and then its note. The
last one reads all of them in order and writes the index as one process would, byte for byte. The digest names the state
of the corpus and the selection, so that shares of different ones do not mix. Cost: an N-th of a pass over the columns;
for the last share, reading and writing 22 bytes per row range (88 GB for the LCM paper's 4 billion documents).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipeline.base.errors import CorpusError, MissingError
from pipeline.corpus.fingerprint import content_digest
from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import Counts, Selection
from pipeline.storage import layout
from pipeline.storage.records import Record
from pipeline.storage.share_notes import Share, ShareNotes
from pipeline.training.data.row_range_files import BREAK, GIVEN, ROW_RANGE, Records, RowRangeWriter
from pipeline.training.data.row_ranges import Answers, SplitBuilder, row_ranges_of
from pipeline.training.data.snapshot import Snapshot

Add = Callable[[Sequence[Records], int], None]


class Collected(Record):
    """What was found beside row ranges. `unanswered`, `answered`: documents; `planned`: paragraphs with a plan, and
    all.
    """

    counts: Counts
    unanswered: int
    answered: int
    planned: tuple[int, int]


class _ShareNote(Record):
    """What a share has written: row ranges of each file of each split, and digests of the files."""

    collected: Collected
    runs: dict[str, list[int]]
    digests: dict[str, list[str]]


def collect(snapshot: Snapshot, selection: Selection, add: Add, done: Callable[[int], None]) -> Collected:
    """Find the row ranges of a selection.

    Args:
        snapshot: what the index is made of.
        selection: its selection, or a share of it.
        add: is given the row ranges of each split of a part, and the number of rows that the part has.
        done: is told how many further rows were read.

    Returns:
        What was counted.

    Raises:
        CorpusError: if the corpus cannot be read; `ConfigError` for what it cannot answer.
    """
    counts = Counts(removed=dict.fromkeys(selection.reasons, 0))
    answers, planned = Answers(selection.corpus, snapshot.answers), np.zeros(2, np.int64)
    rows = snapshot.parts["rows"].slice(selection.first, len(selection.parts)).to_pylist()
    row_ranges = row_ranges_of(selection, answers, snapshot.plans, counts, done)
    for of_part, by_split in zip(rows, row_ranges, strict=True):
        add(by_split, of_part)
        for of_split in by_split:
            after, new = of_split["after"], of_split["new"]
            planned += (after == GIVEN).sum(), (after == BREAK).sum() + new.sum()  # a break or a sequence for each
    have, paragraphs = map(int, planned)
    return Collected(
        counts=counts, unanswered=answers.missing, answered=answers.given, planned=(have, paragraphs)
    )  # fmt: skip


class IndexShares:
    """The shares of an index that is not there yet.

    Args:
        snapshot: what the index is made of.
        share: the share of this process; `ConfigError` is raised if there are too many.
    """

    def __init__(self, snapshot: Snapshot, share: Share) -> None:
        self._snapshot, self._share = snapshot, share
        self._store = snapshot.selection.corpus.store
        self.notes = ShareNotes(self._store, layout.index_share_prefix(snapshot.digest), share, _ShareNote)

    def write(self, done: Callable[[int], None]) -> Counts:
        """Write the row ranges of this share, and its note; return what it keeps and removes."""
        digest, (which, of) = self._snapshot.digest, self._share
        writers = [RowRangeWriter(self._store, digest, layout.index_share(which, of, split)) for split in SPLITS]

        def add(by_split: Sequence[Records], rows: int) -> None:
            for writer, of_split in zip(writers, by_split, strict=True):
                writer.add(of_split)

        collected = collect(self._snapshot, self._snapshot.selection.share(*self._share), add, done)
        for writer in writers:
            writer.close()
        runs = {split: writer.files for split, writer in zip(SPLITS, writers, strict=True)}
        digests = {split: writer.digests for split, writer in zip(SPLITS, writers, strict=True)}
        self.notes.write(_ShareNote(collected=collected, runs=runs, digests=digests))
        return collected.counts

    def together(self, builders: Sequence[SplitBuilder]) -> Collected:
        """Give the row ranges of all shares to the builders of the splits, and add up what was counted.

        Raises `MissingError` if a file is gone, as when another process has completed the index, `CorpusError` if one
        is damaged.
        """
        notes, rows = list(self.notes.every()), self._snapshot.parts["rows"].to_numpy()
        for split, builder in zip(SPLITS, builders, strict=True):
            for which, note in enumerate(notes, 1):
                for of_part in self._read(which, split, note):
                    builder.add(of_part, int(rows[of_part["part"][0]]))
        counts = Counts()
        for note in notes:
            counts.add(note.collected.counts)
        found = [note.collected for note in notes]
        return Collected(
            counts=counts,
            unanswered=sum(one.unanswered for one in found),
            answered=sum(one.answered for one in found),
            planned=(sum(one.planned[0] for one in found), sum(one.planned[1] for one in found)),
        )

    def _read(self, which: int, split: str, note: _ShareNote) -> Iterator[Records]:
        """Yield the row ranges of a share's parts, one file in memory."""
        name = layout.index_share(which, self._share[1], split)
        for number, digest in enumerate(note.digests[split]):
            path = layout.index_row_ranges_path(self._snapshot.digest, name, number)
            remedy = f"since share {which} wrote it; delete {self.notes.path(which)}, and do that share again"
            try:
                data = self._store.read(path)
            except MissingError as error:
                raise MissingError(f"{self._store.url}/{path} is gone {remedy}") from error
            if content_digest(data) != digest:
                raise CorpusError(f"{self._store.url}/{path} has changed {remedy}")
            records = np.frombuffer(data, ROW_RANGE)
            yield from np.split(records, np.flatnonzero(np.diff(records["part"])) + 1)
