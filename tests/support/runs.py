"""Runs of corpora in this process."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from launchers.dispatch import train
from launchers.launch import launch
from pipeline.config.load import load_config
from pipeline.corpus.events import Event
from pipeline.corpus.runs import RunRecord
from pipeline.planning.plan import Plan, make_plan
from pipeline.run.options import RunOptions
from pipeline.run.run import Backend
from pipeline.run.run import run as run_corpus
from pipeline.storage.store import Store

RVQ = {"codebooks": 3, "units": 32}
FITS = {"fit": {"rows": 100}, "scaler": {}, "rvq": RVQ, "autobleu": None}
NO_WISHES = RunOptions()


def planned(path: Path, *overrides: str) -> tuple[Plan, str]:
    """A plan and the folder of its run."""
    plan = make_plan(load_config(path, overrides))
    return plan, RunRecord(Store(plan.config.output), plan.config, plan.view).folder


def events_of(path: Path, *overrides: str) -> list[Event]:
    """All that happens while a launcher does what a corpus needs."""
    return list(launch(*planned(path, *overrides)))


def bring_up_to_date(path: Path, *overrides: str) -> Plan:
    """Do all that a corpus needs, without the screen, the books and the report of `run`."""
    plan, folder = planned(path, *overrides)
    events = list(launch(plan, folder))
    assert not [event for event in events if event.kind == "failed"], events
    return plan


def run(path: Path, *overrides: str, options: RunOptions = NO_WISHES) -> str:
    """`pipeline run` in this process; what it printed."""
    shown = io.StringIO()
    run_corpus(
        Console(file=shown, width=160), load_config(path, overrides), options, Backend(launch, lambda: "cpu", train)
    )
    return shown.getvalue()
