"""What is seen of a run from outside: claims, workers that die, what was set aside, how it ended."""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from launchers.dispatch import slurm_cluster
from pipeline.coordination.leases import Leases
from pipeline.coordination.lock import ask_to_stop, holder_info, set_holder, take_lock
from pipeline.corpus.runs import newest_view
from pipeline.corpus.states import read_state
from pipeline.monitor.follow import _phase, pause_after, show_run
from pipeline.monitor.run_status import Cluster, RunWatcher
from pipeline.run.phases import ShardResult, WorkerReport
from pipeline.run.tasks import marks_of
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, sample_documents, write_jsonl
from tests.support.cli import pipeline
from tests.support.processes import start
from tests.support.workers import LEASE_SECONDS, SLURM, light, order_phase, start_worker, until


def running(jobs: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(jobs, "RUNNING")


def cluster(states: Callable[[Sequence[str]], dict[str, str]]) -> Cluster:
    return Cluster(states, lambda jobs: None, lambda *_: [], lambda *_: Path())


def held_by_jobs(store: Store, run: str, states: Callable[[Sequence[str]], dict[str, str]] = running) -> RunWatcher:
    """The corpus held by a job that SLURM says is running."""
    who = holder_info(launcher="slurm")
    set_holder(take_lock(store, 2, who), who | {"run": run, "jobs": ["7"], "folder": ""})
    return RunWatcher(store, cluster(states))


def test_a_slow_squeue_makes_no_live_shard_lost_and_a_waiting_job_is_named(make_config: MakeConfig) -> None:
    store, run, folder = order_phase(light(make_config))
    lease = Leases(store, f"{folder}/claims", LEASE_SECONDS).take("00000", holder_info(worker="slurm-6_0"))
    assert lease

    def slow(jobs: Sequence[str]) -> dict[str, str]:
        time.sleep(LEASE_SECONDS + 0.3)
        assert lease.beat()
        return running(jobs)

    state = held_by_jobs(store, run, slow).poll()
    assert state and state.phases[0].held == 1 and not state.phases[0].lost
    for number in range(state.phases[0].claims):
        done = ShardResult(
            worker="slurm-6_0", chunks=1, parts=1, sentences=1, failures=[], fitted=[], seconds=1.0, ended=time.time()
        )
        store.create(f"{folder}/claims/{number:05d}.done", done.model_dump_json().encode())
    shown = Console(file=io.StringIO(), width=300)
    assert show_run(shown, store, cluster(lambda jobs: {"7": "PENDING (JobHeldUser)"})) and isinstance(
        shown.file, io.StringIO
    )
    told = shown.file.getvalue()
    assert "; job 7, which decides what comes next, waits (JobHeldUser)" in told, told
    assert "SLURM: 7 PENDING (JobHeldUser)" in told, told


def test_a_scheduler_job_that_is_cancelled_while_its_array_works_is_told_at_once(make_config: MakeConfig) -> None:
    store, run, folder = order_phase(light(make_config))
    who = holder_info(launcher="slurm")
    set_holder(take_lock(store, 2, who), who | {"run": run, "jobs": ["6", "7"], "folder": ""})
    claims = RunWatcher(store, cluster(running)).poll()
    assert claims
    for number in range(claims.phases[0].claims):  # all is done
        result = ShardResult(
            worker="slurm-6_0", chunks=1, parts=1, sentences=1, failures=[], fitted=[], seconds=1.0, ended=time.time()
        )
        store.create(f"{folder}/claims/{number:05d}.done", result.model_dump_json().encode())

    def shown(word: str) -> str:
        console = Console(file=io.StringIO(), width=300)
        show_run(console, store, cluster(lambda jobs: {"6_0": "RUNNING", "7": word}))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    told = "job 7, which decides what comes next, is CANCELLED: once the other jobs have ended, run the same command"
    assert shown("CANCELLED by 0").count(told) == 1 and "being decided" not in shown("CANCELLED by 0")
    assert "decides what comes next" not in shown("PENDING (Dependency)")
    ask_to_stop(store, run)
    told = shown("CANCELLED by 0")
    assert told.count("it was cancelled by ") == 1 and ": its jobs are ending" in told
    assert "decides what comes next" not in told and "run the same command" not in told


def test_the_time_left_is_said_to_be_unknown_until_a_shard_is_done(make_config: MakeConfig) -> None:
    store, run, folder = order_phase(light(make_config))
    lease = Leases(store, f"{folder}/claims", LEASE_SECONDS).take("00000", holder_info(worker="slurm-6_0"))
    assert lease
    watcher = held_by_jobs(store, run)

    def told() -> str:
        state = watcher.poll()
        assert lease.beat() and state
        (phase,) = state.phases
        return "; ".join(text for _, text in _phase(phase, None, ""))

    assert told().endswith("sentences/s over the phase, not begun")
    since = datetime.now(UTC) - timedelta(seconds=5)
    report = WorkerReport(
        worker="slurm-6_0", host="n1", pid=1, since=since, beat=datetime.now(UTC), range="00000", range_since=since,
        generation=lease.generation, parts=1, sentences=10,
    )  # fmt: skip
    store.write(f"{folder}/workers/slurm-6_0.json", report.model_dump_json().encode())
    assert told().endswith(" s, time left not known yet")
    done = ShardResult(
        worker="slurm-6_0", chunks=1, parts=1, sentences=1, failures=[], fitted=[], seconds=5.0, ended=time.time()
    )
    store.create(f"{folder}/claims/00000.done", done.model_dump_json().encode())
    assert told().endswith(" s left")


def test_the_view_of_a_slow_store_is_polled_less_often_but_does_not_go_quiet() -> None:
    assert [pause_after(seconds) for seconds in (0.1, 2.0, 20.0)] == [2.0, 10.0, 30.0]


@pytest.mark.slow
def test_claims_are_held_lost_taken_over_and_done(make_config: MakeConfig, tmp_path: Path) -> None:
    for name in "abc":  # each is in work for several heartbeats
        documents = [one | {"id": f"{name}-{one['id']}"} for one in sample_documents("libreoffice-eng", 48)]
        write_jsonl(tmp_path / f"in/{name}.jsonl", documents)
    store, run, folder = order_phase(light(make_config))
    watcher = held_by_jobs(store, run)
    state = until(watcher, lambda one: True)
    assert not state.over and state.jobs == {"7": "RUNNING"} and state.launcher == "slurm"
    (phase,) = state.phases
    assert phase.claims == phase.free >= 2 and phase.chunks >= 3 and not phase.chunks_done and phase.seconds is None
    first = start_worker(store, folder)
    # parts are counted at each heartbeat, a rate is seen from the second one on
    state = until(watcher, lambda one: first.poll() is not None or any(worker.rate for worker in one.phases[0].workers))
    assert state.phases[0].held and first.poll() is None, "it was done before its rate was seen: use a larger corpus"
    first.send_signal(signal.SIGKILL)
    first.wait()
    (worker,) = state.phases[0].workers
    assert worker.name == f"{worker.host}-{first.pid}" and not worker.quiet and worker.parts and worker.rate > 0
    until(watcher, lambda one: any(worker.quiet or worker.lost for worker in one.phases[0].workers))
    state = until(watcher, lambda one: one.phases[0].lost)
    assert state.phases[0].workers[0].lost and not state.phases[0].held
    second = start_worker(store, folder)
    state = until(watcher, lambda one: one.phases[0].done == one.phases[0].claims)
    assert second.wait(600) == 0
    state = until(watcher, lambda one: True)
    (phase,) = state.phases
    assert phase.chunks_done == phase.chunks and not (phase.held or phase.lost or phase.free or phase.workers)
    chunks = read_state(store, newest_view(store))
    # what the first one finished of its lost claim stands in receipts, and is in nobody's record
    assert 0 < phase.sentences <= sum(chunk.receipt.sentences for chunk in chunks if chunk.receipt)
    assert not state.failures and state.summary is None


def test_what_is_set_aside_is_named(make_config: MakeConfig) -> None:
    path = light(make_config)
    assert pipeline("run", path, "--until", "segment", "--launcher", "inline").returncode == 0
    store, run, folder = order_phase(path)
    part = read_state(store, newest_view(store))[0].parts[0].ref.part
    for number in range(3):
        store.write(f"{marks_of(run, 1, 0)}/starts/{part}-{number}", b"")
    watcher = held_by_jobs(store, run)
    worker = start_worker(store, folder)
    shown_by_worker = worker.communicate(timeout=600)[0]
    assert worker.returncode == 0, shown_by_worker
    state = until(watcher, lambda one: True)
    assert state.set_aside == [part] and state.phases[0].failed == 1 and not state.over
    store.write(f"{run}/summary.json", json.dumps({"done": False, "failures": state.failures}).encode())
    store.create("lock/run-001.released", b"")
    shown = pipeline("status", path)
    assert shown.returncode == 1 and f"set aside: {part}" in shown.stdout and "1 part" in shown.stdout, shown
    followed = pipeline("status", path, "--watch")
    assert followed.returncode == 1 and "failed" in followed.stdout and part in followed.stdout, followed


def test_a_run_of_one_process_is_followed_and_its_death_is_seen(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(launcher={"kind": "inline", "lease_seconds": 2})
    assert pipeline("run", path, "--until", "segment").returncode == 0
    run = start("run", path)
    watcher = RunWatcher(Store(str(tmp_path / "out")), slurm_cluster())
    state = until(watcher, lambda one: not one.over and one.phases and one.phases[-1].parts)
    assert state.beat is not None and state.holder["pid"] == run.pid
    run.send_signal(signal.SIGKILL)
    run.wait()
    state = until(watcher, lambda one: one.over)
    assert "no heartbeat" in state.lost and not state.done
    shown = pipeline("status", path)
    assert shown.returncode == 1 and "was not closed" in shown.stdout, shown

    again = start("run", path)
    until(watcher, lambda one: not one.over and one.run)
    followed = pipeline("status", path, "--watch")
    assert again.wait(600) == 0 and followed.returncode == 0 and "is done" in followed.stdout, followed
    state = until(watcher, lambda one: one.done)
    assert state.phases[-1].over and state.phases[-1].kind == "main" and state.phases[-1].parts > 0


def test_a_run_of_a_machine_whose_clock_is_ahead_has_not_lasted_less_than_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    who = holder_info(launcher="inline") | {"since": "2999-01-01T00:00:00+00:00"}
    lease = take_lock(store, 60, who)
    named = "runs/29990101T000000.000000-012345"
    store.write(f"{named}/corpus.yaml", b"{input: [], launcher: {kind: inline, lease_seconds: 60}}")
    for run in (None, named):
        set_holder(lease, who | {"run": run})
        state = RunWatcher(store, cluster(running)).poll()
        assert state and state.started <= state.now


@pytest.mark.usefixtures("slurm")
def test_a_first_job_that_cannot_start_is_found_out(make_config: MakeConfig) -> None:
    launcher = SLURM | {"time": "5", "setup": ["echo no module named cuda-99", "exit 3"]}
    shown = pipeline("run", make_config(launcher=launcher), "--wait")
    text = " ".join(shown.stdout.split())
    assert shown.returncode == 1 and "ended without having written anything" in text, shown
    assert "no module named cuda-99" in text


@pytest.mark.usefixtures("slurm")
def test_a_run_on_slurm_is_followed_to_its_end(make_config: MakeConfig) -> None:
    launcher = SLURM | {"time": "5", "cpus_per_task": 1, "memory": "2G"}
    shown = pipeline("run", make_config(launcher=launcher, autobleu=None, scaler={}), "--wait")
    assert shown.returncode == 0 and "is done" in shown.stdout, shown
    assert "shards: " in shown.stdout and "sentences" in shown.stdout
