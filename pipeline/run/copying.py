"""Copies rows that an earlier version of a part has, so that a visit computes only those of other documents.

A part is made again when documents of its chunk were purged, added or changed, or are cut into sentences in another
way. Its receipt names the version that it replaces, whose files are still there. A document whose rows are the same in
every column that a stage reads keeps its results: they are read from files that match their digests, and no network
computes them. What receipts count of rows (norms, BLEU, errors) is counted again from all rows of the part. Cost: the
earlier files are read, which costs little compared with computing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.base.errors import CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.corpus.receipts import Receipt, read_receipt
from pipeline.corpus.recipes import SEGMENT, Recipes, part_fingerprint
from pipeline.run.networks import built
from pipeline.run.open_part import OpenPart
from pipeline.storage import layout
from pipeline.storage.store import Store
from stages.arrow import embedding_matrix
from stages.stage import Recounts, StageSettings

NOT_COPIED = "nothing was copied from the version that the part replaces"
VERSIONS = 8  # that are looked through: a part may have been replaced before it was encoded
_NUMBER = "sentences.doc"  # the number of a document in its part, which says nothing of the document
_DOCUMENTS = ("documents.doc_id", "documents.subdocument", "documents.first_row", "documents.rows")
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Copies:
    """What a stage need not compute of a part.

    at: (rows,) the row of `tables` that each row of the part is copied from, −1 for rows to compute.
    tables: the earlier columns by family; receipt: vouches for them.
    """

    at: Rows
    tables: dict[str, pa.Table]
    receipt: Receipt

    @property
    def new(self) -> Rows:
        """The rows to compute."""
        return np.flatnonzero(self.at < 0).astype(np.int64)

    def merged(self, family: str, computed: pa.Table | None, schema: pa.Schema) -> pa.Table:
        """Return a family's columns of the whole part.

        Args:
            family: the family.
            computed: the columns of the `new` rows; None if there are none.
            schema: the declared schema of the family.

        Returns:
            A table with all rows of the part, in their order.
        """
        tables = [layout.checked(family, self.tables[family], schema, None)]
        at = self.at.copy()
        if computed is not None:
            tables.append(layout.checked(family, computed, schema, len(self.new)))
            at[self.new] = tables[0].num_rows + np.arange(len(self.new))
        return pa.concat_tables(tables).combine_chunks().take(pa.array(at))

    def spent(self) -> dict[str, float]:
        """Return the seconds that the copied rows took when they were computed, so that speeds stay true."""
        share = float((self.at >= 0).sum()) / max(1, self.receipt.rows)
        return {step: round(seconds * share, 4) for step, seconds in self.receipt.seconds.items() if step != "commit"}


class Copier:
    """Finds what can be copied; several threads may call it."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._store = Store(config.output)
        self._recipes = Recipes.of(config)
        self._stages: dict[str, Recounts | None] = {}
        self._building = threading.Lock()

    def recounts(self, settings: StageSettings) -> Recounts | None:
        """Return the stage without its networks, if it can count rows that it did not compute."""
        with self._building:
            if settings.name not in self._stages:
                stage = built(self._store, self._config, settings)
                self._stages[settings.name] = stage if isinstance(stage, Recounts) else None
            return self._stages[settings.name]

    def find(self, part: OpenPart, settings: StageSettings) -> tuple[Copies | None, list[str]]:
        """Return what can be copied, and warnings of what is there but cannot be read."""
        if not part.replaces or settings.corpus_wide:
            return None, []
        try:
            for earlier in self._versions(part):
                receipt = self._result(earlier, settings)
                if receipt:
                    return self._from(part, earlier, receipt, settings), []
        except CorpusError as error:
            return None, [f"{NOT_COPIED}: {error}"]
        return None, []

    def _versions(self, part: OpenPart) -> Iterator[OpenPart]:
        """Yield the versions that a part replaced, the last one first."""
        replaces = part.replaces
        for _ in range(VERSIONS):
            path = layout.receipt_path(SEGMENT, part.name, replaces) if replaces else ""
            if not path or not self._store.exists(path):
                return
            earlier = OpenPart(self._store, read_receipt(self._store, path))
            yield earlier
            replaces = earlier.replaces

    def _result(self, earlier: OpenPart, wanted: StageSettings) -> Receipt | None:
        """Return an earlier version's receipt of a stage under the present recipes; its receipts lead to it."""
        for settings in self._config.row_stages():
            inputs = {column: earlier.digests[column] for column in settings.reads if column in earlier.digests}
            if len(inputs) == len(settings.reads):
                stage_print = part_fingerprint(self._recipes.stages[settings.name], inputs)
                path = layout.receipt_path(settings.name, earlier.name, stage_print)
                if self._store.exists(path):
                    earlier.add(settings.name, read_receipt(self._store, path), {})
            if settings.name == wanted.name:
                return earlier.receipts.get(wanted.name)
        return None

    def _from(self, part: OpenPart, earlier: OpenPart, receipt: Receipt, settings: StageSettings) -> Copies | None:
        at = _same_documents(part, earlier)
        here = np.flatnonzero(at >= 0)
        if not len(here):
            return None
        mine, theirs = part.columns(settings.reads), earlier.columns(settings.reads)
        other = np.zeros(len(here), np.bool_)
        for name in settings.reads:
            if name != _NUMBER:
                other |= _differ(mine[name].take(pa.array(here)), theirs[name].take(pa.array(at[here])))
        if other.any():
            doc = part.columns((_NUMBER,))[_NUMBER].to_numpy()
            at[np.isin(doc, np.unique(doc[here[other]]))] = -1
        if not (at >= 0).any():
            return None
        return Copies(at, {family: earlier.family(family) for family in settings.writes}, receipt)


def _same_documents(part: OpenPart, earlier: OpenPart) -> Rows:
    """Return (rows,) the earlier row of each row of documents that both have, of as many rows; −1 for all others."""
    at = np.full(part.rows, -1, np.int64)
    there = {(doc_id, number): rest for doc_id, number, *rest in _documents(earlier)}
    for doc_id, number, first, rows in _documents(part):
        begins, count = there.get((doc_id, number), (0, -1))
        if count == rows:
            at[first : first + rows] = np.arange(begins, begins + rows)
    return at


def _documents(part: OpenPart) -> Iterator[tuple[str, int, int, int]]:
    table = part.columns(_DOCUMENTS)
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _differ(one: pa.ChunkedArray, two: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return (rows,) where two columns have other values; embeddings bit by bit."""
    if one.type != two.type:
        return np.ones(len(one), np.bool_)
    if pa.types.is_fixed_size_list(one.type):
        bits = [embedding_matrix(column).view(np.uint16) for column in (one, two)]
        return np.asarray((bits[0] != bits[1]).any(axis=1), np.bool_)
    if pa.types.is_nested(one.type) or one.null_count or two.null_count:  # Arrow compares no lists, and no nulls
        return np.asarray([mine != theirs for mine, theirs in zip(one.to_pylist(), two.to_pylist(), strict=True)])
    return np.asarray(pc.fill_null(pc.not_equal(one, two), True).to_numpy(zero_copy_only=False), np.bool_)
