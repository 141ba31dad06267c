"""What `pipeline status` shows of trainings."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from launchers.dispatch import slurm_cluster
from pipeline.monitor.trainings import show_trainings
from pipeline.storage.store import Store
from pipeline.training.status import TrainingStatus


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
