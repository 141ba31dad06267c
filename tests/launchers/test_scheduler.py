"""What a scheduler job concludes from the phase before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launchers.slurm import jobs, scheduler
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.planning.plan import make_plan
from pipeline.run.phases import phase_folder, write_phase
from tests.conftest import MakeConfig
from tests.support.workers import SLURM, order_phase


@pytest.mark.parametrize(
    ("ended", "told"),
    [({}, "said nothing$"), ({"7": "OUT_OF_MEMORY"}, r"SLURM: OUT_OF_MEMORY\); give it more launcher.memory$")],
)
def test_a_fit_that_is_killed_again_and_again_ends_the_run(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, ended: dict[str, str], told: str
) -> None:
    path = make_config(launcher=SLURM, scaler={})
    store, run, _ = order_phase(path)
    plan = make_plan(load_config(path))
    monkeypatch.setattr(jobs, "states", lambda asked: ended)
    for number in range(2, 2 + scheduler.DEATHS):
        write_phase(store, phase_folder(run, number), plan, "fit", ())
        record = json.dumps({"array": ["7"], "gate": ["8"]}).encode()
        store.write(f"{phase_folder(run, number)}/{scheduler.JOBS}", record)
        if number < 1 + scheduler.DEATHS:
            assert scheduler._phases_before(store, run, number + 1, set())[0] == ""  # it is queued again
    with pytest.raises(CorpusError, match=rf"^fit: its task was lost {scheduler.DEATHS} times in a row.*{told}"):
        scheduler._phases_before(store, run, number + 1, set())


def test_a_scheduler_job_that_nobody_recorded_does_nothing(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store, _, folder = order_phase(make_config(launcher=SLURM))
    monkeypatch.setattr(scheduler, "RECORDED_WITHIN", 0.0)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert not scheduler._is_expected(store, folder)
    for gate, expected in (("8", True), ("9", False)):
        store.write(f"{folder}/{scheduler.JOBS}", json.dumps({"array": ["7"], "gate": [gate]}).encode())
        assert scheduler._is_expected(store, folder) is expected
