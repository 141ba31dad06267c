"""Checks what `report.expect` of a corpus.yaml says of a corpus, as data tests do elsewhere.

Measures of rows are of about the first `report.max_rows` rows, in the (random) order of the parts, in one pass over the
columns that they need; the others are of receipts and of fits. By language or source, every group with `FEW` measured
rows or more must satisfy the limit, and the one that is furthest on the wrong side is shown.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.text import Text

from pipeline.base.errors import ConfigError
from pipeline.base.formats import counted, number, plain
from pipeline.base.messages import warn
from pipeline.conditions.condition import Condition
from pipeline.conditions.expression import ExpressionError
from pipeline.config.load import load_config
from pipeline.config.report import MEASURES, Limit, ReportSettings, measure_of
from pipeline.corpus.accounting import Accounting, compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_config
from pipeline.quality.drift import RELATIVE_ERROR, drift, fit_summary, records_of
from pipeline.quality.measures import JudgedLanguages, StartsOfDocuments
from pipeline.select.command import KEPT, removed_by

FEW = 50  # of groups with fewer measured rows nothing is told
_AMONG = {"documents": StartsOfDocuments, "judged": JudgedLanguages}
PURGED = "documents were purged since the last run, which counted them; pipeline run counts again"
_ROW, _ALL = "row", "all"  # a column of row numbers; the kind and the name of the group of all rows

Groups = dict[str, tuple[float, int]]  # name of a group → mean or share, and over how many rows


@dataclass(frozen=True)
class Expectation:
    """One expectation and what was found. `value`: None if nothing was measured, and `why` says why not.

    `group`: the language or source that `value` is of; `failing`: how many of `groups` do not satisfy the limit.
    """

    measure: str
    limit: str
    value: float | None
    holds: bool
    why: str = ""
    group: str = ""
    failing: int = 0
    groups: int = 0

    @property
    def shown(self) -> str:
        """The value, for people."""
        return format_measure(self.measure, self.value)

    def said(self) -> str:
        """Describe the expectation and its value on one line: `autobleu_mean is 54.1 (expected: >= 40)`."""
        of = f" in {plain(self.group, 100)}" if self.group else ""
        more = f"; {self.failing} of {self.groups} fail" if self.failing > 1 else ""
        what = f"is {self.shown}{of}" if self.value is not None else f"was not measured: {self.why}"
        return f"{self.measure} {what} (expected: {self.limit}{more})"


def format_measure(name: str, value: float | None) -> str:
    """Format a value of a measure: shares in percent, counts as whole numbers, others with four digits."""
    if value is None or math.isnan(value):
        return "–"
    unit = MEASURES[measure_of(name)[0]].unit
    return f"{100 * value:.3g} %" if unit == "share" else number(value) if unit == "count" else f"{value:.4g}"


def report_settings(place: str, corpus: Corpus) -> ReportSettings:
    """Return the section `report` of a YAML file, if that is what the user named, or that of the newest run."""
    if place.endswith((".yaml", ".yml")):
        return load_config(Path(place)).report or ReportSettings()
    settings = newest_config(corpus.store).get("report") or {}
    try:
        return ReportSettings.model_validate(settings)
    except ValidationError as error:
        what = "; ".join(str(one["msg"]) for one in error.errors())
        raise ConfigError(
            f"the newest run of {corpus.url} expects what this version does not know ({plain(what, 300)}); give a "
            "corpus.yaml instead of the folder"
        ) from None


def check_expectations(corpus: Corpus, settings: ReportSettings) -> list[Expectation]:
    """Measure and compare, in the order of the file. Raises `CorpusError` if the corpus is damaged."""
    limits = settings.limits()
    if not limits:
        return []
    asked = {name: measure_of(name) for name in limits}
    found = measure_rows(corpus, {(base, column or _ALL) for base, column in asked.values()}, settings.max_rows)
    wholes = {base for base, _ in asked.values() if not MEASURES[base].of_rows}
    found |= {(base, _ALL): one for base, one in measure_whole(corpus, wholes, settings.max_rows).items()}
    return [_compared(name, limit, *asked[name], found) for name, limit in limits.items()]


def _compared(
    name: str, limit: Limit, base: str, column: str | None, found: Mapping[tuple[str, str], Groups | str]
) -> Expectation:
    groups = found[base, column or _ALL]
    if isinstance(groups, str):
        return Expectation(name, limit.text, None, False, groups)
    judged = {key: value for key, (value, rows) in groups.items() if rows >= (FEW if column else 1)}
    if not judged:
        what = "documents" if MEASURES[base].among == "documents" else "sentences"
        why = f"no {column} has {FEW} measured {what}" if column else f"none of the {what} has a value"
        return Expectation(name, limit.text, None, False, why)
    failing = [key for key, value in judged.items() if not limit.holds(value)]
    # the furthest from the limit, on the side where it fails; names decide between equals
    sign = 1.0 if limit.sign.startswith(">") else -1.0
    worst = min(judged, key=lambda key: (sign * judged[key], key))
    if limit.sign == "==":
        worst = max(judged, key=lambda key: (abs(judged[key] - limit.value), key))
    group = worst if column else ""
    return Expectation(name, limit.text, judged[worst], not failing, "", group, len(failing), len(judged))


def measure_whole(corpus: Corpus, names: Iterable[str], max_rows: int) -> dict[str, Groups | str]:
    """Measure what receipts, fits and the selection say.

    Args:
        corpus: the corpus.
        names: measures that are not of rows.
        max_rows: how many rows are read for the selection, at most.

    Returns:
        Name → its value as the group `all`, or why there is none.
    """
    of_receipts = compute_accounting(corpus.store, corpus.chunks)
    found: dict[str, Groups | str] = {}
    for name in names:
        if name == "selected":
            value = _selected(corpus, max_rows)
        elif name == "drifted":
            value = float(sum(one.drifted for one in drift(corpus, records_of(corpus))))
        elif name in ("predictor_correlation", "rvq_relative_error"):
            value = _of_fits(corpus, name)
        else:
            value = PURGED if corpus.hides_documents else _of_receipts(of_receipts, name)
        if isinstance(value, float):
            found[name] = "there is nothing to divide by" if math.isnan(value) else {_ALL: (value, 1)}
        else:
            found[name] = value
    return found


def _of_receipts(accounting: Accounting, name: str) -> float:
    read = accounting.documents_in or math.nan
    values = {
        "documents": accounting.kept,
        "sentences": accounting.sentences,
        "tokens": accounting.counts.get("segment", {}).get("tokens", 0),
        "dropped": sum(accounting.dropped.values()) / read,
        "quarantined": sum(accounting.quarantined.values()) / read,
    }
    return float(values[name])


def _selected(corpus: Corpus, max_rows: int) -> float | str:
    try:
        counts = removed_by(corpus, max_rows)
    except ConfigError as error:  # a run that stopped before it made the columns of the condition
        return str(error)
    total = sum(count for _, count in counts)
    return dict(counts)[KEPT] / total if total else "the newest run has no `select`"


def _of_fits(corpus: Corpus, name: str) -> float | str:
    fit = name.partition("_")[0]
    for record in records_of(corpus):
        if record.name == fit and fit == "rvq":
            errors = record.numbers.get(RELATIVE_ERROR)
            return float(errors[-1]) if isinstance(errors, list) and errors else "the fit has no held-out error"
        if record.name == fit:
            held_out = fit_summary(corpus, record).held_out()
            return held_out[0] if held_out else "the fit has no correlation on held-out sentences"
    return f"the newest run has no fit {fit} yet"


def measure_rows(
    corpus: Corpus, asked: Iterable[tuple[str, str]], max_rows: int
) -> dict[tuple[str, str], Groups | str]:
    """Measure rows by group.

    Args:
        corpus: the corpus.
        asked: (measure, `all`, `lang` or `source`); measures that are not of rows are left out.
        max_rows: read only about this many rows.

    Returns:
        For each of `asked`: mean or share and number of rows by group, or why there is none.
    """
    asked = [one for one in asked if MEASURES[one[0]].of_rows]
    found: dict[tuple[str, str], Groups | str] = {}
    readers: dict[str, _RowMeasure] = {}
    for name in dict.fromkeys(name for name, _ in asked):
        try:
            readers[name] = _RowMeasure(corpus, name)
        except ExpressionError:  # the definitions are sound, so a column is missing
            why = f"the corpus has no column of {MEASURES[name].section or 'sentences'} yet"
            found |= {one: why for one in asked if one[0] == name}
    kinds = sorted({kind for _, kind in asked} - {_ALL})
    sums: dict[tuple[str, str], dict[str, list[float]]] = {
        one: defaultdict(lambda: [0.0, 0.0]) for one in asked if one[0] in readers
    }
    columns = {*kinds, *(column for one in readers.values() for column in one.columns)}
    for batch in corpus.batches(*sorted(columns), max_rows=max_rows) if readers else ():
        rows = batch.table.num_rows
        table = batch.table.append_column(_ROW, pa.array(np.arange(rows)))
        places = {kind: _coded(table[kind]) for kind in kinds} | {_ALL: (np.zeros(rows, np.int64), [_ALL])}
        values = {name: one.values(table) for name, one in readers.items()}
        for (name, kind), groups in sums.items():
            known = ~np.isnan(values[name])
            codes, names = places[kind]
            totals = np.bincount(codes[known], values[name][known], len(names))
            counts = np.bincount(codes[known], minlength=len(names))
            for group, total, count in zip(names, totals, counts, strict=True):
                groups[group][0] += float(total)
                groups[group][1] += int(count)
    for one, groups in sums.items():
        found[one] = {group: (total / count, int(count)) for group, (total, count) in groups.items() if count}
    return found


class _RowMeasure:
    """Computes one measure of a table."""

    def __init__(self, corpus: Corpus, name: str) -> None:
        measure = MEASURES[name]
        self._mean = measure.mean
        if self._mean and self._mean not in corpus.catalogue:
            raise ExpressionError(f"no column {self._mean}")
        self._fails = measure.fails is not None
        text = measure.share or measure.fails
        self._test = corpus.condition(text, name) if text else None
        self._of = corpus.condition(measure.of, name) if measure.of else None
        conditions = [one for one in (self._test, self._of) if one]
        self.columns = {column for one in conditions for column in one.columns}
        self.columns |= {self._mean} if self._mean else set()
        self._among = _AMONG[measure.among](corpus) if measure.among else None
        self.columns |= set(self._among.columns) if self._among else set()

    def values(self, table: pa.Table) -> npt.NDArray[np.float64]:
        """Return (rows,): the value, or 1 and 0; NaN for rows that do not count."""
        if self._mean:
            return np.asarray(table[self._mean].to_numpy(), np.float64)  # null becomes NaN
        assert self._test
        found = np.where(_satisfying(table, self._test), 1.0, 0.0)
        if self._fails:
            found = 1.0 - found
        if self._of:
            found[~_satisfying(table, self._of)] = np.nan
        if self._among:
            found[~self._among(table)] = np.nan
        return found


def _satisfying(table: pa.Table, condition: Condition) -> npt.NDArray[np.bool_]:
    found = np.zeros(table.num_rows, np.bool_)
    found[condition.filter(table)[_ROW].to_numpy()] = True
    return found


def _coded(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    coded = column.combine_chunks().dictionary_encode()
    return coded.indices.to_numpy().astype(np.int64), coded.dictionary.to_pylist()


def as_summary(found: Iterable[Expectation]) -> list[dict[str, Any]]:
    """Return what the summary of a run keeps."""
    return [asdict(one) for one in found]


def of_summary(kept: Any) -> list[Expectation]:
    """Return what a summary kept; nothing if it is no such list, or has measures that this version does not know."""
    try:
        found = TypeAdapter(list[Expectation]).validate_python(kept or [])
        for one in found:
            measure_of(one.measure)
    except ValueError:  # pydantic's errors too
        return []
    return found


def show_expectations(console: Console, found: list[Expectation]) -> None:
    """Print a line for each expectation; those that do not hold also with -q."""
    for one in found:
        text = Text(f"{'✓' if one.holds else '✗'} {one.said()}", "green" if one.holds else "red")
        if one.holds:
            console.print(text, soft_wrap=True)
        else:
            warn(console, text, soft_wrap=True)


def failed_expectations(found: list[Expectation]) -> str:
    """Say how many do not hold; empty if all do."""
    failing = sum(not one.holds for one in found)
    verb = "does" if failing == 1 else "do"
    return f"{failing} of {counted(len(found), 'expectation')} (report.expect) {verb} not hold" if failing else ""
