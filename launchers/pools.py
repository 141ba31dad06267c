"""Decides how many actors a Ray cluster runs, and what each takes of it.

With GPUs there is a visitor for each, and all nodes segment on CPUs; if SaT segments, it shares the GPUs. Without GPUs,
each node has visitors that use all its cores. Either pool reserves its share of the CPUs, whatever is used, so neither
pool can starve the other, and one CPU per node is enough. Visitors on CPUs reserve so much that no second one fits
beside them when the segmenters are gone.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.config.launcher import LauncherSettings

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


VISITOR_SHARE = 0.8  # of the CPUs, where there are no GPUs
SAT_SHARE = 0.2  # of each GPU, where SaT segments beside the encoder
SAT_SEGMENTERS = 2  # a GPU


@dataclass(frozen=True)
class Node:
    """What Ray may allocate of a node."""

    cpus: float
    gpus: int = 0


@dataclass(frozen=True)
class Pools:
    """Actors that visit and actors that segment, with the CPUs and GPUs that one of them reserves.

    `threads`: of a visitor on a CPU. `device`: of all visitors, `segmenter_device`: of all segmenters; "cpu" or "cuda".
    `bundled`: a visitor and `segmenters_per_gpu` segmenters share each GPU. `most_segmenters`: for which there is room.
    """

    visitors: int
    visitor_cpus: float
    visitor_gpus: float
    threads: int
    segmenters: int
    segmenter_cpus: float
    segmenter_gpus: float
    device: str
    segmenter_device: str
    segmenters_per_gpu: int = 0
    most_segmenters: int = 1

    @property
    def bundled(self) -> bool:
        """Whether GPUs are shared, so that each needs a placement group."""
        return self.segmenters_per_gpu > 0


def pools(
    nodes: Sequence[Node],
    settings: LauncherSettings,
    sat: bool,
    needed: Callable[[bool, int], float | None] = lambda gpu, threads: None,
) -> Pools:
    """Return the pools of actors for some nodes.

    Args:
        nodes: CPUs and GPUs of each node.
        settings: the section `launcher`.
        sat: whether SaT segments, on GPUs if there are any.
        needed: how many segmenters keep a visitor busy, which computes on a GPU or with so many threads; None: unknown,
            and there are as many as there is room for.

    Returns:
        Numbers of actors, and what each takes of a node.
    """
    nodes = [node for node in nodes if node.cpus > 0] or [Node(1)]
    gpus = sum(node.gpus for node in nodes)
    share = SAT_SHARE if gpus and sat else 0.0
    if gpus:
        least = min(node.cpus / node.gpus for node in nodes if node.gpus)
        visitors, visitor_cpus = [node.gpus for node in nodes], min(1.0, least / 2)
    else:
        least = min(node.cpus for node in nodes)
        visitors, visitor_cpus = [int(node.cpus / least) for node in nodes], VISITOR_SHARE * least
    free = [node.cpus - number * visitor_cpus for node, number in zip(nodes, visitors, strict=True)]
    if share:
        segmenting = [SAT_SEGMENTERS * node.gpus for node in nodes]
    else:
        segmenting = [max(1, int(node.cpus) - 1) for node in nodes]
    threads = max(1, int(least))
    each_needs = None if share else needed(gpus > 0, threads)
    enough = sum(segmenting) if each_needs is None else max(1, math.ceil(each_needs * sum(visitors)))
    segmenters = settings.segmenters or min(enough, sum(segmenting))
    per_gpu = math.ceil(segmenters / gpus) if share else 0
    if share:
        each = (least - visitor_cpus) / per_gpu
    elif settings.segmenters:
        each = sum(free) / segmenters
    else:
        each = min(rest / number for rest, number in zip(free, segmenting, strict=True) if number)
    return Pools(
        visitors=sum(visitors),
        visitor_cpus=_rounded(visitor_cpus),
        visitor_gpus=round(1 - share, 2) if gpus else 0.0,
        threads=threads,
        segmenters=segmenters,
        segmenter_cpus=_rounded(min(1.0, each)),
        segmenter_gpus=_rounded(share / per_gpu if share else 0.0),
        device="cuda" if gpus else "cpu",
        segmenter_device="cuda" if share else "cpu",
        segmenters_per_gpu=per_gpu,
        most_segmenters=settings.segmenters or sum(segmenting),
    )


def _rounded(amount: float) -> float:
    """Round down to what Ray can distinguish."""
    return math.floor(amount * 1000 + 1e-6) / 1000


class GpuBundles:
    """A placement group for each GPU that a visitor shares with SaT segmenters.

    By default Ray packs fractions best-fit: segmenters fill one GPU until its visitor no longer fits. A group of one
    bundle holds a whole GPU, and each actor is told which group it belongs to. A group whose node dies moves to another
    GPU as soon as there is one, with its actors. Groups are created as actors ask for them: if few actors work, the
    other GPUs stay free.
    """

    def __init__(self, found: Pools) -> None:
        self._found = found
        self._groups: list[PlacementGroup] = []
        self._visitors: set[int] = set()  # their groups
        self._segmenters: Counter[int] = Counter()  # by group

    def of_visitor(self) -> tuple[int, PlacementGroupSchedulingStrategy]:
        """Return the number and place of a GPU that has no visitor, for one."""
        number = next(one for one in itertools.count() if one not in self._visitors)
        self._visitors.add(number)
        return number, self._place(number)

    def of_segmenter(self) -> tuple[int, PlacementGroupSchedulingStrategy]:
        """Return the number and place of the GPU that has the fewest segmenters, of those for visitors."""
        count = max(len(self._visitors), self._found.visitors)
        number = min(range(count), key=lambda one: self._segmenters[one])
        self._segmenters[number] += 1
        return number, self._place(number)

    def leave(self, number: int | None, visited: bool) -> None:
        """Take note that the visitor, or else a segmenter, of this GPU has ended."""
        if number is not None and visited:
            self._visitors.remove(number)
        elif number is not None:
            self._segmenters[number] -= 1

    def remove(self) -> None:
        """Release the GPUs; actors that still exist end."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups:
            remove_placement_group(group)
        self._groups.clear()

    def _place(self, number: int) -> PlacementGroupSchedulingStrategy:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        found = self._found
        cpus = found.visitor_cpus + found.segmenters_per_gpu * found.segmenter_cpus
        while len(self._groups) <= number:
            self._groups.append(placement_group([{"GPU": 1, "CPU": cpus}]))
        return PlacementGroupSchedulingStrategy(self._groups[number], placement_group_bundle_index=0)


class MoreRoom:
    """The room of one more visitor, as a placement group that waits: an autoscaling cluster adds a node for it.

    Nothing runs in it. It is given up as soon as actors are added, and ends with the process that asked for it.
    """

    def __init__(self) -> None:
        self._group: PlacementGroup | None = None
        self._in_vain = 0  # nodes of a cluster that had the room without another visitor

    def ask(self, nodes: int, found: Pools) -> None:
        """Ask once. If the room is there, but no visitor was added, ask again only when the cluster has other nodes.

        Args:
            nodes: how many the cluster has.
            found: what a visitor takes.
        """
        from ray.util.placement_group import placement_group

        if self._group and self._group.wait(0):
            self.give_up()
            self._in_vain = nodes
        elif not self._group and nodes != self._in_vain:
            cpus = found.visitor_cpus + found.segmenters_per_gpu * found.segmenter_cpus
            self._group = placement_group([{"CPU": cpus, **({"GPU": 1} if found.visitor_gpus else {})}])

    def give_up(self) -> None:
        """Ask no longer."""
        from ray.util.placement_group import remove_placement_group

        if self._group:
            remove_placement_group(self._group)
            self._group = None
