"""Yields the selected rows of a part, as the formats write them: one per row, or as whole sequences, which are lists of
sentences beside lists of their embeddings.

Columns of rows: `doc_id`, `split`, `source`, `lang`, the metadata that the inputs keep, `piece` (the number of the
sequence in its document; `piece_` if metadata has that name), every column of the sentences and their scores, and
`embedding`; `part` and `row` say where the sentence stands in the corpus. Rows are streamed in the row groups of the
corpus; memory: one of them, of sequences two and the longest sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.console.progress import RowProgress
from pipeline.corpus.reader import Corpus
from pipeline.select.selection import PartSelection, Selection
from pipeline.storage.export_target import ExportTarget
from stages.arrow import embedding_matrix

ROW_GROUP_ROWS = 8192
SHARD_MB = 256

FIRST = ("doc_id", "split", "source", "lang")
_UNUSED = ("doc", "first_row", "rows", "text_hash")  # numbers that only have a meaning within the corpus's own files


@dataclass
class Written:
    """What an export wrote. `next_step`: what to do with it next."""

    sentences: int = 0
    pieces: int = 0
    files: int = 0
    bytes: int = 0
    dim: int = 0
    by_split: dict[str, int] = field(default_factory=dict)  # pieces
    next_step: str = ""

    def count(self, split: str, pieces: int, sentences: int) -> None:
        """Count sequences and sentences that were written of one split.

        Args:
            split: `train`, `validation` or `test`.
            pieces: how many sequences.
            sentences: how many sentences.
        """
        self.pieces += pieces
        self.sentences += sentences
        self.by_split[split] = self.by_split.get(split, 0) + pieces

    def add(self, other: Written) -> None:
        """Add what another process wrote of the same export."""
        for name in ("sentences", "pieces", "files", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dim = max(self.dim, other.dim)
        for split, pieces in other.by_split.items():
            self.by_split[split] = self.by_split.get(split, 0) + pieces


@dataclass(frozen=True)
class ExportTask:
    """What the writers of all formats take: the selected sentences, the folder that they go to, and what is told of it.

    `vectors`: the type of vectors, `float32` or `float16`, or `none` to leave them out; `row_group_rows`: the most rows
    of a row group; `shard_mb`: the most megabytes (10^6 bytes) of a tar file, unless one sequence has more; `written`:
    gets the counts.
    """

    selection: Selection
    target: ExportTarget
    progress: RowProgress
    vectors: str = "float16"
    row_group_rows: int = ROW_GROUP_ROWS
    shard_mb: int = SHARD_MB
    written: Written = field(default_factory=Written)


@dataclass(frozen=True)
class ExportedSequences:
    """Whole sequences in the order of the corpus. All lists have the same length.

    `doc`: number of the document in the part; `piece`: number of the sequence in its document; `offsets`: (sequences +
    1,) into the sentences; `table`: the columns that were asked for, a row per sentence.
    """

    doc: npt.NDArray[np.int64]
    piece: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    table: pa.Table

    @cached_property
    def text(self) -> pa.StringArray:
        """(sentences,) The texts."""
        return self.table["text"].combine_chunks()

    @cached_property
    def embeddings(self) -> npt.NDArray[np.float16]:
        """(sentences, dim) The embeddings."""
        return embedding_matrix(self.table["embedding"])


def kept_rows(selection: Selection, chosen: PartSelection, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the kept rows of a part, one row group after the other.

    Args:
        selection: the sentences.
        chosen: those of one part.
        names: the columns to read.

    Yields:
        A table with at least one row.
    """
    rows = chosen.row_numbers
    with selection.reader(chosen.part) as reader:
        for group in range(reader.groups):
            low, high = reader.bounds(group)
            begin, end = np.searchsorted(rows, [low, high])
            if begin != end:
                yield reader.read(names, group).take(pa.array(rows[begin:end] - low))


def exported_sequences(
    selection: Selection, chosen: PartSelection, columns: Sequence[str] = ("text", "embedding")
) -> Iterator[ExportedSequences]:
    """Yield the sequences of a part, some thousand sentences at a time.

    Args:
        selection: the sentences.
        chosen: those of one part.
        columns: the columns to read; `text` and `embedding` must be among them.

    Yields:
        Whole sequences, with the offsets of their sentences.
    """
    starts = chosen.sequence_starts
    ends = np.cumsum(chosen.sequence_rows)  # in numbers of kept sentences
    doc, piece = chosen.doc[starts], chosen.piece[starts]
    waiting: list[pa.Table] = []
    done = seen = 0  # pieces given, sentences read
    for rows in kept_rows(selection, chosen, columns):
        waiting.append(rows)
        seen += rows.num_rows
        whole = int(np.searchsorted(ends, seen, side="right"))
        if whole == done:
            continue
        given = int(ends[done - 1]) if done else 0
        table = pa.concat_tables(waiting).combine_chunks()
        size = int(ends[whole - 1]) - given
        block = table.slice(0, size)
        yield ExportedSequences(
            doc=doc[done:whole],
            piece=piece[done:whole],
            offsets=np.concatenate([[0], ends[done:whole] - given]),
            table=block,
        )
        waiting, done = [table.slice(size)], whole


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
