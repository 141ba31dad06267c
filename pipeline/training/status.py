"""The state of trainings as it is on disk, for those who start, watch or stop them. Imports no torch.

A training is a folder train/NAME of a corpus. Beside the files of its processes are the record of the SLURM job that it
was given to (`job.json`), and what its processes said when they gave up (`failed.txt`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pipeline.base.errors import CorpusError, visible
from pipeline.storage.records import parse_json, read_json, sealed
from pipeline.storage.store import Store

FOLDER = "train"
RECORD, JOB, FAILED = "run.json", "job.json", "failed.txt"
METRICS, MODEL = "metrics.jsonl", "model.json"
SCALER, WEIGHTS = "scaler.safetensors", "model.safetensors"
IDENTITY = "trackers.json"
CHECKPOINTS, EVALUATION, BOARD, NOT_FINITE = "checkpoints", "evaluation", "tensorboard", "not-finite"
FILES = (MODEL, WEIGHTS, SCALER, METRICS, JOB, FAILED, IDENTITY, RECORD)  # that a training writes
FOLDERS = re.compile(rf"{EVALUATION}|{BOARD}|{NOT_FINITE}|mlflow|wandb|ray-[0-9a-f]{{6}}")  # besides checkpoints
MARKER = re.compile(r"step-(?P<step>[0-9]+)\.json")
BOTH_FROM_CHECKPOINT = f"delete {MODEL} and run pipeline train, which writes both again from the newest checkpoint"
_REMEDY = "restore it from a copy, or start the training over: pipeline train corpus.yaml --fresh"

Numbers = dict[str, Any]


class _Steps(BaseModel):
    steps: int


class _Begun(BaseModel):
    settings: _Steps


Amount = Annotated[float, Field(ge=0, le=1e15)]


class _LogLine(BaseModel):
    """A line of the log, as far as it is used; lines of validations, and of older logs, lack some of the numbers."""

    kind: str
    step: int
    loss: float
    seconds_left: Amount = 0.0
    seconds: Amount = 0.0
    cpu_seconds: Amount = 0.0
    concepts_per_second: Amount = 0.0
    tflops: Amount = 0.0


class EvaluatedModel(BaseModel):
    """A row of a table of `pipeline evaluate`, as far as it is read again. `weights`: digest of the model's, empty of
    unfinished ones, of baselines, and in tables of earlier versions.
    """

    steps: int | None = None
    weights: str = ""
    sampling: dict[str, Any] | None = None
    metrics: dict[str, Any] = Field(default_factory=dict)


class EvaluationTable(BaseModel):
    """What is read again of a table of `pipeline evaluate`. `sentences_asked`: 0 in tables of earlier versions."""

    said: str = ""
    sentences: int = 0
    sentences_asked: int = 0
    models: dict[str, EvaluatedModel]


class Job(BaseModel):
    """A SLURM job that trains. `folder`: of its script and log; `code`: digest of our code where it was submitted;
    `place`, `mark`: of the corpus; empty in records of earlier versions.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[0-9]+(_[0-9]+)?$")]  # scancel would take --me for an option
    folder: str
    code: str
    place: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TrainingStatus:
    """The state of a training.

    `steps`: in the newest checkpoint, of how many; `finished`: the model is written; `failed`: what made it give up.
    `damaged`: what is wrong with its record or its model.
    """

    run: str
    steps: int
    of: int
    finished: bool
    failed: str = ""
    job: Job | None = None
    damaged: str = ""

    @property
    def holds_model(self) -> bool:
        """Whether there is a model, from a finished or an unfinished training."""
        return self.finished or self.steps > 0


def training_status(store: Store, run: str) -> TrainingStatus:
    """Return the state of a training. Raises `MissingError` if it was never begun, `CorpusError` if it is damaged."""
    folder = f"{run}/{CHECKPOINTS}/"
    there = (MARKER.fullmatch(path.removeprefix(folder)) for path in store.find(f"{run}/{CHECKPOINTS}", "step-"))
    steps = [int(found["step"]) for found in there if found]
    of = read_json(store, f"{run}/{RECORD}", _Begun, _REMEDY).settings.steps
    finished = store.exists(f"{run}/{MODEL}")
    return TrainingStatus(run, max(steps, default=0), of, finished, failure_of(store, run), read_job(store, run))


