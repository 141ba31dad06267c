"""Reads the trainings of a corpus for its reports. Damage to the files of one training is told in its place, and ends
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from pipeline.base.errors import PipelineError, visible
from pipeline.base.formats import plain
from pipeline.quality.report.models import LossCurve, TrainedModel, TrainedModels
from pipeline.quality.report.page import Cell, Table, number
from pipeline.run.report_stamp import evaluations, stamp_of
from pipeline.storage.remote import without_credentials
from pipeline.storage.store import Store
from pipeline.training.metric_names import TITLES, written
from pipeline.training.status import (
    RECORD,
    EvaluationTable,
    Numbers,
    TrainingStatus,
    read_evaluation,
    read_metrics,
    training_in_words,
    training_statuses,
    without_record,
)

POINTS = 200  # of a curve
MOST_ROWS = 60  # of the table of an evaluation
LONGEST = 300  # characters of what a table or an error says
T = TypeVar("T")


def trained_models(store: Store) -> TrainedModels:
    """Read the trainings of a corpus, by name."""
    wrong: list[str] = []

    def tried(read: Callable[..., T], *of: Any) -> list[T]:
        try:
            return [read(*of)]
        except PipelineError as error:
            wrong.append(_said(store, error))
            return []

    stamp = "".join(tried(stamp_of, store))  # first: what ends while the rest is read is not in it
    statuses = [one for every in tried(training_statuses, store) for one in every]
    lost = [run for every in tried(without_record, store) for run in every]
    trainings = [_training(store, one) for one in statuses] + [_without_record(run) for run in lost]
    paths = [path for one in statuses for every in tried(evaluations, store, one.run) for path in every]
    tables: dict[str, Table] = {}
    for path in paths:
        for table in tried(read_evaluation, store, path):
            shown = _table(path, table)
            tables.setdefault(repr(shown), shown)  # the same one lies beside each model
    by_name = sorted(trainings, key=lambda one: one.name)
    return TrainedModels(by_name, list(tables.values()), stamp, wrong)


def _said(store: Store, error: PipelineError) -> str:
    """Return a message with paths as they are in the corpus: a copy elsewhere has the same report."""
    return plain(without_credentials(str(error).replace(f"{store.url.rstrip('/')}/", "")), LONGEST)


def _without_record(run: str) -> TrainedModel:
    wrong = f"its {RECORD} is missing; restore it from a copy"
    return TrainedModel(visible(run.rpartition("/")[2]), "damaged", wrong)


def _training(store: Store, one: TrainingStatus) -> TrainedModel:
    name = visible(one.run.rpartition("/")[2])
    wrong, lines = [one.damaged.replace(f"{store.url.rstrip('/')}/", "")] if one.damaged else [], list[Numbers]()
    try:
        lines = read_metrics(store, one.run)
    except PipelineError as error:
        wrong.append(_said(store, error))
    if one.failed and not one.finished:
        wrong.append(f"it gave up: {plain(without_credentials(one.failed), LONGEST)}")
    training, validation = ([line for line in lines if line["kind"] == kind] for kind in ("train", "validation"))
    state = "damaged" if one.damaged else training_in_words(one)
    last = [f"{of[-1]['loss']:.4f}" if of else "–" for of in (training, validation)]
    return TrainedModel(name, state, "; ".join(wrong), last[0], last[1], _curve(training), _curve(validation))


def _curve(lines: Sequence[Numbers]) -> LossCurve:
    """Return the finite losses by step; means of neighbours where there are more than `POINTS`."""
    known = sorted(pair for line in lines if math.isfinite(sum(pair := (_number(line["step"]), _number(line["loss"])))))
    if len(known) > POINTS:
        known = [tuple(group.mean(axis=0).tolist()) for group in np.array_split(np.array(known), POINTS)]
    return LossCurve([round(step, 1) for step, _ in known], [float(f"{loss:.5g}") for _, loss in known])


def _table(path: str, found: EvaluationTable) -> Table:
    """Return the table of an evaluation: a row for each model and baseline, a column for each metric."""
    names = {name for one in found.models.values() for name in one.metrics}
    shown = [name for name in TITLES if name in names]
    cells: list[list[Cell]] = []
    for model, one in list(found.models.items())[:MOST_ROWS]:
        figures = [written(name, *_figure(one.metrics.get(name))) for name in shown]
        cells.append([plain(model, LONGEST), "–" if one.steps is None else number(one.steps), *figures])
    more = f"; the first {MOST_ROWS} of {len(found.models)} rows" if len(found.models) > MOST_ROWS else ""
    title = f"{plain(path.rpartition('/')[2].removesuffix('.json'), LONGEST)}: {plain(found.said, LONGEST)}{more}"
    return Table(("model", "steps", *(TITLES[name] for name in shown)), cells, title)


def _figure(value: Any) -> Iterator[float]:
    """Yield the mean and its standard error; NaN for what is no number."""
    for key in ("mean", "error"):
        yield _number(value.get(key) if isinstance(value, dict) else None)


def _number(value: Any) -> float:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return math.nan
