"""Plans and breaks of Large Planning Concept Models, LCM 4.3: each paragraph of a sequence begins with its plan.

A sequence is then: plan, sentences, break, plan, sentences, …, and what closes its document. The plan of a paragraph
is its headline: the sentence whose embedding is nearest to the mean of the paragraph, so no other model is needed; or
it is given by the inputs (the paper has a language model write a topic), and a paragraph without one begins without.
Both are in a row of the corpus, so an index names them as it names all rows. A break is the sentence "End of
paragraph.". Cost of headlines: one pass over the embeddings when the index is made, by one thread at a time, which
holds a row group and the paragraph that reaches into it; of given plans: one over their texts.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from pipeline.config.train import Plans
from pipeline.corpus.part_reader import PartReader
from pipeline.training.data.row_range_files import BREAK, GIVEN, PLAN, Records, concatenated_ranges
from stages.arrow import changes, embedding_matrix
from stages.lcm.headlines import headlines

Ints = npt.NDArray[np.int64]
_ONE_AT_A_TIME = threading.Lock()  # parts are looked at by several threads


def with_plans(reader: PartReader, row_ranges: Records, which: Plans) -> Records:
    """Cut the row ranges of a part where paragraphs end, and put a plan before each paragraph.

    An answer begins a paragraph. Sentences of one paragraph that the selection separated (`drop-sentences`) stay one
    paragraph of their sequence. Of given plans, each piece of a paragraph that was cut (by the selection, or where an
    answer begins) has that of the paragraph.

    Args:
        reader: the part.
        row_ranges: those of all sequences of the part, in order.
        which: the plans: `headline`, or `column` for those that are given.

    Returns:
        Row ranges of which every paragraph's first is its plan, if it has one, and the last has a break after it unless
        its sequence ends.
    """
    if not len(row_ranges):
        return row_ranges
    sizes = row_ranges["rows"].astype(np.int64)
    of = np.repeat(np.arange(len(row_ranges)), sizes)  # the row range of each row
    rows = concatenated_ranges(row_ranges["first_row"].astype(np.int64), sizes)
    sequence = np.cumsum(row_ranges["new"])[of]
    begins = changes(sequence) | changes(reader.read(("paragraph",))["paragraph"].to_numpy()[rows])
    begins |= rows == row_ranges["answer"][of]  # an answer is never planned with its prompt
    starts = np.flatnonzero(changes(of) | begins)
    cut = row_ranges[of[starts]]
    cut["first_row"], cut["rows"] = rows[starts], np.diff(starts, append=len(of))
    first = begins[starts]  # of a paragraph
    cut["new"] &= changes(sequence)[starts]
    ends = np.append(first[1:] & ~cut["new"][1:], False)
    cut["after"][ends] = BREAK
    planned = np.flatnonzero(first)
    if which == "column":
        at, there = _given(reader, rows[begins])
        planned, at = planned[there], at[there]
    else:
        with _ONE_AT_A_TIME:
            at = _headlines(reader, rows, np.flatnonzero(begins))
    plans = cut[planned]
    plans["first_row"], plans["rows"], plans["after"] = at, 1, GIVEN if which == "column" else PLAN
    cut["new"][planned] = False
    found: Records = np.insert(cut, planned, plans)
    return found


def _given(reader: PartReader, rows: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the first rows of the paragraphs that these rows are in, and which have a plan."""
    table = reader.read(("doc", "paragraph", "plan"))
    starts = np.flatnonzero(changes(table["doc"].to_numpy()) | changes(table["paragraph"].to_numpy()))
    at = starts[np.searchsorted(starts, rows, side="right") - 1]
    return at, table["plan"].is_valid().to_numpy()[at]


def _headlines(reader: PartReader, rows: Ints, starts: Ints) -> Ints:
    """Return the row of each paragraph's headline; in memory are a row group and the paragraph that reaches into it.

    rows: (n,) ascending; starts: (paragraphs,) places in `rows` at which paragraphs begin.
    """
    found: list[Ints] = []
    ends = np.append(starts[1:], len(rows))
    at, low, carried = 0, 0, np.empty((0, 0), np.float16)  # paragraphs done; the first place whose embedding is carried
    for group in range(reader.groups):
        first, end = reader.bounds(group)
        mine = rows[slice(*np.searchsorted(rows, (first, end)))]
        if not len(mine):
            continue
        embeddings = embedding_matrix(reader.read(("embedding",), group)["embedding"])[mine - first]
        carried = np.concatenate([carried, embeddings]) if len(carried) else embeddings
        done = int(np.searchsorted(ends, low + len(carried), side="right"))
        if done > at:
            until = int(ends[done - 1])
            found.append(rows[low + headlines(carried[: until - low], starts[at:done] - low)])
            at, low, carried = done, until, carried[until - low :]
    return np.concatenate(found)
