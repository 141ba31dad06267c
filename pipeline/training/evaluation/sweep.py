"""Sweeps of `pipeline evaluate`: options of sampling that take several values, one at a time (LCM 2.4.2, Figure 10).

Each value is an evaluation of its own, of each model that reads the option; everything else stays as it is for that
model. The results go to a long table, a line for each model, option, value and metric, and to a plot.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from pipeline.base.errors import ConfigError
from pipeline.base.formats import csv_text
from pipeline.config.train import OF_GENERATION, SamplingSettings
from pipeline.training.evaluation.measure import METRICS
from pipeline.training.evaluation.table import ResultRow, cells
from pipeline.training.metric_names import TITLES

MOST_VALUES = 50
OPTIONS = tuple(name for name in SamplingSettings.model_fields if name not in OF_GENERATION)


def sweeps_of(texts: Sequence[str], fixed: Mapping[str, Any] | None = None) -> dict[str, tuple[float, ...]]:
    """Parse `guidance=1,2,3`, one text for each option. fixed: options that have one value for all.

    Raises `ConfigError` for an unknown option, or for values that it cannot have.
    """
    found: dict[str, tuple[float, ...]] = {}
    for text in texts:
        name, equals, listed = text.partition("=")
        option = name.strip().replace("-", "_")
        if option not in OPTIONS or not equals:
            raise ConfigError(
                f"--sweep {text}: write an option and its values, such as guidance=1,2,3; options are "
                f"{', '.join(OPTIONS)}"
            )
        if option in found:
            raise ConfigError(f"--sweep {text}: {option} has a sweep already; give all of its values in one")
        if option in (fixed or {}):
            raise ConfigError(f"--sweep {text}: --{option.replace('_', '-')} gives one value for all; leave one out")
        values = tuple(dict.fromkeys(_value(text, option, one.strip()) for one in listed.split(",")))
        if len(values) > MOST_VALUES:
            raise ConfigError(f"--sweep {option}: {len(values)} values, each an evaluation; give {MOST_VALUES} at most")
        found[option] = values
    return found


def _value(text: str, option: str, one: str) -> float:
    try:
        number: float = json.loads(one)
        SamplingSettings.model_validate({option: number})
    except ValidationError as error:
        raise ConfigError(f"--sweep {text}: {option} {one}: {error.errors()[0]['msg']}") from None
    except ValueError:
        raise ConfigError(f"--sweep {text}: {one!r} is not a number; give numbers, with commas between them") from None
    return number


def to_long_csv(rows: Mapping[str, ResultRow]) -> str:
    """Return a line for each model, option, value and metric."""
    lines = (
        [row.swept.model, row.swept.option, row.swept.shown, name, *cells(one), one.sentences]
        for row in rows.values()
        if row.swept is not None
        for name, one in row.figures.items()
    )
    return csv_text([["model", "option", "value", "metric", "mean", "error", "sentences"], *lines])


def to_svg(rows: Mapping[str, ResultRow]) -> bytes:
    """Plot a panel for each metric and option, a line for each model, with bands of two standard errors."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    swept = [(row.swept, row.figures) for row in rows.values() if row.swept is not None]
    options = list(dict.fromkeys(one.option for one, _ in swept))
    metrics = [name for name in METRICS if any(name in figures for _, figures in swept)]
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sweep", "text.parse_math": False}):
        figure = Figure(figsize=(1 + 3.2 * len(options), 0.6 + 2.2 * len(metrics)), layout="constrained")
        panels = figure.subplots(len(metrics), len(options), squeeze=False, sharex="col", sharey="row")
        for across, option in enumerate(options):
            models = dict.fromkeys(one.model for one, _ in swept if one.option == option)
            for down, metric in enumerate(metrics):
                for model in models:
                    of = [(one.value, figures[metric]) for one, figures in swept
                          if (one.model, one.option) == (model, option) and metric in figures]  # fmt: skip
                    of.sort(key=lambda point: point[0])
                    places, means = [value for value, _ in of], [one.mean for _, one in of]
                    errors = [0.0 if math.isnan(one.error) else 2 * one.error for _, one in of]
                    low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
                    line = panels[down, across].plot(places, means, marker="o", markersize=3, label=model)
                    panels[down, across].fill_between(places, low, high, alpha=0.15, color=line[0].get_color())
                panels[down, 0].set_ylabel(TITLES[metric])
            panels[-1, across].set_xlabel(option)
        panels[0, 0].legend(fontsize=7)
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
