"""Gathers everything that a report says of a corpus from its receipts, its newest run and its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.corpus.accounting import Accounting, compute_accounting
from pipeline.corpus.counters import Counters, busy_seconds, by_detail, stages_of
from pipeline.corpus.quarantine import QuarantinedRecord, quarantined_records
from pipeline.corpus.reader import Corpus
from pipeline.quality.curation import Curation, measure_curation
from pipeline.quality.measures import corpus_bleu_of
from pipeline.quality.report.rows import ReportRows, read_rows
from pipeline.storage.layout import RUNS
from pipeline.storage.remote import without_credentials

QUARANTINED = 5  # examples per reason


@dataclass
class StageThroughput:
    """What one stage took: seconds by step over all parts, devices, and the times of its first and last receipt."""

    stage: str
    parts: int
    rows: float  # sentences that it worked on (those in its sample)
    seconds: dict[str, float]
    devices: set[str]
    first: float
    last: float

    @property
    def busy(self) -> float:
        """Seconds of work, without waiting for another part."""
        return busy_seconds(self.seconds)


@dataclass(frozen=True)
class Gathered:
    """A corpus, ready to be shown."""

    name: str
    accounting: Accounting
    rows: ReportRows
    curation: Curation
    bleu: dict[str, float]  # corpus BLEU by language
    quarantine: dict[str, list[QuarantinedRecord]]  # examples by reason
    work: list[StageThroughput]
    recipes: list[dict[str, Any]]
    noise_levels: list[float]
    configuration: str  # corpus.yaml of the newest run
    run: str  # its folder
    hides_documents: bool  # the accounting counts purged documents, which rows are without


def gather(corpus: Corpus, max_rows: int) -> Gathered:
    """Read what a report needs; of rows about the first `max_rows`."""
    accounting = compute_accounting(corpus.store, corpus.chunks)
    stages = corpus.view.stages
    fragility = stages.get("fragility", {}).get("fragility", {})
    run, configuration = _newest_run(corpus)
    return Gathered(
        name=corpus.view.name,
        accounting=accounting,
        rows=read_rows(corpus, max_rows),
        curation=measure_curation(corpus, max_rows),
        bleu=corpus_bleu_of(corpus, accounting),
        quarantine=quarantined_records(corpus, dict(accounting.quarantined.most_common()), QUARANTINED),
        work=_work(corpus.chunks.total),
        recipes=[*corpus.view.segment.values(), *stages.values()],
        noise_levels=[float(level) for level in fragility.get("noise_levels", [])],
        configuration=configuration,
        run=run,
        hides_documents=corpus.hides_documents,
    )


def _work(total: Counters) -> list[StageThroughput]:
    return [
        StageThroughput(
            stage,
            int(total[f"{stage}/parts"]),
            total.get(f"{stage}/counts/scored", total[f"{stage}/rows"]),
            by_detail(total, stage, "seconds"),
            set(by_detail(total, stage, "devices")),
            total[f"{stage}/first"],
            total[f"{stage}/last"],
        )
        for stage in stages_of(total)
        if f"{stage}/parts" in total
    ]


def _newest_run(corpus: Corpus) -> tuple[str, str]:
    """Return (folder, corpus.yaml) of the newest run; users, passwords and signatures are removed from addresses."""
    for name in reversed(corpus.store.folders(RUNS)):
        path = f"{RUNS}/{name}/corpus.yaml"
        if corpus.store.exists(path) and corpus.store.exists(f"{RUNS}/{name}/view.json"):
            return name, without_credentials(corpus.store.read(path).decode("utf-8", "replace"))
    return "", ""
