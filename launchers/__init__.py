"""Where the work happens. A launcher takes chunks to segment and parts to visit, and yields events as they come."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.plan import Plan
from pipeline.tasks import Event


def launch(plan: Plan, folder: str) -> Iterator[Event]:
    """Do what a plan says, with the launcher that its configuration names. `folder`: the run's, in the corpus."""
    kind = plan.config.launcher.kind
    if kind == "inline":
        from launchers import inline

        return inline.run(plan, folder)
    from launchers import local

    return local.run(plan, folder)
