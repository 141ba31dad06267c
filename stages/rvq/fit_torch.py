"""One codebook by k-means in PyTorch, for GPUs and large codebooks.

`progressive` is the paper's Improved RVQ (Liu et al. 2015): the points are turned onto their principal axes, and
k-means runs in ever more of these dimensions, each time from the centroids that fewer dimensions gave. `kmeans` starts
in all dimensions from random points: half of the cost or less, at a somewhat larger error.

A pass costs 2 · points · units · dimensions operations; the dimensions of the progressive passes add up to about twice
those of a single pass. While there are few dimensions, EARLY points per unit are enough. A unit that no point chooses
moves next to the fullest one, and shares its points in the next pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from stages.rvq.codebooks import Blocks, Nearest, block_rows

if TYPE_CHECKING:
    from stages.rvq.codebooks import RvqRecipe

STEPS = 10  # progressive: from two dimensions or so to all
EARLY = 64  # points a unit while less than a quarter of the dimensions is in use
NEXT_TO = 1 / 64  # how far a moved unit lies from the fullest, relative to its size: bfloat16 still tells them apart
UNITS = 256  # whose points are gathered at once
GPU_GATHERED = 1 << 29  # on a GPU: numbers gathered at once, 3 GB with their copies; few units keep few threads busy


def cluster(
    points: torch.Tensor, settings: RvqRecipe, seed: int, dtype: torch.dtype, each_block: Blocks
) -> torch.Tensor:
    """Cluster points into centroids, on the points' device.

    Args:
        points: (n, dim) float16.
        settings: units, iterations and initialization.
        seed: the seed of the clustering.
        dtype: the type of products.
        each_block: calls a function for blocks of rows.

    Returns:
        (units, dim) float32.
    """
    units, passes = settings.units, settings.iterations
    generator = torch.Generator().manual_seed(seed)
    start = torch.randperm(len(points), generator=generator)[:units].to(points.device)
    if settings.initialization == "kmeans":
        return _kmeans(points, points[start].float(), passes, dtype, each_block, generator)
    mean, axes = _principal_axes(points, each_block)
    turned = torch.empty_like(points)

    def turn(first: int, stop: int) -> None:
        turned[first:stop] = ((points[first:stop].float() - mean) @ axes).half()

    each_block(turn, len(points), block_rows(units, points.device))
    dim = points.shape[1]
    early = max(1, len(points) // (EARLY * units))
    centroids = turned[start].float()
    for step in range(1, STEPS + 1):
        used = int(dim ** (step / STEPS) + 1e-6)
        some = turned[:: early if 4 * used <= dim else 1, :used]
        centroids[:, :used] = _kmeans(some, centroids[:, :used], passes, dtype, each_block, generator)
        if step == 1:
            centroids[:, used:] = 0  # the mean of every other dimension
    return centroids @ axes.T + mean


def _kmeans(
    points: torch.Tensor,
    centroids: torch.Tensor,
    passes: int,
    dtype: torch.dtype,
    each_block: Blocks,
    generator: torch.Generator,
) -> torch.Tensor:
    """Run Lloyd's algorithm from given centroids."""
    for _ in range(passes):
        means, counts = _means(points, centroids, dtype, each_block)
        centroids = _moved(torch.where(counts[:, None] > 0, means, centroids), counts, generator)
    return centroids


def _means(
    points: torch.Tensor, centroids: torch.Tensor, dtype: torch.dtype, each_block: Blocks
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return means (units, dim) and numbers (units,) of the points that are nearest to each centroid.

    They are added up in the order of the rows: adding into shared sums would round in another order each time on a GPU.
    """
    units = len(centroids)
    nearest = Nearest(centroids, dtype)
    labels = torch.cat(
        each_block(lambda start, stop: nearest(points[start:stop]), len(points), block_rows(units, points.device))
    )
    counts = torch.bincount(labels, minlength=units)
    order = torch.argsort(labels, stable=True)
    ends = [0, *counts.cumsum(0).tolist()]

    def means(first: int, stop: int) -> torch.Tensor:
        members = points[order[ends[first] : ends[stop]]].float()
        return torch.segment_reduce(members, "mean", lengths=counts[first:stop], axis=0, unsafe=True)

    gathered = UNITS if not points.is_cuda else min(units, max(UNITS, GPU_GATHERED * units // points.numel()))
    return torch.cat(each_block(means, units, gathered)), counts  # which do not depend on how many are gathered


def _moved(centroids: torch.Tensor, counts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return the centroids with units without points moved next to the fullest ones."""
    empty = (counts == 0).nonzero()[:, 0]
    if not len(empty):
        return centroids
    by_size = counts.argsort(descending=True, stable=True)[: len(counts) - len(empty)]
    full = centroids[by_size[torch.arange(len(empty), device=by_size.device) % len(by_size)]]
    signs = torch.randint(0, 2, full.shape, generator=generator).to(full.device) * 2 - 1
    return centroids.index_copy(0, empty, full * (1 + NEXT_TO * signs))


def _principal_axes(points: torch.Tensor, each_block: Blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean (dim,) and principal axes (dim, dim), columns in descending order of variance; float32."""

    def moments(start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = points[start:stop].float()
        return x.sum(dim=0, dtype=torch.float64), (x.T @ x).double()

    rows = len(points)
    found = each_block(moments, rows, max(8192, -(-rows // 32)))
    mean = torch.stack([first for first, _ in found]).sum(dim=0) / rows
    second = torch.stack([second for _, second in found]).sum(dim=0) / rows
    axes = torch.linalg.eigh(second - torch.outer(mean, mean))[1].flip(1)
    return mean.float(), axes.float()
