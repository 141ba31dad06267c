"""What a comparison found so far, on disk, and what follows from it: means over seeds, what became of claims;
and all of it for people: a table in Markdown, and bars in SVG.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.config.science import BASELINES, OWN, Claim, ScienceSettings
from pipeline.training.evaluation.table import TITLES

Verdict = Literal["confirmed", "refuted", "undecided", "not measured"]


class Measurement(BaseModel):
    """A number, and its standard error (over documents; 0: it has none)."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    mean: float
    error: float = 0.0


class Found(BaseModel):
    """Of one row and seed. asked: digest of all that it depends on."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    asked: str
    steps: int
    figures: dict[str, Measurement]


class Results(BaseModel):
    """results.json: steps of each row where they follow from the clock, and row → seed → what was found."""

    model_config = ConfigDict(strict=True, extra="forbid")

    about: dict[str, str] = Field(default_factory=dict)
    steps: dict[str, int] = Field(default_factory=dict)
    rows: dict[str, dict[str, Found]] = Field(default_factory=dict)
    baselines: dict[str, Found] = Field(default_factory=dict)

    def figure(self, metric: str, row: str) -> Measurement | None:
        """The mean over seeds; its standard error is that over documents, the mean of the seeds', and that of the
        seeds' spread, in quadrature. None: nobody has measured it.
        """
        of_seeds = [self.baselines[row]] if row in self.baselines else list(self.rows.get(row, {}).values())
        values = [one.figures[metric] for one in of_seeds if metric in one.figures]
        if not values:
            return None
        means = [one.mean for one in values]
        spread = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else 0.0
        documents = statistics.mean(one.error for one in values)
        return Measurement(mean=statistics.mean(means), error=math.hypot(spread, documents))

    def verdict(self, claim: Claim) -> tuple[Verdict, str]:
        """Whether the difference exceeds two standard errors, taken as those of two independent figures, and which."""
        smaller, larger = self.figure(*claim.smaller), self.figure(*claim.larger)
        if smaller is None or larger is None:
            return "not measured", "–"
        difference, error = larger.mean - smaller.mean, 2 * math.hypot(smaller.error, larger.error)
        verdict: Verdict = "confirmed" if difference > error else "refuted" if difference < -error else "undecided"
        return verdict, f"{difference:+.4g} ± {error:.2g}"


_TITLES = TITLES | {
    "parameters": "parameters",
    "flops_per_step": "FLOPs a step, at most",
    "gradient_diversity": "gradient diversity",
}


def rows_of(settings: ScienceSettings, results: Results) -> list[str]:
    """Rows that have figures, those of the file first."""
    return [one for one in (*settings.objectives, *BASELINES) if one in results.rows or one in results.baselines]


def to_markdown(settings: ScienceSettings, results: Results) -> str:
    """The table, what became of the claims, and what the figures mean."""
    columns = [one for one in (*settings.metrics, *OWN) if any(results.figure(one, row) for row in results.rows)]
    lines = _table(
        ["row", "seeds", "steps", *(_TITLES.get(one, one) for one in columns)],
        [
            [row, *_trained(results, row), *(_said(results, column, row) for column in columns)]
            for row in rows_of(settings, results)
        ],
    )
    lines += ["", "± two standard errors: over documents, and over seeds where there are several. " + _about(results)]
    if settings.claims:
        judged = [(claim, *results.verdict(claim)) for claim in map(Claim.of, settings.claims)]
        lines += ["", *_table(["claim", "", "difference"], [[f"`{one.text}`", what, by] for one, what, by in judged])]
        lines += ["", "Confirmed or refuted: by more than two standard errors of the difference."]
    return "\n".join(lines) + "\n"


def to_svg(settings: ScienceSettings, results: Results) -> bytes:
    """A panel for each metric, a bar for each row, with two standard errors."""
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


def _trained(results: Results, row: str) -> list[str]:
    seeds = results.rows.get(row, {})
    return [str(len(seeds)), f"{next(iter(seeds.values())).steps:,}"] if seeds else ["–", "–"]


def _said(results: Results, metric: str, row: str) -> str:
    found = results.figure(metric, row)
    if found is None:
        return "–"
    if metric == "parameters":
        return f"{found.mean / 1e6:,.2f} M"
    return f"{found.mean:.4g}" + (f" ± {2 * found.error:.2g}" if found.error else "")


def _about(results: Results) -> str:
    return ". ".join(f"{key}: {value}" for key, value in results.about.items())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(one)} |" for one in (head, ["---"] * len(head), *rows)]
