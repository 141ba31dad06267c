"""The pieces of one split of an index, as numpy columns, and the spans of row groups that they lie in.

A piece is a document, or what the selection left of it in one sequence. A span is some row groups of a part that follow
each other: what is shuffled as one, so that of a document that crosses the border of two row groups both are read
together (of one that crosses the end of its span, the beginning of the row group behind it is decoded again).
Memory: 13 bytes a run and 13 a piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pipeline import layout
from pipeline.errors import ConfigError
from pipeline.inputs.splits import SPLITS
from pipeline.train.answers import NO_ANSWER
from pipeline.train.index import Index

Ints = npt.NDArray[np.int64]
SPAN_GROUPS = 4  # about as many row groups a span: parts of 13 groups have 3 spans
ENDING = -1  # the "part" of a closing sentence


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces in the order of the corpus, with their closing sentences as runs of their own.

    part, first_row, rows: (runs); first_run: (pieces + 1); answer: (pieces) first row of the answer, −1: none;
    first_piece: (spans + 1). The row of a closing sentence says which: 0 "End of text.", 1 "End of response.".
    """

    part: npt.NDArray[np.int32]
    first_row: npt.NDArray[np.int32]
    rows: npt.NDArray[np.int32]
    first_run: Ints
    answer: npt.NDArray[np.int32]
    first_piece: Ints

    @classmethod
    def of(cls, index: Index, split: str) -> Pieces:
        """Raises `ConfigError` for a split that has no documents."""
        if split not in SPLITS:
            raise ConfigError(f"there is no split {split}; splits are {', '.join(SPLITS)}")
        kept = index.runs.filter(index.runs["split"].to_numpy() == SPLITS.index(split))
        if not len(kept):
            raise ConfigError(
                f"{index.url}: nothing is selected in the split {split} ({index.said_of_splits()}); choose another, "
                "or give it a share: the section split of corpus.yaml"
            )
        part, first, rows, answer = (kept[name].to_numpy() for name in ("part", "first_row", "rows", "answer"))
        new, ends = kept["new"].to_numpy(), kept["ends"].to_numpy()
        starts = np.flatnonzero(new)
        behind = np.flatnonzero(ends) + 1  # where closing sentences go
        closing = np.repeat(np.int32(ENDING), len(behind))
        response = (answer[ends] != NO_ANSWER).astype(np.int32)
        return cls(
            part=np.insert(part, behind, closing),
            first_row=np.insert(first, behind, response),
            rows=np.insert(rows, behind, 1),
            first_run=np.append(starts + np.searchsorted(behind, starts, side="right"), len(part) + len(behind)),
            answer=answer[starts],
            first_piece=_spans(index, part[starts], first[starts]),
        )

    def __len__(self) -> int:
        return len(self.answer)

    @cached_property
    def lengths(self) -> Ints:
        """(pieces) Sentences, the closing one too."""
        before = np.concatenate([[0], np.cumsum(self.rows, dtype=np.int64)])
        lengths: Ints = np.diff(before[self.first_run])
        return lengths

    @property
    def spans(self) -> int:
        """How many spans hold pieces."""
        return len(self.first_piece) - 1

    @cached_property
    def span_lengths(self) -> Ints:
        """(spans) Sentences of the pieces that begin there."""
        before = np.concatenate([[0], np.cumsum(self.lengths)])
        lengths: Ints = np.diff(before[self.first_piece])
        return lengths

    def place(self, piece: int) -> tuple[int, int]:
        """Part and row of the first sentence of a piece."""
        run = self.first_run[piece]
        return int(self.part[run]), int(self.first_row[run])


def _spans(index: Index, part: npt.NDArray[np.int32], row: npt.NDArray[np.int32]) -> Ints:
    """First piece of every span that has any, and the number of pieces."""
    groups = -(-index.parts["rows"].to_numpy() // layout.ROW_GROUP_ROWS)
    spans = np.maximum(1, (groups + SPAN_GROUPS // 2) // SPAN_GROUPS)
    span = (row // layout.ROW_GROUP_ROWS) * spans[part] // groups[part]
    new = np.append(True, (part[1:] != part[:-1]) | (span[1:] != span[:-1]))
    return np.append(np.flatnonzero(new), len(part)).astype(np.int64)


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """start, start + 1, … of every range, one after the other."""
    before = np.cumsum(lengths) - lengths
    found: Ints = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    return found
