"""What `report.expect` says of the corpus that a run made: checked at its end, and an error with `--strict`."""

from __future__ import annotations

from rich.console import Console

from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.run_config import RunConfig
from pipeline.console.activity import announced
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import EXPECTATIONS, newest_run, read_summary
from pipeline.planning.plan import Plan
from pipeline.quality.expectations import (
    Expectation,
    check_expectations,
    failed_expectations,
    of_summary,
    show_expectations,
)
from pipeline.storage.store import Store


def check_strict(config: RunConfig, whole: bool) -> None:
    """Raise `ConfigError` if `--strict` has nothing to check. `whole`: whether the run makes the whole corpus."""
    if not config.report or not config.report.expect:
        expect = 'report: {expect: {autobleu_mean: ">= 40"}}'
        raise ConfigError(f"--strict: {config.place('report')} expects nothing; add for instance {expect}")
    if not whole:
        raise ConfigError("--strict checks a whole corpus; leave out --only and --until")


def newest_expectations(store: Store) -> list[Expectation]:
    """Return what the newest run found of `report.expect`; nothing if it has not ended."""
    summary = read_summary(store, newest_run(store))
    return of_summary((summary.model_extra or {}).get(EXPECTATIONS)) if summary else []


def raise_if_unexpected(store: Store) -> None:
    """Raise `CorpusError` if something that the newest run's report expects did not hold at its end."""
    if failed := failed_expectations(newest_expectations(store)):
        raise CorpusError(failed)


def checked_expectations(console: Console, plan: Plan) -> list[Expectation]:
    """Check what the report expects of the corpus, and show it."""
    if not plan.config.report or not plan.config.report.expect:
        return []
    with announced(console, "checking what is expected of the corpus"):
        found = check_expectations(Corpus(plan.config.output, plan.view), plan.config.report)
    show_expectations(console, found)
    return found