def training_statuses(store: Store) -> list[TrainingStatus]:
    """Return the state of all trainings of a corpus, by name; a damaged one says so and hides no other."""
    runs = [f"{FOLDER}/{name}" for name in store.folders(FOLDER)]
    return [_stands(store, run) for run in runs if store.exists(f"{run}/{RECORD}")]


def without_record(store: Store) -> list[str]:
    """Return trainings that have a model or checkpoints, and no record."""
    runs = [f"{FOLDER}/{name}" for name in store.folders(FOLDER)]
    lost = [run for run in runs if not store.exists(f"{run}/{RECORD}")]
    return [run for run in lost if store.exists(f"{run}/{MODEL}") or store.find(f"{run}/{CHECKPOINTS}", "step-")]


def _stands(store: Store, run: str) -> TrainingStatus:
    try:
        found = training_status(store, run)
    except CorpusError as error:
        return TrainingStatus(run, 0, 0, False, damaged=visible(str(error)))
    if found.finished and not store.exists(f"{run}/{WEIGHTS}"):
        again = BOTH_FROM_CHECKPOINT if found.steps else "train it again (pipeline train --fresh)"
        return replace(found, damaged=f"its {WEIGHTS} is gone; restore it, or {again}")
    return found


def training_in_words(one: TrainingStatus) -> str:
    """Describe the progress of a training."""
    if one.damaged:
        return one.damaged
    return f"trained, {one.of} steps" if one.finished else f"step {one.steps} of {one.of} is saved"


def last_metrics(store: Store, run: str) -> Numbers:
    """Return what a training logged last of its steps; empty if nothing."""
    return next((line for line in reversed(read_metrics(store, run)) if line["kind"] == "train"), {})


def read_metrics(store: Store, run: str) -> list[Numbers]:
    """Return everything that a training logged, by step: `kind` is `train` or `validation`.

    Raises `CorpusError` if the file is damaged; only the log is lost with it.
    """
    path = f"{run}/{METRICS}"
    lines = store.read(path).split(b"\n") if store.exists(path) else []
    where, remedy = f"{store.url}/{path}", "delete it: only the log of that training is lost"
    found: list[Numbers] = []
    for number, line in enumerate(lines, 1):
        if line:
            parse_json(line, _LogLine, f"line {number} of {where}", remedy)
            found.append(parse_json(line, Numbers, f"line {number} of {where}", remedy))
    return found


def read_evaluation(store: Store, path: str) -> EvaluationTable:
    """Read the table of an evaluation beside a model. Raises `DamagedError` for what is none, or was changed."""
    remedy = "delete it; pipeline evaluate makes it again"
    return read_json(store, path, EvaluationTable, remedy)


def read_job(store: Store, run: str) -> Job | None:
    """Return the SLURM job that a training was last given to."""
    path = f"{run}/{JOB}"
    remedy = "delete it, if SLURM runs no job of that training (squeue)"
    return read_json(store, path, Job, remedy) if store.exists(path) else None


def write_job(store: Store, run: str, job: Job) -> None:
    """Record the SLURM job of a training.

    Args:
        store: the corpus.
        run: the folder of the training.
        job: the job's id, and the folder of its logs.
    """
    store.write(f"{run}/{JOB}", sealed(job.model_dump_json(indent=1)))


def record_failure(store: Store, run: str, why: str) -> None:
    """Record why a training ended early; starting it again deletes the record.

    Args:
        store: the corpus.
        run: the folder of the training.
        why: what went wrong, for a person.
    """
    store.write(f"{run}/{FAILED}", why.encode())


def failure_of(store: Store, run: str) -> str:
    """Return why a training ended early, as its processes recorded it; empty if they recorded nothing."""
    path = f"{run}/{FAILED}"
    return store.read(path).decode("utf-8", "replace") if store.exists(path) else ""


def clear_failure(store: Store, run: str) -> None:
    """Delete the record of a failure, because the training is tried again."""
    if store.exists(f"{run}/{FAILED}"):
        store.delete(f"{run}/{FAILED}")
