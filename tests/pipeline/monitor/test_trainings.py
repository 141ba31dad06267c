"""What `pipeline status` shows of trainings."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from launchers.dispatch import slurm_cluster
from launchers.slurm import jobs, training
from launchers.slurm.site import SlurmError
from pipeline.monitor import trainings
from pipeline.monitor.run_status import Cluster
from pipeline.monitor.trainings import cancel_trainings, show_trainings
from pipeline.storage.store import Store
from pipeline.training.status import MODEL, RECORD, WEIGHTS, Job, TrainingStatus


def test_of_many_trainings_those_are_shown_that_are_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [TrainingStatus(f"train/{number:02}", 6, 6, number != 1) for number in range(14)]
    monkeypatch.setattr("pipeline.monitor.trainings.training_statuses", lambda store: every)
    shown = io.StringIO()
    assert show_trainings(Console(file=shown, width=300), Store(str(tmp_path)), slurm_cluster())
    lines = shown.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines[:-1]] == [f"train/{one:02}" for one in (1, *range(5, 14))]
    assert lines[-1] == "… and 4 more (pipeline status --json lists all trainings)"
    every[0] = TrainingStatus("train/00", 0, 6, False, damaged="its record is damaged")
    assert not show_trainings(Console(quiet=True), Store(str(tmp_path)), slurm_cluster())


def test_a_model_without_its_weights_is_not_called_trained(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for file, data in ((RECORD, b'{"settings": {"steps": 6}}'), (MODEL, b"{}"), (WEIGHTS, b"")):
        store.write(f"train/x/{file}", data)

    def shown() -> tuple[bool, str]:
        file = io.StringIO()
        return show_trainings(Console(file=file, width=300), store, slurm_cluster()), file.getvalue()

    assert shown() == (True, "train/x: trained, 6 steps\n")
    store.delete(f"train/x/{WEIGHTS}")
    fine, told = shown()
    assert not fine and told.startswith("train/x: its model.safetensors is gone; restore it, or train it again")
    store.write("train/x/checkpoints/step-00000006.json", b"")
    assert "restore it, or delete model.json and run pipeline train" in shown()[1]


AWAY = "squeue: Unable to contact slurm controller (connect failure)"


def away(asked: Sequence[str]) -> dict[str, str]:
    raise SlurmError(AWAY)


def cluster(states: Callable[[Sequence[str]], dict[str, str]], cancel: Callable[[Sequence[str]], object]) -> Cluster:
    return Cluster(states, lambda asked: (cancel(asked), None)[1], lambda *_: [], lambda *_: Path())


@pytest.fixture
def on_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    """A corpus whose only training is in the middle of its work in a job of SLURM."""
    one = TrainingStatus("train/x", 2, 6, False, job=Job(id="205", folder="/logs", code="", place=str(tmp_path)))
    monkeypatch.setattr(trainings, "training_statuses", lambda store: [one])
    monkeypatch.setattr(training, "training_status", lambda store, run: one)
    monkeypatch.setattr(training, "read_job", lambda store, run: one.job)
    monkeypatch.setattr(trainings, "GRACE_SECONDS", 2.0)
    monkeypatch.setattr(training, "POLL_SECONDS", 0.0)
    return Store(str(tmp_path))


@pytest.mark.parametrize("reached", [True, False])
def test_what_slurm_does_not_tell_of_a_job_is_not_taken_for_its_end(on_slurm: Store, reached: bool) -> None:
    asked: list[str] = []
    slurm, shown = cluster(away, asked.extend if reached else away), io.StringIO()
    assert show_trainings(Console(file=shown, width=300), on_slurm, slurm)
    assert f"SLURM job 205, whose state is not known ({AWAY})" in shown.getvalue()
    assert not cancel_trainings(Console(file=shown, width=300), on_slurm, slurm)
    assert set(asked) == ({"205"} if reached else set())
    what = "has been cancelled, but whether it is over is not known" if reached else "could not be cancelled"
    assert f"train/x: SLURM job 205 {what} ({AWAY}), so it may train on: run pipeline cancel again" in shown.getvalue()
    forgotten, shown = cluster(lambda asked: {}, away), io.StringIO()
    assert cancel_trainings(Console(file=shown), on_slurm, forgotten) and not shown.getvalue()


def test_a_copy_of_a_corpus_does_not_end_the_training_of_the_original(on_slurm: Store, tmp_path: Path) -> None:
    asked: list[str] = []
    slurm, shown = cluster(lambda jobs: dict.fromkeys(jobs, "RUNNING"), asked.extend), io.StringIO()
    assert not cancel_trainings(Console(file=shown, width=300), Store(str(tmp_path / "copy")), slurm)
    assert not asked
    assert f"train/x: it names SLURM job 205, queued for {tmp_path}, not for this copy" in shown.getvalue()
    assert not cancel_trainings(Console(file=shown, width=300), on_slurm, slurm)
    assert set(asked) == {"205"}


def test_who_waits_for_a_training_bears_a_slurm_that_does_not_answer(
    on_slurm: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[SlurmError | str] = [SlurmError(AWAY), SlurmError(AWAY), "RUNNING", SlurmError(AWAY), "CANCELLED"]

    def states(asked: Sequence[str]) -> dict[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, SlurmError):
            raise answer
        return dict.fromkeys(asked, answer)

    monkeypatch.setattr(jobs, "states", states)
    shown = io.StringIO()
    assert not training.follow(Console(file=shown, width=300), on_slurm.url, "train/x")
    assert not answers and shown.getvalue().count(f"SLURM does not report on its job: {AWAY}") == 2


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("OUT_OF_MEMORY", " ended as OUT_OF_MEMORY: give it more launcher.memory; "),
        ("TIMEOUT", " ended as TIMEOUT: "),
        ("NODE_FAIL", " ended as NODE_FAIL: see its log /logs/205.log; "),
        ("", " is over: see its log /logs/205.log; "),
    ],
)
def test_how_a_job_ended_that_did_not_finish_its_training(
    on_slurm: Store, monkeypatch: pytest.MonkeyPatch, state: str, advice: str
) -> None:
    def states(asked: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(asked, state) if state else {}

    monkeypatch.setattr(jobs, "states", states)
    shown = io.StringIO()
    assert not training.follow(Console(file=shown, width=300), on_slurm.url, "train/x")
    assert show_trainings(Console(file=shown, width=300), on_slurm, cluster(states, away))
    assert shown.getvalue().count(f"SLURM job 205{advice}pipeline train corpus.yaml goes on from step 2\n") == 2
