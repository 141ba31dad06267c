"""Yields the selected sentences one per row, as the formats parquet, numpy and hub write them.

Columns: `doc_id`, `split`, `source`, `lang`, the metadata that the inputs keep, `piece` (the number of the sequence in
its document; `piece_` if metadata has that name), every column of the sentences and their scores, and `embedding`;
`part` and `row` say where the sentence stands in the corpus. Memory: a row group of the corpus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.corpus.reader import Corpus
from pipeline.export.pieces import ExportTask, kept_rows
from pipeline.select.selection import PartSelection, Selection

FIRST = ("doc_id", "split", "source", "lang")
_UNUSED = ("doc", "first_row", "rows", "text_hash")  # numbers that only have a meaning within the corpus's own files


def row_columns(corpus: Corpus, embedding: bool) -> list[str]:
    """Return the columns to read of every row, with or without its embedding; those of plans, mostly zeros, are not."""
    left_out = {*_UNUSED, *(() if embedding else ("embedding",))}
    left_out |= {name for name, column in corpus.catalogue.items() if column.family == "plan-embeddings"}
    names = [*FIRST, *corpus.catalogue]  # metadata may bear any other name
    return [name for name in dict.fromkeys(names) if name in corpus.catalogue and name not in left_out]


def free(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken, with underscores added at its end; case does not matter, as in SQL."""
    lower = {one.lower() for one in taken}
    while name.lower() in lower:
        name += "_"
    return name


def rows_by_split(task: ExportTask, chosen: PartSelection, names: list[str]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of a part by split, in the order of the corpus within each split, and count them.

    Args:
        task: the sentences, and what is told of them.
        chosen: those of one part.
        names: the columns, as `row_columns` returns them.

    Yields:
        (split, rows).
    """
    if not len(chosen.row_numbers):
        return
    piece = np.repeat(chosen.piece, chosen.rows).astype(np.int32)
    begin = 0
    for table in kept_rows(task.selection, chosen, names):
        end = begin + table.num_rows
        table = table.add_column(names.index("split") + 1, free("piece", names), pa.array(piece[begin:end]))
        for split in table["split"].unique().to_pylist():
            of_split = table.filter(pc.equal(table["split"], split))
            task.written.count(split, 0, of_split.num_rows)
            yield split, of_split
        task.progress.add(end - begin)
        begin = end
    documents = task.selection.corpus.documents(chosen.part)["split"].take(pa.array(chosen.doc[chosen.sequence_starts]))
    for split in documents.to_pylist():
        task.written.count(split, 1, 0)


def split_rows(selection: Selection) -> dict[str, int]:
    """Return the number of selected sentences of every split that has some. Cost: the columns of the condition once."""
    found: dict[str, int] = {}
    for chosen in selection:
        splits = selection.corpus.documents(chosen.part)["split"].to_pylist()
        for doc, rows in zip(chosen.doc.tolist(), chosen.rows.tolist(), strict=True):
            found[splits[doc]] = found.get(splits[doc], 0) + rows
    return found
