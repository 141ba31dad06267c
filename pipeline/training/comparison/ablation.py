"""What an ablation found, for people: figures of every selection, and what it gains over all sentences."""

from __future__ import annotations

import io
from typing import Literal

from pipeline.config.science import ALL, Claim, ScienceSettings
from pipeline.training.comparison.results import EPOCHS, SENTENCES, Results, about, rows_of, said, table, trained
from pipeline.training.metric_names import TITLES

LOWER = frozenset(("l2", "l2_squared", "l2_r", "nll", "bpc"))  # metrics of which less is better
HIGHER = frozenset(("ca", "ca_cosine", "top1", "mi", "rouge_l"))  # of which more is; PAR is best at 1
COLOURS = {"better": "#2ca02c", "worse": "#d62728", "": "#7f7f7f"}
NOTES = (
    "± two standard errors: over documents, and over seeds where there are several. A difference is better or worse if "
    "it exceeds two standard errors of itself, document by document; of twenty that are due to chance, about one does. "
    "Epochs: how often the training saw its sentences; where they differ much, compare with a row of as many sentences "
    "at random, such as `u < 0.5`. "
)


def gain(results: Results, metric: str, row: str) -> tuple[float, float, Literal["better", "worse", ""]] | None:
    """Return by how much a metric of a row exceeds that of all sentences, two standard errors of that, and a verdict.

    Args:
        results: what was measured.
        metric: its name.
        row: the name of a selection.

    Returns:
        difference, error and verdict; an error of 0 is unknown, and decides nothing. None if it was not measured.
    """
    found = results.difference(Claim("", (metric, ALL), (metric, row)))
    if found is None:
        return None
    difference, error = found
    if not error or abs(difference) <= error or metric not in LOWER | HIGHER:
        return difference, error, ""
    return difference, error, "better" if (difference < 0) == (metric in LOWER) else "worse"


def to_markdown(settings: ScienceSettings, results: Results) -> str:
    """Return a table of figures, and one of differences from all sentences, as Markdown."""
    heads = [TITLES.get(one, one) for one in settings.metrics]
    figures = [
        [row, *trained(results, row), *_amount(results, row), *(said(results, one, row) for one in settings.metrics)]
        for row in rows_of(settings, results)
    ]
    gains = [
        [row, *(_gain(results, one, row) for one in settings.metrics)]
        for row in settings.objectives
        if row != ALL and row in results.rows
    ]
    lines = table(["trained on", "seeds", "steps", "sentences", "epochs", *heads], figures)
    lines += ["", *table([f"less {ALL}", *heads], gains), "", NOTES + about(results)]
    return "\n".join(lines) + "\n"


def to_svg(settings: ScienceSettings, results: Results) -> bytes:
    """Plot a panel for each metric, and in it for each selection the difference from all sentences with its errors."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    rows = [row for row in settings.objectives if row != ALL and row in results.rows][::-1]
    metrics = settings.metrics
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ablate"}):
        figure = Figure(figsize=(2 + 2.5 * len(metrics), 1.2 + 0.35 * max(1, len(rows))), layout="constrained")
        for metric, panel in zip(metrics, figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0], strict=True):
            for row in rows:
                found = gain(results, metric, row)
                difference, error, verdict = found or (float("nan"), 0.0, "")
                panel.errorbar(difference, row, xerr=error, fmt="o", color=COLOURS[verdict], capsize=3)
            panel.axvline(0, color="black", linewidth=0.8)
            panel.set_title(TITLES.get(metric, metric) + {True: " (less is better)"}.get(metric in LOWER, ""))
        figure.supxlabel(f"difference from {ALL}, ± two standard errors; green: better, red: worse")
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _amount(results: Results, row: str) -> list[str]:
    amounts = [results.figure(name, row) for name in (SENTENCES, EPOCHS)]
    return [f"{one.mean:,.{digits}f}" if one else "–" for one, digits in zip(amounts, (0, 1), strict=True)]


def _gain(results: Results, metric: str, row: str) -> str:
    found = gain(results, metric, row)
    if found is None:
        return "–"
    difference, error, verdict = found
    return f"{difference:+.4g} ± {error:.2g} {verdict}".rstrip() if error else f"{difference:+.4g}, of single figures"
