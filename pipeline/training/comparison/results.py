"""What a comparison found so far, on disk, and what follows from it: means over seeds, what became of claims;
and all of it for people: a table in Markdown, and bars in SVG.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from pipeline.config.science import BASELINES, OWN, Claim, ScalingLaw, ScienceSettings
from pipeline.storage.records import Record
from pipeline.training.comparison.scaling import HIGHEST, LOWEST, Point, alphas, fitted
from pipeline.training.metric_names import TITLES

Verdict = Literal["confirmed", "refuted", "undecided", "not measured"]
SENTENCES, EPOCHS = "training_sentences", "epochs"  # figures of a training


Number = Annotated[float, Field(ge=-1e100, le=1e100)]  # whose square is a number, too
Influences = Annotated[tuple[Number, ...], AfterValidator(lambda one: tuple(float(f"{each:.5g}") for each in one))]


class Measurement(Record):
    """A number, and its standard error (over documents; 0: it has none).

    documents: how much each document moves it, the same ones for all rows; none: it is not a mean over documents.
    """

    mean: Number
    error: Annotated[Number, Field(ge=0)] = 0.0
    documents: Influences = ()


class SeedResult(Record):
    """What was measured of one row and seed.

    asked: digest of everything that it depends on. judged: digest of what all rows are judged by, the documents among
    it; "" in results of earlier versions.
    """

    asked: str
    judged: str = ""
    steps: int = Field(ge=0)
    figures: dict[str, Measurement]


class TimedSteps(Record):
    """What the number of steps of a row follows from. train: digest of its card and of its section train."""

    minutes: float
    clock: str
    calibration_steps: int
    train: str


class Results(BaseModel):
    """results.json: steps of each row where they follow from the clock, and row → seed → what was found.

    timed: what the steps follow from; steps of earlier versions have none.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    about: dict[str, str] = Field(default_factory=dict)
    steps: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    timed: dict[str, TimedSteps] = Field(default_factory=dict)
    rows: dict[str, dict[str, SeedResult]] = Field(default_factory=dict)
    baselines: dict[str, SeedResult] = Field(default_factory=dict)

    def of(self, seeds: Sequence[int], judged: str) -> Results:
        """Return what was measured with these seeds and judged in this way: nothing else is compared."""
        names = [str(seed) for seed in seeds]
        rows = {
            row: {seed: found[seed] for seed in names if seed in found and found[seed].judged == judged}
            for row, found in self.rows.items()
        }
        return Results(
            about=self.about,
            steps=self.steps,
            rows={row: found for row, found in rows.items() if found},
            baselines={name: one for name, one in self.baselines.items() if one.asked == judged},
        )

    def figure(self, metric: str, row: str) -> Measurement | None:
        """Return the mean of a figure over seeds, with its standard error; None if nobody has measured it.

        The error joins that over documents, the mean of the seeds', and that of the seeds' spread, in quadrature.
        """
        values = self.of_seeds(metric, row)
        if not values:
            return None
        documents = statistics.mean(one.error for one in values)
        error = math.hypot(_spread(values), documents)
        return Measurement(mean=statistics.mean(one.mean for one in values), error=error)

    def of_seeds(self, metric: str, row: str) -> list[Measurement]:
        """Return what was measured with each seed; a single value for a baseline."""
        return [one.figures[metric] for one in self._measured(row) if metric in one.figures]

    def _measured(self, row: str) -> list[SeedResult]:
        return [self.baselines[row]] if row in self.baselines else list(self.rows.get(row, {}).values())

    def verdict(self, claim: Claim) -> tuple[Verdict, str]:
        """Say whether, and how, the difference exceeds two standard errors."""
        found = self.difference(claim)
        if found is None:
            return "not measured", "–"
        difference, error = found
        if not error:  # of single seeds and no documents: nothing says how large it is
            return "undecided", f"{difference:+.4g}, of single figures"
        verdict: Verdict = "confirmed" if difference > error else "refuted" if difference < -error else "undecided"
        return verdict, f"{difference:+.4g} ± {error:.2g}"

    def difference(self, claim: Claim) -> tuple[float, float] | None:
        """Return by how much the larger side of a claim exceeds the smaller one, and two standard errors of that.

        The error over documents is that of the difference, document by document, because all rows are evaluated on the
        same documents. The error over seeds is that of two independent means. So is that over documents if the sides
        were not judged by the same ones. None: a side has not been measured.
        """
        sides = [self.of_seeds(*claim.smaller), self.of_seeds(*claim.larger)]
        if not all(sides):
            return None
        smaller, larger = (
            factor * statistics.mean(one.mean for one in side)
            for factor, side in zip(claim.factors, sides, strict=True)
        )
        seeds = math.hypot(*(factor * _spread(side) for factor, side in zip(claim.factors, sides, strict=True)))
        judged = {one.judged for _, row in (claim.smaller, claim.larger) for one in self._measured(row)}
        documents = _over_documents(claim.factors, sides[0], sides[1], len(judged) == 1)
        return larger - smaller, 2 * math.hypot(seeds, documents)


def _spread(values: Sequence[Measurement]) -> float:
    """Return the standard error over seeds; 0 of a single one, which says nothing about it."""
    means = [one.mean for one in values]
    return statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0


