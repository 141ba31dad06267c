"""What an index is made of: the selected parts of a corpus with the files that are read, and the digest of all of them.

Cost: two passes over the receipts; about 1 kB of memory per part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.base.errors import CorpusError
from pipeline.base.formats import counted
from pipeline.config.select import SelectSettings
from pipeline.config.train import Plans
from pipeline.corpus.fingerprint import fingerprint, fingerprint_of_many
from pipeline.corpus.fits import record_of
from pipeline.corpus.part_reader import no_column
from pipeline.corpus.reader import Corpus
from pipeline.select.selection import Selection

VERSION = 2
FAMILIES = ("embeddings", "codes", "fragility-predicted", "sentences", "documents")  # families whose files it names
FAMILIES_OF_PLANS = ("plans", "plan-embeddings")  # and these, if its plans are those of a column
_PARTS = 4096  # that are Python objects at a time


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What an index is made of.

    `answers`, `plans`: as for `make_index`; `parts`: all parts of the corpus, and their files; `digest`: 32 hex digits.
    """

    selection: Selection
    answers: str | None
    plans: Plans
    parts: pa.Table
    digest: str


def checked(corpus: Corpus, select: SelectSettings, origin: str = "select.where") -> Selection:
    """Return the selection of a corpus that can be trained on.

    Args:
        corpus: the corpus.
        select: the section `select`.
        origin: the option or setting that holds the condition, for messages.

    Returns:
        The selection.

    Raises:
        CorpusError: if the corpus has no embeddings to read, or purged documents are still in its files.
    """
    corpus.check_has_parts()
    if "embedding" not in corpus.catalogue:
        raise CorpusError(f"{corpus.url}: {no_column('embedding', corpus.catalogue)}; run: pipeline run corpus.yaml")
    purged = sum(map(len, corpus.tombstones.by_chunk.values()))
    if purged:
        raise CorpusError(
            f"{corpus.url}: files still hold {counted(purged, 'purged document')}, and the next run writes them again; "
            "do that first: pipeline run corpus.yaml"
        )
    return Selection(corpus, select, origin)


def snapshot_of(selection: Selection, answers: str | None = None, plans: Plans = "none") -> Snapshot:
    """Return what an index of a selection is made of, from receipts alone.

    Args:
        selection: what is selected.
        answers: as for `make_index`.
        plans: as for `make_index`.

    Returns:
        The parts and the digest of the index.

    Raises:
        CorpusError: if the plans are those of a column that the corpus does not have.
    """
    corpus = selection.corpus
    columns = {column.family for column in corpus.catalogue.values()}
    families = (*FAMILIES, *(FAMILIES_OF_PLANS if plans == "column" else ()))
    if not columns.issuperset(families[len(FAMILIES) :]):
        raise CorpusError(
            f"{corpus.url} has no plans of a column, which train.plans: column reads; add a section "
            "`plans: {column: NAME}` or `plans: {lm: CARD}` to its corpus.yaml, and run it"
        )
    schema = parts_schema(families)
    tables = [schema.append(_DIGESTS).empty_table()]
    for parts in _batches(corpus.parts):
        rows = [_files_of(corpus, part, columns.intersection(families)) for part in parts]
        tables.append(pa.Table.from_pylist(rows, schema=tables[0].schema))
    table = pa.concat_tables(tables)
    digests = (one for batch in table.to_batches(_PARTS) for one in batch[_DIGESTS.name].to_pylist())
    fits = [encoder_used(corpus), fit_content(corpus, "scaler"), fit_content(corpus, "rvq")]
    planned = [] if plans == "none" else [plans]  # as before there were any
    digest = fingerprint_of_many([VERSION, selection.digest, answers, fits], digests, planned)
    return Snapshot(selection, answers, plans, table.select(schema.names), digest)


_DIGESTS = pa.field("digests", pa.list_(pa.string()))


def _batches(parts: list[str]) -> Iterable[list[str]]:
    return (parts[start : start + _PARTS] for start in range(0, len(parts), _PARTS))


def _files_of(corpus: Corpus, part: str, families: set[str]) -> dict[str, Any]:
    """Return a row of the table of parts, and what the digest is made of."""
    state = corpus.state_of(part)
    files = [file for receipt in state.receipts.values() for file in receipt.files]
    named = {file.family: file for file in files if file.family in families}
    digests = [part, *(value for file in named.values() for value in (file.path, file.digest))]
    paths = {family: file.path for family, file in named.items()}
    return {"part": part, "rows": state.rows, _DIGESTS.name: digests} | paths


def families_of(parts: pa.Table) -> tuple[str, ...]:
    """Return the families whose files an index names, from the table of its parts."""
    return (*FAMILIES, *(family for family in FAMILIES_OF_PLANS if family in parts.column_names))


def parts_schema(families: Iterable[str] = FAMILIES) -> pa.Schema:
    """Return the schema of the table of parts, which has a column for the files of each family."""
    return pa.schema([("part", pa.string()), ("rows", pa.int64()), *((family, pa.string()) for family in families)])


def encoder_used(corpus: Corpus) -> str:
    """Return the digest of the encoder that made a corpus's embeddings."""
    return fingerprint(corpus.view.stages["encode"]["artifacts"])


def fit_content(corpus: Corpus, name: str) -> str | None:
    """Return the digest of a fit by content; None if the corpus has none."""
    record = record_of(corpus.store, corpus.view, name)
    return record.content if record else None
