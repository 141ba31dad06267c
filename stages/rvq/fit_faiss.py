"""Fits one codebook by faiss, as in the paper: its Improved RVQ (Liu et al. 2015), or plain k-means.

It does the same as `ResidualQuantizer` with beam 1 for each codebook (`Train_progressive_dim`), but units need not be a
power of two, and the residual is computed with the centroids as they are stored.

It runs on one thread: with another number of threads faiss's principal axes round differently, and so do the centroids.
On many cores `fit_torch` is therefore faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import faiss
import torch

if TYPE_CHECKING:
    from stages.rvq.codebooks import RvqRecipe


def cluster(points: torch.Tensor, settings: RvqRecipe, seed: int) -> torch.Tensor:
    """Cluster points into centroids, by faiss with one thread.

    Args:
        points: (n, dim) float16, on the host.
        settings: units, iterations and initialization.
        seed: the seed of the clustering.

    Returns:
        (units, dim) float32.
    """
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        return _cluster(points, settings, seed)
    finally:
        faiss.omp_set_num_threads(threads)


def _cluster(points: torch.Tensor, settings: RvqRecipe, seed: int) -> torch.Tensor:
    x = points.float().numpy()
    rows, dim = x.shape
    if settings.initialization == "kmeans":
        plain = faiss.Clustering(dim, settings.units, _set(faiss.ClusteringParameters(), rows, settings, seed))
        plain.train(x, faiss.IndexFlatL2(dim))
        found = plain.centroids
    else:
        parameters = _set(faiss.ProgressiveDimClusteringParameters(), rows, settings, seed)
        progressive: Any = faiss.ProgressiveDimClustering(dim, settings.units, parameters)
        progressive.train(rows, faiss.swig_ptr(x), faiss.ProgressiveDimIndexFactory())
        found = progressive.centroids
    return torch.from_numpy(faiss.vector_to_array(found).reshape(settings.units, dim))


def _set(parameters: Any, rows: int, settings: RvqRecipe, seed: int) -> Any:
    parameters.niter = settings.iterations
    parameters.seed = seed
    parameters.min_points_per_centroid = 1  # the caller has judged that
    parameters.max_points_per_centroid = rows  # the caller has drawn the sample
    return parameters
