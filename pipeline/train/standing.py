"""How runs of training stand, by what is on disk: for those who start them, watch them and stop them. No torch.

A run of training is a folder train/NAME of a corpus. Beside what its processes write lie the record of the SLURM job
that it was given to (`job.json`), and what its processes said when they gave up (`failed.txt`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipeline.storage.store import Store

FOLDER = "train"
RECORD, JOB, FAILED = "run.json", "job.json", "failed.txt"
METRICS, MODEL = "metrics.jsonl", "model.json"
SCALER, WEIGHTS = "scaler.safetensors", "model.safetensors"
CHECKPOINTS = "checkpoints"

Numbers = dict[str, Any]


class Job(BaseModel):
    """A SLURM job that trains. folder: of its script and log; code: digest of ours, where it was submitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    folder: str
    code: str


@dataclass(frozen=True)
class Standing:
    """steps: in the newest checkpoint, of how many; finished: the model is written; failed: what made it give up."""

    run: str
    steps: int
    of: int
    finished: bool
    failed: str = ""
    job: Job | None = None

    @property
    def holds_model(self) -> bool:
        """Whether there is one to look at, trained to the end or not."""
        return self.finished or self.steps > 0


def standing(store: Store, run: str) -> Standing:
    """How a run of training stands. Raises `MissingError` if it was never begun."""
    there = store.find(f"{run}/{CHECKPOINTS}", "step-")
    steps = [int(path.rpartition("-")[2].removesuffix(".json")) for path in there if path.endswith(".json")]
    settings = json.loads(store.read(f"{run}/{RECORD}"))["settings"]
    failed = store.read(f"{run}/{FAILED}").decode() if store.exists(f"{run}/{FAILED}") else ""
    finished = store.exists(f"{run}/{MODEL}")
    return Standing(run, max(steps, default=0), settings["steps"], finished, failed, read_job(store, run))


def standings(store: Store) -> list[Standing]:
    """Of all runs of training of a corpus, by name."""
    runs = [f"{FOLDER}/{name}" for name in store.folders(FOLDER)]
    return [standing(store, run) for run in runs if store.exists(f"{run}/{RECORD}")]


def last_metrics(store: Store, run: str) -> Numbers:
    """What a run of training logged last of its steps; empty if nothing."""
    return next((line for line in reversed(read_metrics(store, run)) if line["kind"] == "train"), {})


def read_metrics(store: Store, run: str) -> list[Numbers]:
    """Everything that a run of training logged, by step: `kind` is `train` or `validation`."""
    path = f"{run}/{METRICS}"
    return [json.loads(line) for line in store.read(path).splitlines()] if store.exists(path) else []


def read_job(store: Store, run: str) -> Job | None:
    """The SLURM job that a run of training was given to last."""
    path = f"{run}/{JOB}"
    return Job.model_validate_json(store.read(path)) if store.exists(path) else None


def write_job(store: Store, run: str, job: Job) -> None:
    """Record it."""
    store.write(f"{run}/{JOB}", job.model_dump_json(indent=1).encode())


def gave_up(store: Store, run: str, why: str) -> None:
    """Say why a run of training ended before its time; starting again takes it back."""
    store.write(f"{run}/{FAILED}", why.encode())


def start_again(store: Store, run: str) -> None:
    """Whatever made it give up before, it is tried again."""
    if store.exists(f"{run}/{FAILED}"):
        store.delete(f"{run}/{FAILED}")
