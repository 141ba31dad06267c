"""Prompts and answers: where the answer of a document begins, from a column that its input kept.

The column holds a code point of the document's text; sentences that end after it are the answer. If it is in the middle
of a sentence, that sentence belongs to the answer. A document without a value is ordinary text, and counted.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.corpus.part_reader import PartReader
from pipeline.corpus.reader import Corpus
from pipeline.storage import layout

NO_ANSWER = -1
_NUMBER = r"^[0-9]{1,9}$"


class Answers:
    """Reads the column `name` (None: there are no answers), from any thread.

    `missing`: documents without a value so far. `columns`: the columns of documents that `of` needs.
    """

    def __init__(self, corpus: Corpus, name: str | None) -> None:
        self.name, self._corpus, self._given = name, corpus, 0
        self.missing = 0
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
            self._given += int(given.sum())
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

    def check(self) -> None:
        """Raise `ConfigError` if no document had a value."""
        if self.name is not None and not self._given:
            raise ConfigError(f"answers: {self.name} is null in all {self.missing} documents; name another column")
