"""The end of a run: the accounting, its quality in the terminal, what was expected, and the report.

The accounting is done from what is on disk, not from what workers said. Cost: reading every receipt of the corpus once,
and the scores of up to 500 000 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import CorpusError, PipelineError
from pipeline.base.formats import counted, number
from pipeline.base.messages import print_plain, warn
from pipeline.config.report import ReportSettings
from pipeline.config.run_config import RunConfig
from pipeline.console.activity import announced
from pipeline.console.tables import show_accounting, show_unfinished
from pipeline.coordination.leases import Lease
from pipeline.coordination.lock import check_held
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.ledger import compact
from pipeline.corpus.leftovers import erase, sweep
from pipeline.corpus.reader import Corpus
from pipeline.corpus.recipe_match import LISTED_PARTS
from pipeline.corpus.recipes import Recipes, ids_may_repeat
from pipeline.corpus.runs import EXPECTATIONS, SUMMARY, RunRecord, newest_is
from pipeline.corpus.states import fold, total_of
from pipeline.planning.estimate import FILE as ESTIMATE
from pipeline.planning.estimate import compared, keep_rates
from pipeline.planning.plan import Plan
from pipeline.quality.expectations import Expectation, as_summary
from pipeline.quality.inspect import show_quality, show_rows, show_scores
from pipeline.quality.measures import corpus_bleu_of, measure, measure_scores, worst_rows
from pipeline.run.compare_ids import count_duplicate_ids
from pipeline.run.expected import checked_expectations, newest_expectations
from pipeline.run.report_stamp import report_is_current
from pipeline.storage.store import Store

SHOWN_ROWS = 500_000


def finish(console: Console, plan: Plan, record: RunRecord, failures: list[str], seconds: float, lease: Lease) -> None:
    """Do the accounting, write the report, and close the run's record, so that a run that ends before its report is
    written counts as unfinished.

    Args:
        console: where the accounting is shown.
        plan: the plan after the last phase.
        record: the record of the run.
        failures: what failed; empty after a good run.
        seconds: how long the run took.
        lease: the lock of the corpus.

    Raises:
        CorpusError: if something failed or is not done, or another process has taken over the corpus; if the record is
            not closed then, the caller has to close it.
    """
    whole = _close_accounting(console, plan, lease, worst=3)
    _show_duplicates(console, plan)
    _compare_estimate(console, plan, record)
    if not whole and not failures:
        failures = ["the corpus is not complete; its accounting says why"]
    complete = not failures
    expected: list[Expectation] = []
    try:
        expected = checked_expectations(console, plan)
    except PipelineError as error:
        complete, failures = False, [*failures, f"report.expect: {error}"]
    try:
        _report(console, Corpus(plan.config.output, plan.view), plan.config.report, expected)
    except PipelineError as error:
        if complete:
            raise
        warn(console, f"no report: {error}")  # the error that stopped the run matters more
    summary = {"done": complete, "failures": failures, "seconds": round(seconds, 1)}
    record.close(summary | {EXPECTATIONS: as_summary(expected)})
    if not complete:
        more = f" (and {counted(len(failures) - 1, 'other failure')})" if len(failures) > 1 else ""
        raise CorpusError(f"the run failed: {failures[0]}{more}; details: pipeline logs {plan.config.output}")
    console.print(f"Corpus done in {seconds:.0f} s.", highlight=False)


def nothing_to_do(console: Console, plan: Plan, lease: Lease) -> None:
    """Show the accounting of a corpus that is up to date, while its lock is held.

    Args:
        console: where the accounting is shown.
        plan: the plan, which leaves nothing to do.
        lease: the lock of the corpus.

    Raises:
        CorpusError: if the accounting does not balance, or another process has taken over the corpus.
    """
    store = Store(plan.config.output)
    older = not newest_is(store, plan.view, plan.config)
    record = RunRecord(store, plan.config, plan.view) if older else None  # the last had other settings, or ended badly
    console.print("Nothing to do.")
    try:
        whole = _close_accounting(console, plan, lease)
        expected = checked_expectations(console, plan)
        if not whole:
            raise CorpusError("the corpus is not complete: see above what is wrong")
        if older or not report_is_current(store):
            _report(console, Corpus(plan.config.output, plan.view), plan.config.report, expected)
    except BaseException as error:
        if record:
            close_unfinished(record, error, [])
        raise
    if record:
        record.close({"done": True, EXPECTATIONS: as_summary(expected)})


def close_unfinished(record: RunRecord, error: BaseException, failures: Sequence[str]) -> None:
    """Close the record of a run that an error or an interruption ends, unless it is closed.

    Args:
        record: the record of the run.
        error: what ends the run.
        failures: what failed before.
    """
    if not record.store.exists(f"{record.folder}/{SUMMARY}"):
        interrupted = isinstance(error, KeyboardInterrupt)
        how: dict[str, Any] = {"interrupted": True} if interrupted else {"failures": [*failures, str(error)]}
        record.close({"done": False} | how)


def _compare_estimate(console: Console, plan: Plan, record: RunRecord) -> None:
    """Say how much there is, and how much was expected when the run began; keep the rates of this machine."""
    path = f"{record.folder}/{ESTIMATE}"
    if not record.store.exists(path):
        return
    kept, total = record.store.read(path), total_of(Corpus(plan.config.output, plan.view).chunks)
    if text := compared(kept, total):
        console.print(text, highlight=False)
    if plan.config.launcher.kind in ("inline", "local"):  # elsewhere, other machines did the work
        keep_rates(kept, total, plan.config)


def _show_duplicates(console: Console, plan: Plan) -> None:
    """Say that ids have several documents, unless the configuration says what to do with them."""
    config, corpus = plan.config, Corpus(plan.config.output, plan.view)
    if config.duplicate_ids or not ids_may_repeat(config) or not 0 < len(corpus.parts) <= LISTED_PARTS:
        return
    found = count_duplicate_ids(corpus)
    if found.ids:
        verb = "stands" if found.ids == 1 else "stand"
        warn(
            console,
            f"{counted(found.ids, 'id')} {verb} in more than one document ({number(found.documents)} documents in "
            "all); to keep the first one of each, set duplicate_ids: keep-first (keep-all: this is intended)",
        )


def _close_accounting(console: Console, plan: Plan, lease: Lease, worst: int = 0) -> bool:
    """Show the accounting and the quality. Returns True if everything that the plan may do is on disk and balances."""
    corpus = Corpus(plan.config.output, plan.view)
    with announced(console, "accounting for every document"):
        check_held(lease)
        swept = sweep(corpus.store, corpus.chunks)
        erased = erase(corpus.store, corpus.chunks, Recipes.of(plan.config), plan.visits, lambda: check_held(lease))
        accounting = compute_accounting(corpus.store, corpus.chunks)
    show_accounting(console, accounting, f"{plan.config.name} in {plan.config.output}")
    if swept:
        console.print(f"removed {counted(swept, 'file')} of interrupted or replaced work")
    if erased:
        console.print(f"removed {counted(erased, 'file')} of chunks that held purged documents")
    if "autobleu" in corpus.columns:
        with announced(console, "measuring quality by language"):
            quality, scores = measure(corpus, SHOWN_ROWS), measure_scores(corpus, SHOWN_ROWS)
        show_quality(console, quality, corpus_bleu_of(corpus, accounting), lengths=False)
        show_scores(console, scores)
        if worst and quality.everything.scored:
            rows = worst_rows(corpus, worst, max_rows=SHOWN_ROWS)
            show_rows(console, f"Worst {counted(worst, 'row')} (pipeline inspect shows more)", rows)
    show_unfinished(console, accounting)
    lost = sum(accounting.quarantined.values())
    if console.quiet and worst and lost:
        warn(
            console,
            f"{counted(lost, 'record')} in quarantine of {number(accounting.documents_in)}: pipeline quarantine",
        )
    check_held(lease)
    if not accounting.problems:
        fold(corpus.store, corpus.chunks)
        compact(corpus.store)
    if accounting.quarantined and not accounting.kept and not accounting.open_chunks:
        warn(console, Text("No document was kept.", "red"))
        return False
    left = [stage for stage in plan.stages if accounting.open_parts.get(stage)]
    undone = [*left, *(plan.waiting + plan.missing_fits if corpus.parts else ())]
    return not undone and not (accounting.open_chunks and "segment" in plan.stages) and not accounting.problems


def report_again(console: Console, config: RunConfig) -> None:
    """Write the report of a corpus again, with what the newest run found of `report.expect`, if a model has been
    finished or evaluated since it was written.
    """
    store = Store(config.output)
    if config.report and not report_is_current(store):
        _report(console, Corpus(config.output), config.report, newest_expectations(store))


def _report(console: Console, corpus: Corpus, settings: ReportSettings | None, expected: Sequence[Expectation]) -> None:
    """Write the report, if the configuration asks for one and there is something to show."""
    if not settings:
        return
    from pipeline.quality.explore import PLACE, write_explorer
    from pipeline.quality.report import write_report  # imports matplotlib
    from pipeline.run.trained_models import trained_models

    if corpus.parts:
        with announced(console, "writing the report"):
            trained = trained_models(corpus.store)
            say = partial(console.print, markup=False)
            place = write_report(corpus, None, say, settings.max_rows, expected, trained=trained)
        print_plain(console, f"report: {place}")
        if settings.interactive:
            with announced(console, "writing the interactive report"):
                place = write_explorer(corpus, None, settings.max_rows, expected, trained=trained)
            print_plain(console, f"to explore: {place}")
        else:
            corpus.store.delete(PLACE)  # of an earlier run, perhaps with documents that have left
