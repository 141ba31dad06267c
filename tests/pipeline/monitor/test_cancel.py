"""Stopping a run wherever it works, and going on afterwards."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from launchers.dispatch import slurm_cluster
from launchers.slurm.jobs import alive
from pipeline.coordination.leases import MOST_JOBS
from pipeline.coordination.lock import CANCEL, ask_to_stop, holder_info, locked, set_holder, take_lock, who_stopped
from pipeline.corpus.runs import SUMMARY
from pipeline.monitor.cancel import cancel
from pipeline.monitor.follow import show_run
from pipeline.monitor.run_status import Cluster, RunWatcher
from pipeline.storage.store import Store
from tests.conftest import MakeConfig
from tests.support.cli import pipeline, said
from tests.support.processes import start
from tests.support.workers import SHORT, SLURM, light, order_phase, start_worker, until


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a busy machine does in its own time is waited for: Ray, which cannot be stopped while it starts, may take
    a minute.
    """
    monkeypatch.setattr("pipeline.monitor.cancel.GRACE_SECONDS", 600.0)


def summary(store: Store, run: str) -> dict[str, object]:
    value: dict[str, object] = json.loads(store.read(f"{run}/{SUMMARY}"))
    return value


def goes_on(path: Path) -> None:
    again = pipeline("run", path, "--launcher", "inline")
    assert again.returncode == 0 and "done in" in again.stdout, again


def test_nothing_to_cancel(make_config: MakeConfig) -> None:
    path = make_config()
    assert pipeline("run", path, "--until", "segment").returncode == 0
    shown = pipeline("cancel", path)
    assert shown.returncode == 0 and "Nothing to cancel" in shown.stdout, shown


