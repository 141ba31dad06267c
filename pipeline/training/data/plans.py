"""Plans and breaks of Large Planning Concept Models, LCM 4.3: each paragraph of a sequence begins with its plan.

A sequence is then: plan, sentences, break, plan, sentences, …, and what closes its document. The plan of a paragraph
is its headline: the sentence whose embedding is nearest to the mean of the paragraph, so no other model is needed (the
paper has a language model write a topic). It is a row of the corpus, so an index names it as it names all rows. A break
is the sentence "End of paragraph.". Cost: one pass over the embeddings when the index is made, by one thread at a
time, which holds a row group and the paragraph that reaches into it.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from pipeline.corpus.part_reader import PartReader
from pipeline.training.data.row_range_files import BREAK, PLAN, Records, concatenated_ranges
from stages.arrow import changes, embedding_matrix
from stages.lcm.headlines import headlines

Ints = npt.NDArray[np.int64]
_ONE_AT_A_TIME = threading.Lock()  # parts are looked at by several threads


def with_plans(reader: PartReader, row_ranges: Records) -> Records:
    """Cut the row ranges of a part where paragraphs end, and put a plan before each paragraph.

    An answer begins a paragraph. Sentences of one paragraph that the selection separated (`drop-sentences`) stay one
    paragraph of their sequence. `row_ranges`: those of all sequences of the part, in order. Of those that are returned,
    every paragraph's first is a plan, and the last has a break after it unless its sequence ends.
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
    plans = cut[first]
    with _ONE_AT_A_TIME:
        plans["first_row"] = _headlines(reader, rows, np.flatnonzero(begins))
    plans["rows"], plans["after"] = 1, PLAN
    cut["new"][first] = False
    found: Records = np.insert(cut, np.flatnonzero(first), plans)
    return found


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
