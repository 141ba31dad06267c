"""How a metric falls with the parameters of a model: y = a·N^−α + b through rows of a comparison (SONAR-LLM, Fig. 3).

For each α the best a ≥ 0 and b follow by least squares, so that only α is searched, from `LOWEST` to `HIGHEST`. Three
widths determine three numbers: such a fit goes through its points and cannot be wrong, only uncertain. How uncertain is
found by fitting again what other documents and seeds might have given: each document's part in the means gets a random
factor, the same one for all widths, and each mean a random error as large as that over its seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LOWEST, HIGHEST = 0.01, 4.0  # of α
RESAMPLES = 1000
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class PowerLaw:
    """y = a·N^−α + b. a is 0 if y does not fall with N."""

    a: float
    alpha: float
    b: float


@dataclass(frozen=True)
class Point:
    """A row. size: N; mean: y; spread: the standard error over seeds; documents: how much each moves the mean."""

    size: float
    mean: float
    spread: float
    documents: tuple[float, ...]


def fitted(sizes: Numbers, values: Numbers) -> PowerLaw:
    """Return the best power law through (points,) sizes and values, three or more of different sizes.

    Raises ValueError for fewer.
    """
    if len(set(sizes.tolist())) < 3:
        raise ValueError(f"a power law needs three sizes; these are {sorted(set(sizes.tolist()))}")
    middle = float(np.exp(np.log(sizes).mean()))
    low, high = np.log(LOWEST), np.log(HIGHEST)
    for _ in range(4):  # each narrows the range to two of 64 steps
        tried = np.linspace(low, high, 65)
        best, step = int(_misses(sizes / middle, values[None], np.exp(tried))[:, 0].argmin()), tried[1] - tried[0]
        low, high = max(low, tried[best] - step), min(high, tried[best] + step)
    alpha = float(np.exp(tried[best]))
    x = (sizes / middle) ** -alpha
    a = _slopes(x, values[None])[0]
    b = values.mean() - a * x.mean()
    return PowerLaw(float(a * middle**alpha), alpha, float(b))


def alphas(points: Sequence[Point]) -> tuple[float, float]:
    """Return the range in which α lies in 95 of 100 fits to what other documents and seeds might have given."""
    random = np.random.default_rng(0)
    sizes = np.array([one.size for one in points])
    means, spreads = np.array([one.mean for one in points]), np.array([one.spread for one in points])
    moved = np.array([one.documents for one in points])
    count = int(moved.any(axis=0).sum())  # a document without a judged sentence moves nothing
    moved *= math.sqrt(count / (count - 1)) if count > 1 else 0.0  # as in the errors of means
    drawn = means + random.standard_normal((RESAMPLES, moved.shape[1])) @ moved.T
    drawn += spreads * random.standard_normal(drawn.shape)
    tried = np.geomspace(LOWEST, HIGHEST, 601)  # 1 % apart
    found = tried[_misses(sizes / float(np.exp(np.log(sizes).mean())), drawn, tried).argmin(axis=0)]
    return float(np.quantile(found, 0.025)), float(np.quantile(found, 0.975))


def _misses(sizes: Numbers, values: Numbers, tried: Numbers) -> Numbers:
    """Return (α, fits): sums of squared distances of the best a and b for each of `tried`, of values (fits, points)."""
    found = []
    for alpha in tried:
        x = sizes**-alpha
        far = values - values.mean(1, keepdims=True) - _slopes(x, values)[:, None] * (x - x.mean())
        found.append(np.square(far).sum(1))
    return np.stack(found)


def _slopes(x: Numbers, values: Numbers) -> Numbers:
    """Return (fits,) the best a ≥ 0 of values (fits, points)."""
    centred = x - x.mean()
    slopes: Numbers = np.maximum(0.0, values @ centred / np.square(centred).sum())
    return slopes
