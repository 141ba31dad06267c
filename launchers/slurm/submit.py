"""Hands a run to SLURM: a chain of jobs, each of which decides the next from receipts.

    scheduler job 1 → array of phase 1 → scheduler job 2 → array of phase 2 → … → the last one ends the run

An array's tasks claim shards by leases, so they need no plan and may come, go and be restarted. A scheduler job follows
its array however that ended (`afterany`). The first scheduler job is alone in the queue: it runs on a node of the
cluster, so a node that does not see the corpus or has other code is found before anything else is queued.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from launchers.slurm import jobs
from launchers.slurm.site import SlurmError
from pipeline.base.errors import ConfigError
from pipeline.config.run_config import RunConfig
from pipeline.coordination.identity import check_identity, identity
from pipeline.coordination.leases import Lease
from pipeline.coordination.lock import holder_info, set_holder
from pipeline.corpus.runs import RunRecord
from pipeline.run.options import RunOptions
from pipeline.run.run import Submit
from pipeline.storage.records import read_json
from pipeline.storage.remote import is_remote
from pipeline.storage.store import Store

OPTIONS_FILE = "wishes.json"


class _Options(BaseModel):
    only: str | None
    until: str | None
    refit: list[str]
    identity: dict[str, str]
    strict: bool = False


def submission(config: RunConfig, options: RunOptions) -> Submit:
    """Return a function that hands a run over. Raises `ConfigError` if SLURM is not here, or refuses these settings."""
    jobs.check(config.launcher)
    root = jobs_root(config.launcher.folder, config.output)

    def submit(record: RunRecord, lease: Lease) -> None:
        asked = {
            "only": options.only, "until": options.until, "refit": list(options.refit), "identity": identity(config),
            "strict": options.strict,
        }  # fmt: skip
        record.store.write(f"{record.folder}/{OPTIONS_FILE}", json.dumps(asked).encode())
        submit_scheduler(config, record.store, record.folder, 1, jobs_folder(root, record.folder), (), lease)

    return submit


def read_options(store: Store, run: str, config: RunConfig) -> RunOptions:
    """Return the options with which a run was submitted.

    Args:
        store: the corpus.
        run: the folder of the run.
        config: the configuration; `StartError` is raised if code or models differ on this node.

    Returns:
        The options.
    """
    asked = read_json(store, f"{run}/{OPTIONS_FILE}", _Options, f"pipeline cancel {store.url}, then run again")
    check_identity(asked.identity, config)
    return RunOptions(asked.only, asked.until, tuple(asked.refit), strict=asked.strict)


def submit_scheduler(
    config: RunConfig, store: Store, run: str, number: int, folder: Path, after: Sequence[str], lock: Lease
) -> tuple[str, ...]:
    """Queue the scheduler job that decides what a phase is; its jobs hold the run's lock from now on.

    Args:
        config: the configuration.
        store: the corpus.
        run: the folder of the run.
        number: the number of the phase.
        folder: the folder of scripts and logs.
        after: job ids; the job starts when all of them are over.
        lock: the lock of the run.

    Returns:
        The ids of the job.
    """
    command = pipeline_command(
        config.launcher.container, "gate", store.url, run, str(number), "--folder", str(folder), "--lock", lock.path,
        *patience_of(config),
    )  # fmt: skip
    ids: tuple[str, ...] = jobs.submit(command, config.launcher, folder, f"gate-{number}", after=after, small=True)
    try:
        where = {"place": store.place, "mark": store.mark}
        who = holder_info(launcher="slurm", run=run, jobs=[*after, *ids], folder=str(folder), **where)
        set_holder(lock, who)
    except BaseException:
        with contextlib.suppress(SlurmError):  # the first error is the one to report
            jobs.cancel(ids)
        raise
    return ids


def patience_of(config: RunConfig) -> tuple[str, str]:
    """Return the option that tells a job how long to wait for a store that is away."""
    return "--patience", str(config.launcher.storage_patience)


def python(container: str | None) -> list[str]:
    """Return the command that starts Python in a job: this very one, or that of the image of `launcher.container`."""
    return [*shlex.split(container), "python"] if container else [sys.executable]


def pipeline_command(container: str | None, *arguments: str) -> list[str]:
    """Return the command line of this program for another machine. `container`: `launcher.container`."""
    return [*python(container), "-m", "pipeline.cli", *arguments]


def jobs_root(folder: str | None, output: str) -> Path:
    """Return the folder for scripts and logs of jobs, which all nodes see. `folder`: launcher.folder.

    Raises `ConfigError` if there is none.
    """
    if folder:
        return Path(folder).expanduser().absolute()
    if is_remote(output):
        raise ConfigError(
            "launcher.folder is missing: the output is an object store, so give a folder that all nodes see, for the "
            "jobs' scripts and logs, e.g. --set launcher.folder=$HOME/pipeline-jobs"
        )
    return Path(output.removeprefix("file://")) / "jobs"


def jobs_folder(root: Path, run: str) -> Path:
    """Return the folder for the jobs of a run."""
    return root / Path(run).name
