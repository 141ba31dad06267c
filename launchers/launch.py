"""Carries out a plan in this process, on this machine, or on an existing Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from launchers.devices import allowed_cpus, devices
from pipeline.base.formats import duration
from pipeline.corpus.events import Event
from pipeline.planning.estimate import estimate_of
from pipeline.planning.plan import Plan
from pipeline.planning.workload import busy_seconds_of

SHORT_SECONDS = 300.0  # a run that is estimated to take less does not start Ray


class Launching:
    """Launches all phases of a run; what it starts for them, such as a private Ray, stays up until `close`."""

    def __init__(self) -> None:
        self._started = contextlib.ExitStack()
        self._ray = False

    def __call__(self, plan: Plan, folder: str) -> Iterator[Event]:
        """Carry out a plan."""
        if kind_of(plan) == "local" and not self._ray:
            from launchers.local import end_of_ray_is_told, ray_on_this_machine

            self._started.enter_context(ray_on_this_machine())
            self._started.enter_context(end_of_ray_is_told())
            self._ray = True
        yield from launch(plan, folder)

    def close(self) -> None:
        """End what was started."""
        self._ray = False
        self._started.close()


def launch(plan: Plan, folder: str) -> Iterator[Event]:
    """Carry out a plan with the launcher that its configuration names. `folder`: the run's, in the corpus."""
    kind = kind_of(plan)
    if kind == "inline":
        from launchers import inline

        return inline.run(plan, folder)
    if kind == "ray":
        from launchers import ray_cluster

        return ray_cluster.run(plan, folder)
    from launchers import local

    return local.run(plan, folder)


def kind_of(plan: Plan) -> str:
    """Return which launcher works on a plan here."""
    settings = plan.config.launcher
    if settings.kind == "slurm":
        return settings.inside  # in a task of an array
    return choose(plan, estimate_of(plan).sentences)[0] if settings.kind == "auto" else settings.kind


def choose(plan: Plan, new: float) -> tuple[str, str]:
    """Choose, for `launcher: auto`, what this machine uses for the remaining work, and say why; new: how many
    sentences segmenting will yield.
    """
    gpus, cores = devices().count("cuda"), allowed_cpus()
    return choose_for(busy_seconds_of(plan, new, cores, gpus), cores, gpus, plan.config.launcher.segmenters)


def choose_for(seconds: float, cores: int, gpus: int, segmenters: int | None = None) -> tuple[str, str]:
    """Choose inline for a few minutes of work, or if there is only one worker anyway; otherwise local.

    Args:
        seconds: estimated seconds of work.
        cores: the number of CPU cores.
        gpus: the number of GPUs.
        segmenters: how many processes are to segment; None if that is not set.

    Returns:
        The launcher, and the reason in words.
    """
    about = f"about {duration(seconds)} of work"
    if seconds < SHORT_SECONDS:
        return "inline", about
    if gpus <= 1 and (segmenters or max(1, cores - 1)) == 1:
        return "inline", f"{about}; this machine has one worker anyway"
    return "local", about
