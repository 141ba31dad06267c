"""The section `launcher` of corpus.yaml: where the work happens. Keys of launchers other than the chosen one are
ignored.
"""

from __future__ import annotations

import math
import re
import shlex
from typing import Literal

from pydantic import field_validator

from stages.stage import Settings, execution

STORAGE_PATIENCE = 1800.0  # seconds


class LauncherSettings(Settings):
    """Settings of all launchers; `kind` (or `--launcher`) chooses one, so a file may describe several."""

    kind: Literal["auto", "local", "inline", "ray", "slurm"] = execution(
        "auto",
        description="auto: inline for a few minutes of work or one worker, else local; inline: this process, and one "
        "beside it that segments; local: Ray on this machine; ray: a Ray cluster; slurm: job arrays",
    )
    segmenters: int | None = execution(None, ge=1, description="processes that segment (default: by the CPUs)")
    parts_in_flight: int = execution(3, ge=1, le=16, description="parts that a worker works on at a time")
    lease_seconds: float = execution(
        120.0, ge=2, description="a worker without a heartbeat for this long loses what it holds"
    )
    storage_patience: float = execution(
        STORAGE_PATIENCE,
        ge=0,
        le=86400,
        description="seconds that a run or a training waits for an object store that is away; then it stops, and SLURM "
        "jobs queue themselves again with a delay (10 minutes, or this if it is less)",
    )

    address: str | None = execution(
        None, description="ray: auto or HOST:6379 (a cluster to join), http://HOST:8265 (where to submit a Ray job)"
    )

    tasks: int = execution(1, ge=1, description="slurm: nodes that work at once, one array task each")
    chunks_per_claim: int = execution(
        50,
        ge=1,
        description="slurm: most chunks that a task claims at a time; local, ray: finished chunks whose receipts are "
        "folded into a ledger at a time",
    )
    array_parallelism: int | None = execution(None, ge=1, description="slurm: tasks of an array that may run at once")
    inside: Literal["local", "inline"] = execution("local", description="slurm: what works inside a task")
    partition: str | None = execution(None, description="slurm: partition")
    gate_partition: str | None = execution(
        None, description="slurm: partition of the small jobs between phases (default: partition)"
    )
    account: str | None = execution(None, description="slurm: account")
    qos: str | None = execution(None, description="slurm: quality of service")
    constraint: str | None = execution(None, description="slurm: features that nodes must have")
    gres: str | None = execution(None, description="slurm: generic resources, e.g. gpu:a100:8")
    gpus_per_node: int | None = execution(None, ge=1, description="slurm: GPUs of a task; each gets a worker")
    train_nodes: int = execution(1, ge=1, description="slurm: nodes that train a model together, in one job")
    cpus_per_task: int | None = execution(None, ge=1, description="slurm: CPUs of a task (default: the site's)")
    memory: str | None = execution(None, description="slurm: memory of a task, e.g. 200G")
    time: str = execution("24:00:00", description="slurm: time limit of a task, [D-]HH:MM:SS or minutes")
    setup: tuple[str, ...] = execution((), description="slurm: shell lines before the worker, e.g. module load cuda")
    container: str | None = execution(
        None,
        description="slurm: the command that runs another in a container, e.g. apptainer exec --nv /images/sonar.sif; "
        "jobs run the python of its image",
    )
    sbatch: dict[str, str | int | bool] = execution({}, description="slurm: further options of sbatch, by long name")
    folder: str | None = execution(
        None, description="slurm: a folder that all nodes see, for scripts and logs (default: in a local output's run)"
    )

    @field_validator("time", mode="before")
    @classmethod
    def _minutes(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @field_validator("time")
    @classmethod
    def _known(cls, value: str) -> str:
        seconds_of(value)
        return value

    @field_validator("container")
    @classmethod
    def _command(cls, value: str | None) -> str | None:
        try:
            words = None if value is None else shlex.split(value)
        except ValueError as error:
            raise ValueError(f"not a command line: {error}") from error
        if words == []:
            raise ValueError("an empty command; leave it out, or give one, e.g. apptainer exec --nv /images/sonar.sif")
        for word in words or ():
            if word.startswith("~") or any(sign in word for sign in "$`;&|<>"):
                raise ValueError(
                    f"{word!r} is taken as it stands, by no shell: write paths out, and give commands that come before "
                    "as launcher.setup"
                )
        return value


def seconds_of(time: str) -> float:
    """Convert a time limit as SLURM writes it to seconds: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S, or infinite."""
    if time.lower() in ("infinite", "unlimited"):
        return math.inf
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if not found:
        raise ValueError(f"{time!r} is not a time limit; write [D-]HH:MM:SS, D-HH, minutes, or infinite")
    days, *rest = found.groups()
    first, second, third = (int(part or 0) for part in rest)
    if days is None and rest[2] is None:  # without days, the first of one or two numbers is minutes
        first, second, third = 0, first, second
    return float(int(days or 0) * 86400 + first * 3600 + second * 60 + third)
