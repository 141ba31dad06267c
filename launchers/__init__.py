"""Where the work happens. A launcher takes chunks to segment and parts to visit, and yields events as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.plan import Plan
from pipeline.tasks import Event

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.config import RunConfig
    from pipeline.running import Where, Wishes
    from pipeline.watch.run_seen import Cluster


def launch(plan: Plan, folder: str) -> Iterator[Event]:
    """Do what a plan says, with the launcher that its configuration names. `folder`: the run's, in the corpus."""
    kind = plan.config.launcher.kind
    if kind == "slurm":
        kind = plan.config.launcher.inside  # in a task of an array
    if kind == "inline":
        from launchers import inline

        return inline.run(plan, folder)
    if kind == "ray":
        from launchers import cluster

        return cluster.run(plan, folder)
    from launchers import local

    return local.run(plan, folder)


def where(config: RunConfig, wishes: Wishes) -> Where:
    """How the launcher of a configuration does things. Raises `ConfigError` if it is not to be had here."""
    from launchers.devices import devices
    from pipeline.running import Where

    submit = None
    if config.launcher.kind == "slurm":
        from launchers.slurm.submit import submission

        submit = submission(config, wishes)
    if config.launcher.kind == "ray":
        from launchers.cluster import checked_address

        checked_address(config)
    return Where(launch, lambda: devices()[0], train, submit, jobs_alive)


def train(console: Console, config: RunConfig, fresh: bool = False) -> str | None:
    """Train where the launcher of a configuration says. Returns the run's folder if it was handed to SLURM."""
    from launchers.slurm.training import check_free, submit

    if config.launcher.kind == "slurm":
        return submit(console, config, fresh)
    from pipeline.storage.store import Store
    from pipeline.train.run import settings_of
    from pipeline.train.run import train as train_model

    check_free(Store(config.output), settings_of(config).folder)
    spread = None
    if config.launcher.kind == "ray":
        from launchers.ray_train import spread as over_cluster

        spread = partial(over_cluster, config)
    train_model(console, config, fresh, spread)
    from launchers.devices import devices
    from pipeline.train.evaluation.evaluate import evaluate_trained

    assert config.train
    evaluate_trained(console, config.output, config.train.folder, lambda: devices()[0])
    return None


def is_ray_job(config: RunConfig) -> bool:
    """Whether the run is to be submitted to a cluster's dashboard, not to be followed from here."""
    return config.launcher.kind == "ray" and (config.launcher.address or "").startswith(("http://", "https://"))


def cluster() -> Cluster:
    """What can be asked of the jobs of runs that were handed to SLURM; it is asked only about those."""
    from launchers.slurm import jobs
    from launchers.slurm.submit import jobs_folder, jobs_root
    from pipeline.watch.run_seen import Cluster

    def folder(setting: str | None, output: str, run: str) -> Path:
        return jobs_folder(jobs_root(setting, output), run)

    return Cluster(jobs.states, jobs.cancel, jobs.log_files, folder)


def jobs_alive(jobs: Sequence[str]) -> bool:
    """Whether SLURM still has one of these jobs."""
    from launchers.slurm.jobs import alive

    return alive(jobs)
