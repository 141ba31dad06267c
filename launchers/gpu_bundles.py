"""A placement group for each GPU that a visitor shares with SaT segmenters.

By default Ray packs fractions best-fit: segmenters fill one GPU until its visitor no longer fits. A group of one bundle
holds a whole GPU, and each actor is told which group it belongs to. A group whose node dies moves to another GPU as
soon as there is one, with its actors. Pools of such actors do not grow: a new actor could take a place that another one
still holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from launchers.pools import Pools

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy


class GpuBundles:
    """The groups of one round, created as actors ask for them: if few actors work, the other GPUs stay free."""

    def __init__(self, found: Pools) -> None:
        self._found = found
        self._groups: list[PlacementGroup] = []

    def of_visitors(self) -> Iterator[PlacementGroupSchedulingStrategy]:
        """Yield one place per GPU."""
        for number in count():
            yield self._place(number)

    def of_segmenters(self) -> Iterator[PlacementGroupSchedulingStrategy]:
        """Yield one place on each GPU, then a second on each, and so on."""
        for number in count():
            yield self._place(number % self._found.visitors)

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
