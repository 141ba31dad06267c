"""Do what a plan says in this process, on this machine, or on a Ray cluster that is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pipeline.corpus.events import Event
from pipeline.planning.plan import Plan

if TYPE_CHECKING:
    pass


def launch(plan: Plan, folder: str) -> Iterator[Event]:
    """Do what a plan says, with the launcher that its configuration names. `folder`: the run's, in the corpus."""
    kind = plan.config.launcher.kind
    if kind == "slurm":
        kind = plan.config.launcher.inside  # in a task of an array
    if kind == "inline":
        from launchers import inline

        return inline.run(plan, folder)
    if kind == "ray":
        from launchers import ray_cluster

        return ray_cluster.run(plan, folder)
    from launchers import local

    return local.run(plan, folder)
