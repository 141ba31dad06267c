"""The sequences of one split of an index, read from its files shuffle block by shuffle block.

Row ranges are looked up when a shuffle buffer needs them; nothing is held in memory per row range or sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipeline.base.errors import ConfigError
from pipeline.inputs.splits import SPLITS
from pipeline.training.data.end_of_text import END_OF_PARAGRAPH, TEXTS
from pipeline.training.data.index import Index
from pipeline.training.data.row_range_files import (
    BREAK,
    GIVEN,
    PLAN,
    ROW_RANGE,
    Records,
    RowRanges,
    concatenated_ranges,
)
from pipeline.training.data.row_ranges import NO_ANSWER, Ints, closed, sentences_of

# the "part" of a closing sentence, of a plan that is a copy of a sentence, and of one that stands beside a sentence
CLOSING_SENTENCE, PLAN_COPY, GIVEN_PLAN = -1, -2, -3
BREAK_SENTENCE = TEXTS.index(END_OF_PARAGRAPH)


@dataclass(frozen=True, eq=False)
class BlockSequences:
    """The sequences of some shuffle blocks. `number`: (row ranges,) the number of each of `row_ranges` in the split.

    The number of a sequence is that of its first row range.
    """

    row_ranges: Records
    number: Ints

    @cached_property
    def _starts(self) -> Ints:
        return np.flatnonzero(self.row_ranges["new"])

    @property
    def sequences(self) -> Ints:
        """(sequences,) The numbers of the sequences."""
        return self.number[self._starts]

    @property
    def answers(self) -> npt.NDArray[np.int32]:
        """(sequences,) First row of the answer, −1: none."""
        answers: npt.NDArray[np.int32] = self.row_ranges["answer"][self._starts]
        return answers

    @cached_property
    def lengths(self) -> Ints:
        """(sequences,) Sentences, the closing one, plans and breaks included."""
        lengths: Ints = np.add.reduceat(sentences_of(self.row_ranges), self._starts)
        return lengths

    def rows(self) -> tuple[npt.NDArray[np.int32], Ints]:
        """Return (sentences,) part and row of each.

        Closing sentences and breaks have the part `CLOSING_SENTENCE`, and which of `TEXTS` they are as the row; plans
        have `PLAN_COPY`, and the place of the sentence here that they are a copy of, or `GIVEN_PLAN`, and their row in
        the part of the sentences around them.
        """
        row_ranges = self.row_ranges
        closing = closed(row_ranges)
        behind = np.flatnonzero(closing) + 1  # the places of closing sentences
        response = (row_ranges["answer"][closing] != NO_ANSWER).astype(np.int64)
        which = np.where(row_ranges["after"][closing] == BREAK, BREAK_SENTENCE, response)
        rows = np.insert(row_ranges["rows"].astype(np.int64), behind, 1)
        part = np.repeat(np.insert(row_ranges["part"], behind, np.int32(CLOSING_SENTENCE)), rows)
        row = concatenated_ranges(np.insert(row_ranges["first_row"].astype(np.int64), behind, which), rows)
        plan = np.repeat(np.insert(row_ranges["after"] == PLAN, behind, False), rows)
        if plan.any():
            stored = np.flatnonzero((part != CLOSING_SENTENCE) & ~plan)
            key = part.astype(np.int64) << 32 | row  # unique among what is stored
            order = np.argsort(key[stored])
            row[plan] = stored[order[np.searchsorted(key[stored], key[plan], sorter=order)]]
            part[plan] = PLAN_COPY
        part[np.repeat(np.insert(row_ranges["after"] == GIVEN, behind, False), rows)] = GIVEN_PLAN
        return part, row


@dataclass(frozen=True, eq=False)
class Sequences:
    """The sequences in the order of the corpus.

    `first_row_range`: (shuffle blocks + 1,) the first row range of each; `block_lengths`: (shuffle blocks,) sentences,
    closing ones included.
    """

    row_ranges: RowRanges
    first_row_range: Ints
    block_lengths: Ints

    @classmethod
    def of(cls, index: Index, split: str) -> Sequences:
        """Return the sequences of a split. Raises `ConfigError` for a split without documents, `CorpusError` for
        damaged files.
        """
        if split not in SPLITS:
            raise ConfigError(f"there is no split {split}; splits are {', '.join(SPLITS)}")
        blocks = index.blocks.filter(index.blocks["split"].to_numpy() == SPLITS.index(split))
        if not len(blocks):
            raise ConfigError(
                f"{index.url}: nothing is selected in the split {split} ({index.said_of_splits()}); choose another, "
                "or give it a share: the section split of corpus.yaml"
            )
        row_ranges = index.row_ranges(split)
        return cls(
            row_ranges, np.append(blocks["first_run"].to_numpy(), len(row_ranges)), blocks["sentences"].to_numpy()
        )

    @property
    def numbers(self) -> int:
        """The upper bound (exclusive) of all numbers of sequences."""
        return int(self.first_row_range[-1])

    @property
    def sentences(self) -> int:
        """How many sentences the split has, the closing ones included."""
        return int(self.block_lengths.sum())

    @property
    def blocks(self) -> int:
        """The number of shuffle blocks that hold sequences."""
        return len(self.block_lengths)

    def take(self, blocks: Ints) -> BlockSequences:
        """Return the sequences of some shuffle blocks. Raises `CorpusError` for damaged files."""
        first, end = self.first_row_range[blocks], self.first_row_range[blocks + 1]
        found = self.row_ranges.of(list(zip(first.tolist(), end.tolist(), strict=True)))
        for block, start, row_ranges in zip(blocks, first, found, strict=True):
            sentences = int(sentences_of(row_ranges).sum())
            if sentences != self.block_lengths[block] or not row_ranges["new"][0]:
                wanted = f"{sentences} sentences, of {self.block_lengths[block]} that are expected"
                begins = "" if row_ranges["new"][0] else ", and does not begin with a sequence"
                what = f"is damaged: the shuffle block at row range {start} has {wanted}{begins}"
                raise self.row_ranges.damaged(int(start), what)
        return BlockSequences(np.concatenate(found), concatenated_ranges(first, end - first))

    def row_ranges_at(self, numbers: Sequence[int]) -> Records:
        """Return the first row ranges of the sequences with these numbers. Raises `CorpusError` for damaged files."""
        if not len(numbers):
            return np.empty(0, ROW_RANGE)
        taken = self.around(numbers)
        return taken.row_ranges[np.searchsorted(taken.number, numbers)]

    def around(self, numbers: Sequence[int]) -> BlockSequences:
        """Return the shuffle blocks that hold the sequences with these numbers, in the order of the corpus. Raises
        `CorpusError` for damaged files.
        """
        return self.take(np.unique(np.searchsorted(self.first_row_range, numbers, side="right") - 1))
