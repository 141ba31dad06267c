"""The report of a corpus with all that its newest run decided: fits, drift, what `select` removes."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.base.errors import ConfigError
from pipeline.config.select import SelectSettings
from pipeline.corpus.fits import FitRecord, read_record
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.quality.report import FitSummary, write_report
from pipeline.quality.report.drift import drift
from pipeline.quality.report.rows import MAX_ROWS
from pipeline.select.selection import Counts, Selection

KEPT = "kept"


def write_corpus_report(corpus: Corpus, to: str | None, say: Callable[[str], None], max_rows: int = MAX_ROWS) -> str:
    """Write the report and return where it is. `say`: is told in words why a section had to be left out."""
    records = records_of(corpus)
    try:
        removed = removed_by(corpus)
    except ConfigError as error:  # a run that stopped before the columns of the condition
        say(f"the report leaves out the selection: {error}")
        removed = []
    return write_report(corpus, to, [summary(one) for one in records], drift(corpus, records), removed, max_rows)


def records_of(corpus: Corpus) -> list[FitRecord]:
    """Records of the fits that the newest run depends on."""
    return [read_record(corpus.store, path) for path in corpus.view.fits.values()]


def summary(record: FitRecord) -> FitSummary:
    """What a report says of a fit."""
    return FitSummary(record.name, record.rows, len(record.chunks), record.numbers, record.digest)


def removed_by(corpus: Corpus) -> list[tuple[str, int]]:
    """Where the sentences of about the first `MAX_ROWS` rows go under the newest run's `select`; empty without one.

    Raises `ConfigError` if the corpus has not the columns of its condition.
    """
    settings = newest_config(corpus.store).get("select")
    if not settings or not corpus.parts:
        return []
    selection = Selection(corpus, SelectSettings.model_validate(settings))
    counts = Counts(removed=dict.fromkeys(selection.reasons, 0))
    for part in selection:
        counts.add(part.counts)
        if counts.sentences >= MAX_ROWS:
            break
    return [*counts.removed.items(), (KEPT, counts.kept)]
