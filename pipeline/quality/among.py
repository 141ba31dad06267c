"""Which rows a measure counts, where no condition on columns says so: one row of each document; sentences whose
language was judged. Rows are given in the order of the corpus.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.corpus.reader import Corpus


class StartsOfDocuments:
    """The first sentence of each document, and of each sub-document of one that was cut."""

    columns = ("doc_id", "subdocument", "position")

    def __init__(self, corpus: Corpus | None = None) -> None:
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return (rows,) whether a row is such a sentence; `table` follows the one before."""
        if not table.num_rows:
            return np.zeros(0, np.bool_)
        found: npt.NDArray[np.bool_] = table["position"].to_numpy() == 0
        documents = table["doc_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        parts = table["subdocument"].to_numpy()
        found[1:] |= (documents[1:] != documents[:-1]) | (parts[1:] != parts[:-1])
        ends = [(table["doc_id"][row].as_py(), int(parts[row])) for row in (0, -1)]
        found[0] |= ends[0] != self._last
        self._last = ends[1]
        return found


class JudgedLanguages:
    """Sentences that are long enough, of a stated language that the identification model knows."""

    columns = ("text", "lang", "lang_detected")

    def __init__(self, corpus: Corpus) -> None:
        self._settings = corpus.view.stages["language"]["language"]

    def __call__(self, table: pa.Table) -> npt.NDArray[np.bool_]:
        """Return (rows,) whether a row is such a sentence."""
        from stages.language.stage import is_judged

        text, stated, detected = (table[name] for name in self.columns)
        return np.asarray(is_judged(text, stated, detected, self._settings), np.bool_)
