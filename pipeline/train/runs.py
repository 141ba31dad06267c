"""The rows of an index: runs of selected rows without gaps, in the order of the corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import Counts, PartSelection, Selection
from pipeline.train.answers import Answers

RUNS = pa.schema(
    [
        ("part", pa.int32()),  # number in the table of parts
        ("doc", pa.int32()),  # number of the document in the part
        ("first_row", pa.int32()),
        ("rows", pa.int32()),
        ("split", pa.int8()),  # number in SPLITS
        ("new", pa.bool_()),  # whether a piece begins; with `drop-sentences` a piece has several runs
        ("ends", pa.bool_()),  # whether its document ends here: "End of text." follows
        ("answer", pa.int32()),  # prompts and answers: the first row of the answer; else −1
    ]
)


def runs_of(selection: Selection, answers: Answers, counts: Counts, done: Callable[[int], None]) -> Iterator[pa.Table]:
    """Those of one part after the other; `counts` is added to, `done` told how many rows were looked at."""
    corpus, parts = selection.corpus, selection.corpus.parts
    following = corpus.documents(parts[0])
    for number, part in enumerate(parts):
        documents, following = following, corpus.documents(parts[number + 1]) if number + 1 < len(parts) else None
        chosen = selection.part(part)
        counts.add(chosen.counts)
        columns = {
            "part": np.full(len(chosen.rows), number),
            "doc": chosen.doc,
            "first_row": chosen.first_row,
            "rows": chosen.rows,
            "split": _split_numbers(documents)[chosen.doc],
            "new": np.isin(np.arange(len(chosen.rows)), chosen.piece_starts),
            "ends": _ends(chosen, documents, following, selection.settings.broken),
            "answer": answers.of(part, documents)[chosen.doc],
        }
        yield pa.table({name: pa.array(values) for name, values in columns.items()}).cast(RUNS)
        done(chosen.counts.sentences)


def _split_numbers(documents: pa.Table) -> npt.NDArray[np.int8]:
    numbers = np.zeros(len(documents), np.int8)
    for number, name in enumerate(SPLITS):
        numbers[pc.equal(documents["split"], name).to_numpy()] = number
    return numbers


def _ends(chosen: PartSelection, documents: pa.Table, following: pa.Table | None, broken: str) -> npt.NDArray[np.bool_]:
    """(runs) Whether it is the last of its document, and that is not one of which more follows as a sub-document."""
    ids, numbers = documents["doc_id"].combine_chunks(), documents["subdocument"].to_numpy()
    if following is not None and len(following):
        ids = pa.concat_arrays([ids, following["doc_id"].slice(0, 1).combine_chunks()])
        numbers = np.append(numbers, following["subdocument"].to_numpy()[0])
    again = pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False) & (numbers[1:] == numbers[:-1] + 1)
    goes_on = np.zeros(len(documents), np.bool_)
    goes_on[: len(again)] = again
    last = np.append(chosen.doc[1:] != chosen.doc[:-1], True)[: len(chosen.doc)]
    end = (documents["first_row"].to_numpy() + documents["rows"].to_numpy())[chosen.doc]
    whole = chosen.first_row + chosen.rows == end
    ends: npt.NDArray[np.bool_] = last & (whole | (broken == "drop-sentences")) & ~goes_on[chosen.doc]
    return ends


def splits_of(runs: pa.Table) -> dict[str, tuple[int, int, int]]:
    """Documents, pieces and sentences of every split."""
    split, new, rows = (runs[name].to_numpy() for name in ("split", "new", "rows"))
    part, doc = runs["part"].to_numpy(), runs["doc"].to_numpy()
    first = np.append(True, (part[1:] != part[:-1]) | (doc[1:] != doc[:-1]))[: len(doc)]
    return {
        name: (int(first[split == number].sum()), int(new[split == number].sum()), int(rows[split == number].sum()))
        for number, name in enumerate(SPLITS)
    }
