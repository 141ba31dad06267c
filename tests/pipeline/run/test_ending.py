"""The end of a run, in which it is interrupted or cancelled after its last part: the next run makes up for it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.coordination.lock import ask_to_stop
from pipeline.corpus.runs import newest_run
from pipeline.storage.store import Store
from tests.conftest import MakeConfig
from tests.support.cli import pipeline, said

ACCOUNTING = "pipeline.run.finish.compute_accounting"
REPORT = "pipeline.quality.report.write_report"


def before(patch: pytest.MonkeyPatch, name: str, do: Callable[[], None]) -> None:
    """Do something whenever a function is about to be called."""
    module, _, function = name.rpartition(".")
    called = getattr(__import__(module, fromlist=[function]), function)

    def both(*values: Any, **named: Any) -> Any:
        do()
        return called(*values, **named)

    patch.setattr(name, both)


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_does_not_keep_a_run_from_being_closed(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, second: signal.Signals
) -> None:
    """The record of the run was not closed, so that it was taken for one that was killed."""
    path = make_config(autobleu=None)
    with monkeypatch.context() as patch:
        before(patch, ACCOUNTING, lambda: os.kill(os.getpid(), signal.SIGTERM))
        before(patch, "pipeline.run.run.close_unfinished", lambda: os.kill(os.getpid(), second))
        ended = pipeline("run", path)
    assert ended.returncode == 130 and said(ended).count("Interrupted. Finished work is kept") == 1, said(ended)
    state = said(pipeline("status", tmp_path / "out"))
    assert "was stopped before its end; run the same command again" in state, state


@pytest.mark.parametrize("moment", [ACCOUNTING, REPORT])
@pytest.mark.parametrize("left", [True, False])
def test_interrupted_after_its_last_part(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, left: bool
) -> None:
    """`left`: the run has parts to do; otherwise it is one that finds nothing to do, and writes its report."""
    path, corpus = make_config(report={}, autobleu=None), tmp_path / "out"
    page = corpus / "report/index.html"
    assert pipeline("run", path).returncode == 0
    if left:
        page.write_text("of an earlier run")
        more = ("--set", "scaler={}", "--set", "rvq={codebooks: 2, units: 8}")
    else:
        page.unlink()
        more = ("--set", "report.max_rows=1000")
    with monkeypatch.context() as patch:
        before(patch, moment, lambda: os.kill(os.getpid(), signal.SIGTERM))
        ended = pipeline("run", path, *more)
    assert ended.returncode == 130 and "Interrupted. Finished work is kept" in said(ended), said(ended)
    state = pipeline("status", corpus)
    assert "was stopped before its end; run the same command again" in said(state), said(state)
    plan = pipeline("plan", path, *more)
    assert "report/index.html is written" in said(plan), said(plan)
    again = pipeline("run", path, *more)
    assert again.returncode == 0, said(again)
    state = pipeline("status", corpus)
    assert state.returncode == 0 and "stopped" not in said(state), said(state)
    assert "<html" in page.read_text()
    runs = len(list((corpus / "runs").iterdir()))
    assert pipeline("run", path, *more).returncode == 0 and len(list((corpus / "runs").iterdir())) == runs


def test_cancelled_in_its_accounting(make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_config(autobleu=None, launcher={"kind": "inline", "lease_seconds": 10})
    store = Store(str(tmp_path / "out"))

    def cancel() -> None:
        ask_to_stop(store, newest_run(store))
        time.sleep(600)  # until the next heartbeat

    with monkeypatch.context() as patch:
        before(patch, ACCOUNTING, cancel)
        ended = pipeline("run", path)
    assert ended.returncode == 1 and "stopped: cancelled by" in said(ended), said(ended)
    summary = json.loads(store.read(f"{newest_run(store)}/summary.json"))
    assert summary == {"done": False, "interrupted": True}
    assert pipeline("run", path).returncode == 0
