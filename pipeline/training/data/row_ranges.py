"""The content of an index, part by part: row ranges of selected rows without gaps, and their shuffle blocks.

A sequence is a document, or what the selection left of it unbroken. A shuffle block is a few consecutive row groups of
a part, which are shuffled as one, so that for a document that crosses the border of two row groups both are read
together (for one that crosses the end of its shuffle block, the beginning of the next row group is decoded again).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.base.parallel import prefetch
from pipeline.config.train import Plans
from pipeline.corpus.part_reader import PartReader
from pipeline.corpus.reader import Corpus
from pipeline.inputs.splits import SPLITS
from pipeline.select.selection import Counts, PartSelection, Selection
from pipeline.storage import layout
from pipeline.training.data.plans import with_plans
from pipeline.training.data.row_range_files import BREAK, CLOSING, PLANS, ROW_RANGE, Records, RowRangeWriter

Ints = npt.NDArray[np.int64]
DOCUMENT_COLUMNS = ("doc_id", "subdocument", "split", "rows", "first_row")
SHUFFLE_BLOCKS = pa.schema([("split", pa.int8()), ("first_run", pa.int64()), ("sentences", pa.int64())])
BLOCK_GROUPS = 4  # row groups per shuffle block, about: parts of 13 groups have 3 blocks
NO_ANSWER = -1
_NUMBER = r"^[0-9]{1,9}$"


class Answers:
    """Finds where the answer of a document begins, by a column that its input kept, from any thread.

    The column `name` (None: there are no answers) holds a code point of the document's text; sentences that end after
    it are the answer. If it is in the middle of a sentence, that sentence belongs to the answer. A document without a
    value is ordinary text, and counted.

    `missing`, `given`: documents without and with a value so far. `columns`: the columns of documents that `of` needs.
    """

    def __init__(self, corpus: Corpus, name: str | None) -> None:
        self.name, self._corpus = name, corpus
        self.missing = self.given = 0
        self.columns = ("doc_id", "rows", "first_row", *([name] if name else []))
        self._counting = threading.Lock()
        kept = sorted(set(corpus.documents(0).column_names) - set(layout.DOCUMENT_COLUMNS))
        if name is not None and name not in kept:
            raise ConfigError(
                f"answers: {name} is not a column that the input kept; those are: {', '.join(kept) or 'none'} "
                "(corpus.yaml: input.keep)"
            )
        if name is not None and pa.types.is_nested(kind := corpus.catalogue[name].type):
            raise ConfigError(f"answers: {name} holds {kind}, not the code point at which an answer begins")

    def of(self, reader: PartReader, documents: pa.Table) -> npt.NDArray[np.int64]:
        """Return (documents,) the first row of each answer in the part (the row after the document, if it has none
        there).
        """
        first: npt.NDArray[np.int64] = np.full(len(documents), NO_ANSWER, np.int64)
        if self.name is None:
            return first
        column = documents[self.name].combine_chunks().cast(pa.string())
        given = column.is_valid().to_numpy(zero_copy_only=False)
        with self._counting:
            self.missing += int((~given).sum())
            self.given += int(given.sum())
        wrong = pc.invert(pc.match_substring_regex(column, _NUMBER)).fill_null(False).to_numpy(zero_copy_only=False)
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise CorpusError(
                f"{self._corpus.url}: {self.name} of document {documents['doc_id'][place].as_py()} is "
                f"{column[place].as_py()!r}; it must be the code point at which the answer begins: a number ≥ 0"
            )
        if given.any():
            offsets = pc.cast(column, pa.int64()).fill_null(0).to_numpy()
            rows, start = documents["rows"].to_numpy(), documents["first_row"].to_numpy()
            doc = np.repeat(np.arange(len(rows)), rows)
            ends = reader.read(("end",))["end"].to_numpy()
            prompt = np.bincount(doc[ends <= offsets[doc]], minlength=len(rows))
            first[given] = (start + prompt)[given]
        return first


def row_ranges_of(
    selection: Selection, answers: Answers, plans: Plans, counts: Counts, done: Callable[[int], None]
) -> Iterator[list[Records]]:
    """Yield the row ranges of one part after the other.

    Args:
        selection: the sentences, or a share of them.
        answers: finds where the answer of a document begins.
        plans: which plans paragraphs begin with; with any, a paragraph ends with a break if another follows.
        counts: gets the numbers of what is kept and removed.
        done: is told how many further rows were read.

    Yields:
        The row ranges of a part, one array for each split.
    """
    columns = list(dict.fromkeys([*DOCUMENT_COLUMNS, *answers.columns]))

    def look(reader: PartReader) -> tuple[PartSelection, pa.Table, Records]:
        with reader:
            documents = reader.documents(columns)
            chosen, answer = selection.of(reader), answers.of(reader, documents)
            row_ranges = np.zeros(len(chosen.rows), ROW_RANGE)
            row_ranges["doc"] = chosen.doc
            row_ranges["first_row"] = chosen.first_row
            row_ranges["rows"] = chosen.rows
            row_ranges["answer"] = answer[chosen.doc]
            row_ranges["new"] = np.isin(np.arange(len(row_ranges)), chosen.sequence_starts)
            return chosen, documents, row_ranges if plans == "none" else with_plans(reader, row_ranges, plans)

    def next_documents() -> Iterator[pa.Table | None]:
        """Yield the documents of the part after the last one, which may go on with its last document; None without."""
        after = selection.first + len(selection.parts)
        yield selection.corpus.documents(after) if after < len(selection.corpus.parts) else None

    found = prefetch(look, map(selection.reader, selection.parts))
    for number, (one, after) in enumerate(pairwise(chain(found, next_documents())), selection.first):
        assert isinstance(one, tuple)
        chosen, documents, row_ranges = one
        following = after[1] if isinstance(after, tuple) else after
        counts.add(chosen.counts)
        row_ranges["part"] = number
        ends = _ends(row_ranges, documents, following, selection.settings.broken)
        row_ranges["after"][ends] = CLOSING
        split = _split_numbers(documents)[row_ranges["doc"]]
        yield [row_ranges[split == other] for other in range(len(SPLITS))]
        done(chosen.counts.sentences)


class SplitBuilder:
    """Builds one split of an index part by part. `size`: documents, sequences, sentences."""

    def __init__(self, writer: RowRangeWriter) -> None:
        self._writer, self._written = writer, 0
        self._first: list[Ints] = []
        self._sentences: list[Ints] = []
        self.size = (0, 0, 0)

    def add(self, row_ranges: Records, rows: int) -> None:
        """Add the row ranges of one part, which has `rows` rows."""
        if not len(row_ranges):
            return
        first = _blocks(row_ranges, rows)
        self._first.append(first + self._written)
        self._sentences.append(np.add.reduceat(sentences_of(row_ranges), first))
        self._written += len(row_ranges)
        more = (
            np.count_nonzero(np.diff(row_ranges["doc"], prepend=-1)),
            row_ranges["new"].sum(),
            row_ranges["rows"][~np.isin(row_ranges["after"], PLANS)].sum(),
        )
        documents, sequences, sentences = (before + int(one) for before, one in zip(self.size, more, strict=True))
        self.size = documents, sequences, sentences
        self._writer.add(row_ranges)

    def close(self) -> list[int]:
        """Write all files, and return how many row ranges each holds."""
        self._writer.close()
        return self._writer.files

    @property
    def digests(self) -> list[str]:
        """The digest of each file, when all are written."""
        return self._writer.digests

    def blocks(self, split: int) -> pa.Table:
        """Return the shuffle blocks found, of the split of this number."""
        first, sentences = (np.concatenate([*found, np.empty(0, np.int64)]) for found in (self._first, self._sentences))
        return pa.table([np.full(len(first), split, np.int8), first, sentences], schema=SHUFFLE_BLOCKS)


def _blocks(row_ranges: Records, rows: int) -> Ints:
    """Return the first row range of every shuffle block that holds sequences, of one split of a part of `rows` rows."""
    starts = np.flatnonzero(row_ranges["new"])
    groups = -(-rows // layout.ROW_GROUP_ROWS)
    blocks = max(1, (groups + BLOCK_GROUPS // 2) // BLOCK_GROUPS)
    block = row_ranges["first_row"][starts] // layout.ROW_GROUP_ROWS * blocks // groups
    first: Ints = starts[np.append(True, block[1:] != block[:-1])[: len(block)]]
    return first


def sentences_of(row_ranges: Records) -> Ints:
    """Return (row ranges,) the rows of each, and the sentence that closes its document or paragraph."""
    sentences: Ints = row_ranges["rows"].astype(np.int64) + closed(row_ranges)
    return sentences


def closed(row_ranges: Records) -> npt.NDArray[np.bool_]:
    """Return (row ranges,) whether a sentence that no file has follows each."""
    found: npt.NDArray[np.bool_] = np.isin(row_ranges["after"], (CLOSING, BREAK))
    return found


def _split_numbers(documents: pa.Table) -> npt.NDArray[np.int8]:
    numbers = np.zeros(len(documents), np.int8)
    for number, name in enumerate(SPLITS):
        numbers[pc.equal(documents["split"], name).to_numpy()] = number
    return numbers


def _ends(row_ranges: Records, documents: pa.Table, following: pa.Table | None, broken: str) -> npt.NDArray[np.bool_]:
    """Return (row ranges,) whether each is the last of its document, and no further sub-document follows."""
    ids, numbers = documents["doc_id"].combine_chunks(), documents["subdocument"].to_numpy()
    if following is not None and len(following):
        ids = pa.concat_arrays([ids, following["doc_id"].slice(0, 1).combine_chunks()])
        numbers = np.append(numbers, following["subdocument"].to_numpy()[0])
    again = pc.equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False) & (numbers[1:] == numbers[:-1] + 1)
    goes_on = np.zeros(len(documents), np.bool_)
    goes_on[: len(again)] = again
    doc = row_ranges["doc"]
    last = np.append(doc[1:] != doc[:-1], True)[: len(doc)]
    end = (documents["first_row"].to_numpy() + documents["rows"].to_numpy())[doc]
    whole = row_ranges["first_row"] + row_ranges["rows"] == end
    ends: npt.NDArray[np.bool_] = last & (whole | (broken == "drop-sentences")) & ~goes_on[doc]
    return ends
