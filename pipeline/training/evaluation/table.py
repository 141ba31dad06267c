"""The table of an evaluation, as the LCM paper's Table 3: in the terminal, as JSON, as CSV."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from pipeline.base.formats import counted, csv_text, plain
from pipeline.base.messages import print_plain
from pipeline.console.tables import Line, print_columns
from pipeline.training.evaluation.measure import METRICS, MetricValue
from pipeline.training.metric_names import TITLES, written
from stages.lcm.plans import BreakCounts

SHOWN_GROUPS = 20  # on a terminal
UNDEFINED = MetricValue(math.nan, math.nan, 0)  # of what a model has not: a token model predicts no embeddings


@dataclass(frozen=True)
class SweptValue:
    """One value of one option of sampling, with which a model is evaluated."""

    model: str
    option: str
    value: float

    @property
    def shown(self) -> str:
        """The value with all of its digits, so that different values have different names."""
        return repr(self.value).removesuffix(".0")


@dataclass(frozen=True)
class ResultRow:
    """One predictor. steps, sampling: of a trained model; baselines have none. swept: the value of a sweep, if any.

    breaks: what a model with plans predicted of the ends of paragraphs. weights: digest of those of a finished model.
    """

    figures: dict[str, MetricValue]
    steps: int | None = None
    sampling: dict[str, Any] | None = None
    swept: SweptValue | None = None
    breaks: BreakCounts | None = None
    weights: str = ""


def show(console: Console, rows: dict[str, ResultRow], about: dict[str, Any]) -> None:
    """Print the table of an evaluation, with twice the standard error of every mean.

    Args:
        console: where it is printed.
        rows: name of a model or baseline → its figures.
        about: what was evaluated: `said`, `sentences` and `by`.
    """
    names = _names(rows)
    lines = [
        ([model], [_said(name, row.figures.get(name)) for name in names], row.steps is None)
        for model, row in rows.items()
    ]
    print_plain(console, f"\n{about['said']}")
    print_columns(console, ["model"], [TITLES[name] for name in names], lines)
    notes = ["± two standard errors, over documents"]
    counts = {
        name: next(row.figures[name].sentences for row in rows.values() if name in row.figures)
        for name in ("mi", "nll", "bpc")
        if name in names
    }
    notes += [f"MI of the first {counts.pop('mi')} sentences (--mi-sentences)"] if "mi" in counts else []
    notes += [
        f"{TITLES[name]} of {counted(count, 'sentence')}: the others are longer than the decoder's limit, or empty"
        for name, count in counts.items()
        if count < about["sentences"]
    ]
    console.print("; ".join(notes), style="dim", highlight=False)
    for model, row in rows.items():
        if row.breaks:
            print_plain(console, f"{model}: {row.breaks.said()}")
    if about.get("by"):
        _show_groups(console, rows, names, about["by"])


def _show_groups(console: Console, rows: dict[str, ResultRow], names: list[str], by: str) -> None:
    """Print a table of every group of documents, the largest first: its sentences, and the figures of all rows."""
    found = dict.fromkeys(group for row in rows.values() for name in names for group in _groups(row, name))
    lines: list[Line] = []
    for group in list(found)[:SHOWN_GROUPS]:
        first = True
        for model, row in rows.items():
            figures = [_groups(row, name).get(group) for name in names]
            count = max((one.sentences for one in figures if one), default=0)
            heads = [plain(group, 60), f"{count:,}".replace(",", "\u202f")] if first else ["", ""]
            values = [_said(name, figure) for name, figure in zip(names, figures, strict=True)]
            lines.append(([*heads, model], values, row.steps is None))
            first = False
    console.print()
    titles = [TITLES[name] for name in names]
    print_columns(console, [by, "sentences", "model"], titles, lines, right=("sentences",))
    if len(found) > SHOWN_GROUPS:
        console.print(f"the {SHOWN_GROUPS} largest of {len(found)}; the files have all", style="dim", highlight=False)


def _groups(row: ResultRow, name: str) -> Mapping[str, MetricValue]:
    return row.figures[name].groups if name in row.figures else {}


def to_json(rows: dict[str, ResultRow], about: dict[str, Any]) -> str:
    """Return what was evaluated, and every figure; null where one is not defined."""
    models = {
        model: {"steps": row.steps, "sampling": row.sampling}
        | ({"weights": row.weights} if row.weights else {})
        | ({"swept": asdict(row.swept)} if row.swept else {})
        | ({"breaks": asdict(row.breaks)} if row.breaks else {})
        | {"metrics": {name: _finite(asdict(figure)) for name, figure in row.figures.items()}}
        | ({"groups": groups} if (groups := _groups_of(row)) else {})
        for model, row in rows.items()
    }
    return json.dumps({**about, "models": models}, indent=1, ensure_ascii=False) + "\n"


def _groups_of(row: ResultRow) -> dict[str, dict[str, Any]]:
    """Return group → metric → figure."""
    found: dict[str, dict[str, Any]] = {}
    for name, figure in row.figures.items():
        for group, value in figure.groups.items():
            found.setdefault(group, {})[name] = _finite(asdict(value))
    return found


def to_groups_csv(rows: dict[str, ResultRow], by: str) -> str:
    """Return a line for each predictor, group and metric."""
    lines = (
        [model, group, name, *cells(one), one.sentences]
        for model, row in rows.items()
        for name, figure in row.figures.items()
        for group, one in figure.groups.items()
    )
    return csv_text([["model", by, "metric", "mean", "error", "sentences"], *lines])


def to_csv(rows: dict[str, ResultRow]) -> str:
    """Return a line per predictor, with two columns per metric."""
    names = _names(rows)
    lines = (
        [model, row.steps, *(cell for name in names for cell in cells(row.figures.get(name, UNDEFINED)))]
        for model, row in rows.items()
    )
    return csv_text([["model", "steps", *(one for name in names for one in (name, f"{name}_error"))], *lines])


def cells(figure: MetricValue) -> list[str | None]:
    """Return a mean and its error for a table in CSV, in six digits; None for what is not defined."""
    return [None if math.isnan(value) else f"{value:.6g}" for value in (figure.mean, figure.error)]


def _names(rows: dict[str, ResultRow]) -> list[str]:
    found = {name for row in rows.values() for name in row.figures}
    return [name for name in METRICS if name in found]


def _said(name: str, figure: MetricValue | None) -> str:
    return written(name, figure.mean, figure.error) if figure else "–"


def _finite(figure: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and math.isnan(value) else value
        for key, value in figure.items()
        if key not in ("documents", "groups")
    }
