"""How the figures of an evaluation are called and written, in a terminal and in a report. Imports no torch."""

from __future__ import annotations

import math

TITLES = {
    "l2": "ℓ2",
    "l2_squared": "ℓ2²",
    "l2_r": "ℓ2-r",
    "par": "PAR",
    "ca": "CA",
    "ca_cosine": "CA cos",
    "top1": "top-1",
    "mi": "MI",
    "nll": "NLL",
    "bpc": "bits/char",
    "rouge_l": "ROUGE-L",
}
SHARES = ("ca", "ca_cosine", "top1", "rouge_l")


def written(name: str, mean: float, error: float) -> str:
    """Write a figure with twice its standard error, as `49.6% ±5.8`.

    Args:
        name: the metric.
        mean: its mean; NaN where it is not defined.
        error: the standard error of the mean; NaN where it is not known.

    Returns:
        The figure, or a dash.
    """
    if math.isnan(mean):
        return "–"
    scale, digits = (100, 1) if name in SHARES else (1, 2)
    more = "" if math.isnan(error) else f" ±{2 * scale * error:.{digits}f}"
    return f"{scale * mean:.{digits}f}{'%' if name in SHARES else ''}{more}"
