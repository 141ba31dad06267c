"""Places embeddings on a map of two dimensions: by PaCMAP where the extra `[map]` is installed, or linearly.

Both begin with the principal components of the centred embeddings. The first two of them are a map that keeps large
distances. PaCMAP (Wang et al. 2021, arXiv 2012.04561) is given the first `COMPONENTS`, and also keeps together what is
near; in less than `LEAST_PACMAP` embeddings it has too few neighbours for that. It is seeded, and the linear algebra
uses one thread, so the same embeddings get the same places on processors of one kind.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.base.errors import visible

MAP = 1000  # places on each side of the map
LEAST = 3  # rows for a map
LEAST_PACMAP = 500
COMPONENTS = 100  # more are noise to PaCMAP, which would reduce them to as many
SEED = 0


@dataclass(frozen=True)
class Places:
    """Places of rows on the map.

    `place`: (rows, 2), 0 to `MAP`; −1 where a row has none. `explained`: the shares of the variance of the first two
    components. `pacmap`: whether PaCMAP made the map; `instead`: if not, what a reader is told about it.
    """

    place: npt.NDArray[np.int16]
    explained: tuple[float, float] = (0.0, 0.0)
    pacmap: bool = False
    instead: str = ""


def placed(vectors: npt.NDArray[np.float32]) -> Places:
    """Return places on the map; of embeddings (rows, dim) that are not finite, none."""
    found = np.full((len(vectors), 2), -1, np.int16)
    finite = np.isfinite(vectors).all(axis=1)
    if finite.sum() < LEAST:
        return Places(found)
    components, explained = principal_components(vectors[finite])
    points: npt.NDArray[Any] = components[:, :2]
    instead = ""
    if not np.ptp(points):  # all the same
        return Places(found)
    if len(components) < LEAST_PACMAP:
        instead = f"PaCMAP, which also keeps together what is near, needs {LEAST_PACMAP}."
    else:
        try:
            points = by_pacmap(components.astype(np.float32))
        except ModuleNotFoundError:
            instead = "PaCMAP also keeps together what is near; it needs pip install 'sonar-pipeline[map]'."
        except (ImportError, OSError, RuntimeError) as error:  # Numba: it refuses a newer NumPy, or finds no cache
            instead = f"PaCMAP, which also keeps together what is near, does not work here: {visible(str(error))[:300]}"
    width = np.ptp(points, axis=0).max()
    middle = (points.max(axis=0) + points.min(axis=0)) / 2
    found[finite, : points.shape[1]] = np.rint((points - middle) / width * MAP + MAP / 2).astype(np.int16)
    return Places(found, explained, not instead, instead)


def principal_components(vectors: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], tuple[float, float]]:
    """Return the first principal components, `COMPONENTS` at most, and the shares of the first two of the variance.

    A component's largest weight is positive, so the map does not turn over from one computation to the next.
    """
    centred = vectors.astype(np.float64)
    centred -= centred.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    axes = directions[:, ::-1][:, :COMPONENTS]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), range(axes.shape[1])])
    shares = [float(one) for one in values[::-1][:2] / max(values.sum(), np.finfo(np.float64).tiny)]
    return centred @ axes, (shares[0], shares[1] if len(shares) > 1 else 0.0)


def by_pacmap(components: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return (rows, 2) places by PaCMAP of components (rows, at most `COMPONENTS`)."""
    logging.getLogger("pacmap").setLevel(logging.ERROR)  # or it warns that it is seeded
    from pacmap import PaCMAP
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        found: Any = PaCMAP(n_components=2, apply_pca=False, random_state=SEED).fit_transform(components, init="pca")
    return np.asarray(found, np.float32)
