"""Selects how the launcher of a configuration runs, trains, and answers questions about its jobs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.base.errors import ConfigError
from pipeline.base.extras import missing_extras

if TYPE_CHECKING:
    from rich.console import Console

    from pipeline.config.run_config import RunConfig
    from pipeline.monitor.run_status import Cluster
    from pipeline.run.options import RunOptions
    from pipeline.run.run import Backend


def backend_of(config: RunConfig, options: RunOptions) -> Backend:
    """Return the backend of a configuration's launcher. Raises `ConfigError` if it is not available here."""
    check_packages(config)
    from launchers.devices import devices
    from launchers.launch import Launching, choose
    from pipeline.run.run import Backend

    submit = None
    if config.launcher.kind == "slurm":
        from launchers.slurm.submit import submission

        submit = submission(config, options)
    if config.launcher.kind == "ray":
        from launchers.ray_cluster import checked_address

        checked_address(config)
    launching = Launching()
    return Backend(launching, lambda: devices()[0], train, submit, jobs_alive, choose, launching.close)


def check_packages(config: RunConfig) -> None:
    """Raise `ConfigError` where the Python that computes, which is this one, lacks packages that a run needs, and
    `CardError` where it lacks models.
    """
    sections = {"train": config.train, "report": config.report, "ray": config.launcher.kind in ("local", "ray")}
    lacking = missing_extras(["encode", *(extra for extra, asked in sections.items() if asked)])
    if lacking:
        raise ConfigError(lacking)
    from launchers.weights import check_shipped

    check_shipped(config)
    if config.fragility:
        from stages.fragility.card import load_external_card

        load_external_card(config.fragility.external).check_package()
    if config.plans and config.plans.lm:
        from stages.causal_lm import load_language_card

        load_language_card(config.plans.lm).check_package()


def check_launcher(config: RunConfig) -> None:
    """Raise `ConfigError` for a section `launcher` that cannot work; SLURM is asked only on machines that have it."""
    if config.launcher.kind == "ray":
        from launchers.ray_cluster import checked_address

        checked_address(config)
    if config.launcher.kind == "slurm" and shutil.which("sbatch"):
        from launchers.slurm import jobs

        jobs.check(config.launcher)


def train(console: Console, config: RunConfig, fresh: bool = False) -> str | None:
    """Train where the launcher of a configuration says.

    Args:
        console: where progress is shown.
        config: the configuration, with a section `train`.
        fresh: whether what was trained under that name is deleted first.

    Returns:
        The folder of the training if it was handed to SLURM; None if it is done.

    Raises:
        CardError: if the model will be evaluated, and a model that ships is not installed here.
    """
    from launchers.slurm.training import check_free, submit
    from launchers.weights import check_shipped

    if config.train and config.train.evaluate_sentences:  # at the end, when it would be late to miss a decoder
        check_shipped(config)
    if config.launcher.kind == "slurm":
        return submit(console, config, fresh)
    from pipeline.storage.store import Store
    from pipeline.training.run import settings_of
    from pipeline.training.run import train as train_model

    check_free(Store(config.output), settings_of(config).folder)
    spread = None
    if config.launcher.kind == "ray":
        from launchers.ray_train import spread as over_cluster

        spread = partial(over_cluster, config)
    train_model(console, config, fresh, spread)
    from launchers.devices import devices
    from pipeline.training.evaluation.end_of_training import evaluate_trained

    assert config.train
    evaluate_trained(console, config.output, config.train.folder, lambda: devices()[0])
    return None


def is_ray_job(config: RunConfig) -> bool:
    """Return whether the run is submitted to a cluster's dashboard instead of being driven from here."""
    return config.launcher.kind == "ray" and (config.launcher.address or "").startswith(("http://", "https://"))


def slurm_cluster() -> Cluster:
    """Return what SLURM can be asked about the jobs of runs that were handed to it.

    Its modules are imported at the first question: most corpora have no jobs.
    """
    from pipeline.monitor.run_status import Cluster

    def states(asked: Sequence[str]) -> dict[str, str]:
        from launchers.slurm import jobs

        return jobs.states(asked)

    def cancel(ended: Sequence[str]) -> None:
        from launchers.slurm import jobs

        jobs.cancel(ended)

    def logs(folder: Path, job: str) -> list[Path]:
        from launchers.slurm import jobs

        return jobs.log_files(folder, job)

    def folder(setting: str | None, output: str, run: str) -> Path:
        from launchers.slurm.submit import jobs_folder, jobs_root

        return jobs_folder(jobs_root(setting, output), run)

    return Cluster(states, cancel, logs, folder)


def jobs_alive(jobs: Sequence[str]) -> bool:
    """Return whether SLURM still has one of these jobs."""
    from launchers.slurm.jobs import alive

    return alive(jobs)