def test_what_is_no_run_is_named_and_goes_on(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config()
    assert pipeline("run", path, "--until", "segment").returncode == 0
    store, shown = Store(str(tmp_path / "out")), Console(file=io.StringIO(), width=300)
    with locked(store, "gc") as lease:
        assert not cancel(shown, store, slurm_cluster())
        assert show_run(shown, store, slurm_cluster()) and lease.beat()
    assert isinstance(shown.file, io.StringIO)
    told = shown.file.getvalue()
    assert f"pipeline gc --delete: process {os.getpid()} of " in told and "only runs can be cancelled" in told, told
    assert "no run is under way" in told and "planned" not in told and "launched" not in told, told


@pytest.mark.usefixtures("patient")
def test_a_run_of_this_machine_stops_and_goes_on(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(segment=SHORT, launcher={"kind": "inline", "lease_seconds": 2}, autobleu={"sample": 1.0})
    assert pipeline("run", path, "--until", "segment").returncode == 0
    run = start("run", path, apart=True)
    store = Store(str(tmp_path / "out"))
    state = until(RunWatcher(store, slurm_cluster()), lambda one: not one.over and one.phases)
    assert cancel(Console(), store, slurm_cluster())
    _, said = run.communicate(timeout=600)
    assert run.returncode == 1 and "stopped: cancelled" in said, said
    ended = summary(store, state.run)
    assert ended["interrupted"] and not ended["done"]
    status = pipeline("status", path)
    assert status.returncode == 0 and re.search(
        r"was cancelled by \S+ on \S+ at [0-9:]+ UTC before its end", status.stdout
    ), status
    goes_on(path)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_a_run_that_is_cancelled_while_ray_starts_says_so(make_config: MakeConfig, tmp_path: Path) -> None:
    """Ray's own handler of SIGTERM would end it without a word, with code 15."""
    path = make_config(segment=SHORT, launcher={"kind": "local", "lease_seconds": 2})
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as base:
        command = [sys.executable, "-m", "pipeline", "run", str(path)]  # no fork, which would know another TMPDIR
        run = subprocess.Popen(command, env=os.environ | {"TMPDIR": base}, stderr=subprocess.PIPE, text=True)
        while not list(Path(base).glob("ray-*/0")) and run.poll() is None:  # it begins to start
            time.sleep(0.02)
        assert cancel(Console(), Store(str(tmp_path / "out")), slurm_cluster())
        _, said = run.communicate(timeout=600)
        told = re.search("stopped: cancelled by .*; finished work is kept", said)
        assert run.returncode == 1 and told, (run.returncode, said)
        assert not list(Path(base).glob("ray-*"))
    goes_on(path)


def test_a_run_of_another_machine_is_asked_and_given_up_when_it_is_silent(make_config: MakeConfig) -> None:
    path = make_config(launcher={"kind": "inline", "lease_seconds": 2})
    store, run, _ = order_phase(path)
    who = holder_info(launcher="inline", host="elsewhere", run=run)
    lease = take_lock(store, 2, who)
    set_holder(lease, who)
    over = threading.Event()

    def beats() -> None:  # for a while, as a process does that hears of it late
        for _ in range(8):
            lease.beat()
            over.wait(0.25)

    thread = threading.Thread(target=beats)
    thread.start()
    started = time.monotonic()
    shown = pipeline("cancel", path)
    over.set()
    thread.join()
    assert shown.returncode == 0 and "elsewhere" in shown.stdout, shown
    assert time.monotonic() - started > 2 and store.exists(f"{run}/{CANCEL}")
    assert summary(store, run)["interrupted"]
    goes_on(path)


@pytest.mark.usefixtures("slurm", "patient")
def test_a_run_on_slurm_stops_and_goes_on(make_config: MakeConfig, tmp_path: Path) -> None:
    path = light(make_config)
    config = path.read_text().replace("inside: inline", "inside: inline\n  time: '5'\n  cpus_per_task: 1\n  memory: 2G")
    path.write_text(config)
    assert pipeline("run", path).returncode == 0
    store = Store(str(tmp_path / "out"))
    state = until(RunWatcher(store, slurm_cluster()), lambda one: one.phases and one.phases[0].held)
    shown = pipeline("cancel", path)
    assert shown.returncode == 0 and "Cancelled" in shown.stdout, shown
    assert len(state.holder["jobs"]) == 2 and not alive(state.holder["jobs"])
    assert summary(store, state.run)["interrupted"]
    after = until(RunWatcher(store, slurm_cluster()), lambda one: True)
    assert after.over and not after.phases[0].held and SLURM["tasks"] == 2
    goes_on(path)


def test_who_watches_a_cancelled_run_on_slurm_is_told_who_cancelled_it(make_config: MakeConfig) -> None:
    store, run, _ = order_phase(light(make_config))
    who = holder_info(launcher="slurm")
    set_holder(take_lock(store, 2, who), who | {"run": run, "jobs": ["7"], "folder": ""})
    over = Cluster(
        lambda jobs: dict.fromkeys(jobs, "CANCELLED by 0"), lambda jobs: None, lambda *_: [], lambda *_: Path()
    )
    before = RunWatcher(store, over).poll()
    assert before and "job 7, which decides what comes next, is CANCELLED by 0" in before.lost, "nobody has said so"
    ask_to_stop(store, run)
    after = RunWatcher(store, over).poll()
    assert after and re.fullmatch(r"it was cancelled by \S+ on \S+ at [0-9:]+ UTC; its jobs are over", after.lost)
    store.write(f"{run}/{CANCEL}", b"")  # of an earlier version
    assert who_stopped(store, run) == "cancelled"


@pytest.fixture
def cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the jobs that were cancelled of a cluster of which every job runs until then."""
    file, commands = tmp_path / "cancelled", tmp_path / "bin"
    commands.mkdir()
    state = f"[ -e {file} ] && state=CANCELLED || state=RUNNING"
    for name, line in (
        ("squeue", f'for jobs; do :; done; {state}; echo "$jobs" | tr , "\\n" | sed "s/$/|$state|None/"'),
        ("scancel", f'printf "%s\\n" "$@" >> {file}'),
    ):
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return file


def on_cluster(path: Path, jobs: list[str], **more: str) -> Store:
    store, run, _ = order_phase(path)
    who = holder_info(launcher="slurm", run=run, jobs=jobs, folder="", **more)
    set_holder(take_lock(store, 2, who), who)
    return store


@pytest.mark.parametrize("says", [True, False])
def test_a_copy_of_a_corpus_does_not_end_the_jobs_of_the_original(
    make_config: MakeConfig, tmp_path: Path, cancelled: Path, says: bool
) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    on_cluster(light(make_config), ["7", "8"], **({"place": str(out)} if says else {}))
    shutil.copytree(out, copy)
    done = pipeline("cancel", copy)
    told = f"queued for {out}, not for this copy" if says else "without saying for which corpus"
    assert done.returncode == 1 and f"it names SLURM jobs 7, 8, {told}" in done.stdout, said(done)
    assert not cancelled.exists() and not list(copy.glob(f"runs/*/{CANCEL}"))
    if says:
        (tmp_path / "link").symlink_to("out")
        done = pipeline("cancel", tmp_path / "link")
        assert done.returncode == 0 and set(cancelled.read_text().split()) == {"7", "8"}, said(done)


def test_jobs_of_a_corpus_that_another_node_reaches_by_another_path(
    make_config: MakeConfig, tmp_path: Path, cancelled: Path
) -> None:
    out = tmp_path / "out"
    store, run, _ = order_phase(light(make_config))
    who = holder_info(launcher="slurm", run=run, jobs=["7"], folder="", place="/scratch/out", mark=store.mark)
    assert store.mark
    set_holder(take_lock(store, 2, who), who)
    shutil.copytree(out, tmp_path / "copy")
    done = pipeline("cancel", tmp_path / "copy")
    assert done.returncode == 1 and "queued for /scratch/out, not for this copy" in done.stdout, said(done)
    assert not cancelled.exists()
    out.rename(tmp_path / "moved")
    done = pipeline("cancel", tmp_path / "moved")
    assert done.returncode == 0 and cancelled.read_text().split() == ["7"], said(done)


def test_as_many_jobs_as_a_lease_may_name_are_cancelled_and_more_are_no_lease(
    make_config: MakeConfig, tmp_path: Path, cancelled: Path
) -> None:
    path, jobs = light(make_config), [str(1_000_000_000 + number) for number in range(MOST_JOBS + 1)]
    store = on_cluster(path, jobs[1:], place=str(tmp_path / "out"))
    shown = pipeline("status", path)
    assert shown.returncode == 0 and len(said(shown)) < 10_000, said(shown)
    done = pipeline("cancel", path)
    assert done.returncode == 0 and sorted(cancelled.read_text().split()) == jobs[1:], said(done)[:2000]
    assert len(said(done)) < 1000 and "1000000010 and 9990 more" in said(done), said(done)[:2000]
    cancelled.unlink()
    on_cluster(path, jobs, place=store.place)
    done = pipeline("run", path, "--launcher", "inline")
    assert done.returncode == 1 and f"(process {os.getpid()})" in said(done), "only its process holds the corpus"


def test_damaged_files_of_a_phase_keep_nobody_from_cancelling_and_are_named(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = light(make_config)
    store, _, folder = order_phase(path)
    assert start_worker(store, folder).wait() == 0
    phase = tmp_path / "out" / folder
    patterns = ("order.json", "claims/00000.done", "workers/*.json", "events/00000-000.jsonl")
    damaged = [file for pattern in patterns for file in phase.glob(pattern)]
    assert len(damaged) == len(patterns)
    for file in damaged:
        data = bytearray(file.read_bytes())
        data[8] ^= 255
        file.write_bytes(data[: len(data) // 2])
    cancelled = pipeline("cancel", path)
    assert cancelled.returncode == 0, said(cancelled)
    verified = pipeline("verify", path)
    assert verified.returncode == 1
    assert all(f"{folder}/{file.relative_to(phase)}" in said(verified) for file in damaged), said(verified)
    assert "deleted" in said(pipeline("verify", path, "--repair"))
    for command in ("verify", "status", "logs"):
        done = pipeline(command, path)
        assert done.returncode == 0, said(done)


def test_a_damaged_list_of_work_ends_its_workers_in_words_and_can_be_cancelled(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    path = light(make_config)
    store, _, folder = order_phase(path)
    file = tmp_path / "out" / folder / "work.parquet"
    data = bytearray(file.read_bytes())
    data[8] ^= 255
    file.write_bytes(data)
    worker = start_worker(store, folder)
    assert worker.wait() == 1 and "work.parquet is damaged (" in worker.communicate()[0], worker.communicate()[0]
    cancelled = pipeline("cancel", path)
    assert cancelled.returncode == 0, said(cancelled)