def _over_documents(
    factors: tuple[float, float], smaller: Sequence[Measurement], larger: Sequence[Measurement], same: bool
) -> float:
    """Return the standard error over documents of a difference of means over seeds.

    same: whether both sides were judged by the same documents. Of others, and of figures that not all of these have,
    it is that of two independent means.
    """
    lengths = {len(one.documents) for one in (*smaller, *larger)}
    if not same or len(lengths) > 1 or lengths == {0}:
        errors = (statistics.mean(one.error for one in side) for side in (smaller, larger))
        return math.hypot(*(factor * error for factor, error in zip(factors, errors, strict=True)))
    means = (
        [statistics.mean(each) for each in zip(*(one.documents for one in side), strict=True)]
        for side in (smaller, larger)
    )
    # a document without a judged sentence moves nothing
    count = sum(any(each) for each in zip(*(one.documents for one in (*smaller, *larger)), strict=True))
    squares = sum((factors[1] * b - factors[0] * a) ** 2 for a, b in zip(*means, strict=True))
    return math.sqrt(squares * count / (count - 1)) if count > 1 else 0.0


_TITLES = TITLES | {
    "parameters": "parameters",
    "flops_per_step": "FLOPs a step, at most",
    "cpu_seconds": "CPU s",
    "gradient_diversity": "gradient diversity",
}


def rows_of(settings: ScienceSettings, results: Results) -> list[str]:
    """Return the rows that have figures, those of the file first."""
    return [one for one in (*settings.objectives, *BASELINES) if one in results.rows or one in results.baselines]


def to_markdown(settings: ScienceSettings, results: Results) -> str:
    """Return the table of figures, the table of claims, and what the figures mean, as Markdown."""
    columns = [one for one in (*settings.metrics, *OWN) if any(results.figure(one, row) for row in results.rows)]
    lines = table(
        ["row", "seeds", "steps", *(_TITLES.get(one, one) for one in columns)],
        [
            [row, *trained(results, row), *(said(results, column, row) for column in columns)]
            for row in rows_of(settings, results)
        ],
    )
    lines += ["", "± two standard errors: over documents, and over seeds where there are several. " + about(results)]
    if settings.claims:
        judged = [(claim, *results.verdict(claim)) for claim in map(Claim.of, settings.claims)]
        lines += ["", *table(["claim", "", "difference"], [[f"`{one.text}`", what, by] for one, what, by in judged])]
        lines += ["", "Confirmed or refuted: by more than two standard errors of the difference."]
    fits = [_scaling(results, one) for one in settings.scaling]
    if fits:
        lines += ["", *table(["a·N^−α + b through", "N, metric", "a", "α", "95 % of α", "b"], fits)]
        lines += ["", _OF_FITS]
    return "\n".join(lines) + "\n"


_OF_FITS = (
    "N: parameters. Three sizes determine a, α and b, so that the fit goes through them; 95 % of α: fits to what other "
    f"documents and seeds might have given, of α from {LOWEST} to {HIGHEST}. a = 0: it does not fall with N."
)


def _scaling(results: Results, asked: ScalingLaw) -> list[str]:
    """Return the cells of a fit."""
    said = [f"{asked.metric} of {', '.join(asked.rows)}"]
    sides = [(results.figure("parameters", row), results.of_seeds(asked.metric, row)) for row in asked.rows]
    if len({len(one.documents) for _, found in sides for one in found}) > 1:  # some are not yet evaluated again
        return [*said, "not measured on the same documents", "–", "–", "–", "–"]
    points = [
        Point(
            size.mean,
            statistics.mean(one.mean for one in found),
            _spread(found),
            tuple(statistics.mean(each) for each in zip(*(one.documents for one in found), strict=True)),
        )
        for size, found in sides
        if size and found
    ]
    if len({one.size for one in points}) < len(asked.rows):
        return [*said, "not measured", "–", "–", "–", "–"]
    law = fitted(np.array([one.size for one in points]), np.array([one.mean for one in points]))
    low, high = alphas(points)
    pairs = "; ".join(f"{one.size / 1e6:.2f} M, {one.mean:.4g}" for one in points)
    return [*said, pairs, f"{law.a:.3g}", f"{law.alpha:.3g}", f"{low:.2g} … {high:.2g}", f"{law.b:.4g}"]


def to_svg(settings: ScienceSettings, results: Results) -> bytes:
    """Plot a panel for each metric and a bar for each row, with two standard errors."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = rows_of(settings, results)[::-1]
    metrics = [one for one in settings.metrics if any(results.figure(one, row) for row in rows)]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "compare-objectives"}):
        figure = Figure(figsize=(1.5 + 2.5 * max(1, len(metrics)), 1 + 0.3 * len(rows)), layout="constrained")
        panels = figure.subplots(1, max(1, len(metrics)), sharey=True, squeeze=False)[0]
        for metric, panel in zip(metrics, panels, strict=False):
            found = [results.figure(metric, row) for row in rows]
            means = [one.mean if one else 0.0 for one in found]
            panel.barh(rows, means, xerr=[2 * one.error if one else 0.0 for one in found], color="#4c78a8")
            panel.set_title(_TITLES.get(metric, metric))
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def trained(results: Results, row: str) -> list[str]:
    """Return how many seeds a row was trained with, and in how many steps."""
    seeds = results.rows.get(row, {})
    return [str(len(seeds)), f"{next(iter(seeds.values())).steps:,}"] if seeds else ["–", "–"]


def said(results: Results, metric: str, row: str) -> str:
    """Return a figure with two standard errors, for a table.

    Args:
        results: the table of results.
        metric: the figure.
        row: the name of the row.

    Returns:
        The text; a dash if it was not measured.
    """
    found = results.figure(metric, row)
    if found is None:
        return "–"
    if metric == "parameters":
        return f"{found.mean / 1e6:,.2f} M"
    return f"{found.mean:.4g}" + (f" ± {2 * found.error:.2g}" if found.error else "")


def about(results: Results) -> str:
    """Say what the figures were measured on."""
    return ". ".join(f"{key}: {value}" for key, value in results.about.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(one)} |" for one in (head, ["---"] * len(head), *rows)]
