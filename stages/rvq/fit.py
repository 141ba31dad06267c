"""Fits RVQ codebooks to a sample: level by level, each on what the previous codebooks left (LCM 2.3.5).

Cost for n rows: per codebook k-means on at most points_per_unit · units rows (`fit_faiss`, `fit_torch`), then one pass
that assigns all n: 2 · n · units · dim operations. Memory: the residuals of all rows in 16 bits, on the device if they
fit into half of what is free there, otherwise in place of the embeddings on the host, from where blocks are streamed;
and the points that a codebook is clustered on, which faiss takes in 32 bits.

On a CPU the result does not depend on the number of threads. This module needs no pydantic, so that a bare machine with
a GPU can run it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from stages.device import compute_dtype, prepare_cuda
from stages.rvq import fit_torch
from stages.rvq.codebooks import Codebooks, RvqRecipe, block_rows, blocks, take_nearest

Progress = Callable[[int, int], None]  # codebooks done, of how many


def fit_codebooks(
    embeddings: npt.NDArray[np.float16], settings: RvqRecipe, device: str, progress: Progress
) -> tuple[Codebooks, dict[str, float | list[float]]]:
    """Fit codebooks to embeddings, which are overwritten by their residuals, because a second copy may not fit into
    memory.

    Args:
        embeddings: (rows, dim) float16; copy them first if they are needed afterwards.
        settings: the recipe.
        device: where to compute.
        progress: is told of the codebooks done.

    Returns:
        The codebooks, and numbers: `relative_error` Σ|x − x̂|² / Σ|x|² by number of codebooks, `rows`.

    Raises:
        ValueError: if the embeddings cannot be overwritten, are not finite, or are fewer than the units.
    """
    if embeddings.dtype != np.float16 or not (embeddings.flags.c_contiguous and embeddings.flags.writeable):
        raise ValueError(
            "RVQ is fitted in place of its embeddings: give it a C-contiguous, writable float16 array, such as a copy; "
            f"this one is {embeddings.dtype}, C-contiguous {embeddings.flags.c_contiguous}, "
            f"writable {embeddings.flags.writeable}"
        )
    rows, units = len(embeddings), settings.units
    if rows < units:
        raise ValueError(
            f"{rows} rows are fewer than the {units} units of a codebook; lower rvq.units to at most {rows} (39 rows "
            f"per unit and more make good ones: {max(2, rows // 39)}), or raise rvq.rows and fit.rows"
        )
    bad = sum(int((~np.isfinite(part).all(axis=1)).sum()) for part in np.array_split(embeddings, 1 + rows // 65536))
    if bad:
        raise ValueError(f"{bad} of {rows} rows are not finite; leave out rows whose status is non-finite")
    prepare_cuda(device)
    dtype = compute_dtype(settings.precision, device)
    fits = device.startswith("cuda") and embeddings.nbytes < torch.cuda.mem_get_info(device)[0] // 2
    residual = torch.from_numpy(embeddings).to(device if fits else "cpu")
    centroids, errors = [], []
    with blocks(device) as each_block:
        total = sum(each_block(lambda start, stop: _energy(residual[start:stop]), rows, block_rows(units, device)))
        for level in range(settings.codebooks):
            seed = settings.seed * settings.codebooks + level
            points = _points(residual, settings.points_per_unit * units, seed)
            if settings.backend == "faiss":
                from stages.rvq import fit_faiss

                found = fit_faiss.cluster(points.cpu(), settings, seed)
            else:
                found = fit_torch.cluster(points.to(device), settings, seed, dtype, each_block)
            stored = found.to(device).half()
            left = float(take_nearest(residual, stored, dtype, each_block)[1].sum(dtype=torch.float64))
            centroids.append(stored.cpu())
            errors.append(left / total if total else 0.0)
            progress(level + 1, settings.codebooks)
    used = {
        "codebooks": settings.codebooks,
        "units": units,
        "initialization": settings.initialization,
        "backend": settings.backend,
        "iterations": settings.iterations,
        "points_per_unit": settings.points_per_unit,
        "precision": str(dtype).removeprefix("torch."),
        "seed": settings.seed,
    }
    numbers: dict[str, float | list[float]] = {"rows": float(rows), "relative_error": errors}
    return Codebooks(torch.stack(centroids), used, numbers), numbers


def _points(residual: torch.Tensor, wanted: int, seed: int) -> torch.Tensor:
    """Return the rows that a codebook is clustered on: all of them, or a random sample of its own, in
    ascending order.
    """
    rows = len(residual)
    if rows <= wanted:
        return residual
    chosen = np.sort(np.random.default_rng(seed).choice(rows, wanted, replace=False, shuffle=False))
    return residual[torch.from_numpy(chosen)]


def _energy(x: torch.Tensor) -> float:
    return float(x.float().square().sum(dtype=torch.float64))
