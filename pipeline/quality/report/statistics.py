"""Statistics of arrays: values by length, by language, and what a plot needs of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating] | npt.NDArray[np.integer]

WIDTHS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000)
BINS = 24  # at most, besides the open one
BAND = (0.1, 0.9)


@dataclass(frozen=True)
class Bin:
    """Values of one group of rows; mean and quantiles are NaN where there are none. `first`: its least length."""

    first: int
    count: int
    mean: float
    low: float
    median: float
    high: float


def finite(values: Array) -> npt.NDArray[np.float64]:
    """The values that are numbers."""
    found = np.asarray(values, dtype=np.float64)
    return found[np.isfinite(found)]


def summarise(values: Array, first: int = 0) -> Bin:
    """Mean, and the quantiles of `BAND` with the median, of the values that are numbers."""
    numbers = finite(values)
    if not len(numbers):
        return Bin(first, 0, math.nan, math.nan, math.nan, math.nan)
    low, median, high = np.quantile(numbers, (BAND[0], 0.5, BAND[1]))
    return Bin(first, len(numbers), float(numbers.mean()), float(low), float(median), float(high))


def bin_width(lengths: Array) -> int:
    """A round width with which 99.5 % of the lengths fall into at most `BINS` bins."""
    most = float(np.quantile(lengths, 0.995)) if len(lengths) else 0.0
    return next((width for width in WIDTHS if most / width <= BINS), WIDTHS[-1])


def by_length(lengths: Array, values: Array) -> list[Bin]:
    """Values by length: bins from 1 of equal width, the last one open."""
    wanted = np.isfinite(values)
    lengths, values = lengths[wanted], values[wanted]
    if not len(lengths):
        return []
    width = bin_width(lengths)
    last = min(BINS, int(max(lengths.max() - 1, 0)) // width)
    place = np.clip((lengths - 1) // width, 0, last)
    order = np.argsort(place, kind="stable")
    edges = np.searchsorted(place[order], np.arange(1, last + 1))
    groups = np.split(values[order], edges)
    return [summarise(np.asarray(group, np.float64), number * width + 1) for number, group in enumerate(groups)]


def pearson(first: Array, second: Array) -> tuple[float, int]:
    """(correlation of the pairs that are both numbers, how many those are); NaN where one does not vary."""
    both = np.isfinite(first) & np.isfinite(second)
    one, other = first[both].astype(np.float64), second[both].astype(np.float64)
    if len(one) < 2 or not one.std() or not other.std():
        return math.nan, len(one)
    return float(np.corrcoef(one, other)[0, 1]), len(one)
