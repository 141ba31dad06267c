"""Trainings of a corpus, for `plan`, `status`, `logs` and `cancel`: the progress of each, and the job that has it."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pipeline.base.errors import CorpusError, PipelineError, visible
from pipeline.base.formats import duration, last_few
from pipeline.base.messages import print_plain
from pipeline.coordination.lock import described, not_its_own, training_holder
from pipeline.monitor.run_status import ADVICE, OVER, Cluster, last_lines
from pipeline.storage.store import Store
from pipeline.training.status import (
    Numbers,
    TrainingStatus,
    last_metrics,
    read_metrics,
    training_in_words,
    training_statuses,
)

GRACE_SECONDS = 60.0  # for a job's processes to save a checkpoint and end; SLURM kills them after its KillWait


def show_trainings(console: Console, store: Store, cluster: Cluster) -> bool:
    """Print a line for each training, and why it failed if it did. If there are many, rather for those that are
    not finished.

    Args:
        console: where the lines are printed.
        store: the corpus.
        cluster: answers what state a SLURM job is in.

    Returns:
        False if a training failed, or its files are damaged.
    """
    every = sorted(training_statuses(store), key=lambda one: not one.finished or bool(one.damaged))
    shown, more = last_few(every, "pipeline status --json lists all trainings")
    fine = not any(one.damaged or (one.failed and not one.finished) for one in every)
    for one in sorted(shown, key=lambda one: one.run):
        if one.damaged:
            console.print(Text(f"{one.run}: {one.damaged}", style="red"), soft_wrap=True)
            continue
        said = [training_in_words(one)]
        last = {} if one.finished else _last(store, one.run)
        if "damaged" in last:
            said.append(last["damaged"])
            last, fine = {}, False
        if last:
            said.append(f"loss {last['loss']:.4f} at step {last['step']}")
        if by := training_holder(store, one.run):
            said.append(f"being trained {described(by)}")
        state, unknown = ("", "") if one.finished else _state(one, cluster)
        ended = "" if by or unknown else how_it_ended(one, state)
        if one.job and unknown:
            said.append(f"SLURM job {one.job.id}, whose state is not known ({unknown})")
        elif one.job and state and not ended:
            said.append(f"SLURM job {one.job.id} {state}, log {one.job.folder}/{one.job.id}.log")
            if last and state == "RUNNING":
                said.append(f"{duration(last['seconds_left'])} left")
        console.print(Text(f"{one.run}: {', '.join(said)}"), soft_wrap=True)
        if one.failed and not one.finished:
            console.print(Text(f"  {one.failed}", style="red"), soft_wrap=True)
        elif ended:
            console.print(Text(f"  {ended}", style="yellow"), soft_wrap=True)
    if more:
        console.print(more, markup=False, highlight=False)
    return fine


def show_training(console: Console, store: Store, cluster: Cluster, name: str, tail: int) -> None:
    """Show the newest lines of a training: losses, why it failed, the log of its SLURM job.

    Args:
        console: where they are shown.
        store: the corpus.
        cluster: knows the files of a job's log.
        name: the name of the training.
        tail: how many lines are shown of each.

    Raises:
        CorpusError: if there is no such training.
    """
    found = {one.run.rpartition("/")[2]: one for one in training_statuses(store)}
    if name not in found:
        raise CorpusError(
            f"--training {name}: there is no such training; {store.url} has: {', '.join(found) or 'none'}"
        )
    one = found[name]
    for line in read_metrics(store, one.run)[-tail:]:
        console.print(f"step {line['step']} {line['kind']}: loss {line['loss']:.4f}", markup=False, highlight=False)
    if one.failed:
        console.print(Text(visible(one.failed), style="red"), soft_wrap=True)
    for log in cluster.logs(Path(one.job.folder), one.job.id) if one.job else ():
        console.print(Text(f"{log}:", "bold"), soft_wrap=True)
        for said in last_lines(log, tail):
            console.print(Text(f"  {visible(said)}"), soft_wrap=True)
    console.print(Text(f"{one.run}: {training_in_words(one)}"), soft_wrap=True)


def cancel_trainings(console: Console, store: Store, cluster: Cluster) -> bool:
    """Cancel SLURM jobs that train on a corpus, and name training processes, which their users have to stop.

    A job may queue itself again just when it is cancelled. So this waits until the jobs are over, and cancels those
    that came back.

    Args:
        console: where is shown what was cancelled.
        store: the corpus.
        cluster: cancels SLURM jobs.

    Returns:
        False if a job is not over, although it was cancelled, or not known to be over, or if a record names one that
            works on another corpus.
    """
    found, others = [], False
    for one in training_statuses(store):
        if one.job and not one.finished and not _is_over(one, cluster):
            if told := not_its_own(store, [one.job.id], one.job.place, one.job.mark):
                print_plain(console, f"{one.run}: {told}")
                others = True
            else:
                found.append(one)
        if by := training_holder(store, one.run):
            print_plain(console, f"{one.run}: is trained {described(by)}: press Ctrl-C there, or send it SIGTERM")
    deadline = time.monotonic() + GRACE_SECONDS
    left, times_over, refused = found, 0, ""
    while found and times_over < 2 and not refused and time.monotonic() < deadline:
        if left:
            try:
                cluster.cancel([one.job.id for one in left if one.job])
            except PipelineError as error:
                refused = visible(str(error))
        time.sleep(1.0)
        left = [one for one in found if not _is_over(one, cluster)]
        times_over = 0 if left else times_over + 1
    for one in found:
        assert one.job
        said = _left(one, cluster, refused) if one in left else "is cancelled"
        print_plain(
            console,
            f"{one.run}: SLURM job {one.job.id} {said}; checkpoints are kept: pipeline train goes on from there",
        )
    return not left and not others


def _left(one: TrainingStatus, cluster: Cluster, refused: str) -> str:
    """Say what is known of a job that is not known to be over. `refused`: why it could not be cancelled."""
    again = "so it may train on: run pipeline cancel again once SLURM answers"
    if refused:
        return f"could not be cancelled ({refused}), {again}"
    if unknown := _state(one, cluster)[1]:
        return f"has been cancelled, but whether it is over is not known ({unknown}), {again}"
    return "has been cancelled, but is not over yet"


def how_it_ended(one: TrainingStatus, state: str) -> str:
    """Return how the job of a training ended and what to do, if the training is not finished and no process recorded
    why; empty otherwise. `state`: SLURM's word for the job; empty if SLURM has forgotten it.
    """
    if one.finished or one.failed or not one.job or not is_over(state):
        return ""
    how = f" ended as {state}" if state else " is over"
    todo = [f"pipeline train corpus.yaml goes on from step {one.steps}"]
    if state not in ("CANCELLED", "TIMEOUT"):
        todo.insert(0, ADVICE.get(state, f"see its log {one.job.folder}/{one.job.id}.log"))
    return f"SLURM job {one.job.id}{how}: {'; '.join(todo)}"


def is_over(state: str) -> bool:
    """Return whether a job is over, by SLURM's word for its state; empty if SLURM has forgotten it."""
    return state.split(" ")[0] in ("", *OVER)


def _last(store: Store, run: str) -> Numbers:
    """Return the last logged step; or what is wrong with the log, if it cannot be read."""
    try:
        return last_metrics(store, run)
    except CorpusError as error:
        return {"damaged": visible(str(error))}


def _is_over(one: TrainingStatus, cluster: Cluster) -> bool:
    """Return whether SLURM says that the job is over; if it does not answer, it is not known to be."""
    state, unknown = _state(one, cluster)
    return not unknown and is_over(state)


def _state(one: TrainingStatus, cluster: Cluster) -> tuple[str, str]:
    """Return SLURM's state of the job, and why it waits (empty if SLURM has forgotten it); and why that is not known
    (empty if it is).
    """
    try:
        return cluster.states([one.job.id]).get(one.job.id, "") if one.job else "", ""
    except PipelineError as error:
        return "", visible(str(error))
