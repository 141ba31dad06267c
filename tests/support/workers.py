"""Phases of a run, workers that bring them to their end, and what is seen of them from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.config.load import load_config
from pipeline.corpus.runs import RunRecord
from pipeline.monitor.run_status import RunState, RunWatcher
from pipeline.planning.plan import make_plan
from pipeline.run.phases import phase_folder, write_phase
from pipeline.storage.store import Store
from tests.conftest import MakeConfig
from tests.support.processes import Process, start

LEASE_SECONDS = 2
SLURM = {"kind": "slurm", "inside": "inline", "chunks_per_claim": 2, "tasks": 2, "lease_seconds": LEASE_SECONDS}
SHORT = {"method": "spacy-capped", "max_chars": 20}


def order_phase(path: Path, *overrides: str) -> tuple[Store, str, str]:
    """A main pass for workers: the store, the run's folder, the phase's."""
    plan = make_plan(load_config(path, overrides))
    store = Store(plan.config.output)
    record = RunRecord(store, plan.config, plan.view)
    folder = phase_folder(record.folder, 1)
    write_phase(store, folder, plan, "main", ())
    return store, record.folder, folder


def start_worker(store: Store, folder: str) -> Process:
    """`pipeline worker` on a phase."""
    return start("worker", store.url, folder)


def light(make_config: MakeConfig) -> Path:
    """Of many short sentences, for workers that claim a chunk at a time."""
    return make_config(launcher=SLURM | {"chunks_per_claim": 1}, autobleu=None, segment=SHORT)


def until(watcher: RunWatcher, what: Callable[[RunState], Any]) -> RunState:
    """What is seen once it is so."""
    deadline = time.monotonic() + 600  # of a busy machine
    while True:
        state = watcher.poll()
        if state and what(state):
            return state
        assert time.monotonic() < deadline, state
        time.sleep(0.02)
