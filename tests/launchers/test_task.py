"""Workers that share nothing but the corpus bring it up to date together, whoever of them dies."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from launchers.actor_pool import ActorPool
from launchers.slurm import jobs
from launchers.slurm.sbatch import WARNING
from launchers.slurm.submit import OPTIONS_FILE
from launchers.slurm.task import Task, in_order_of_claims, name_of
from launchers.work import Todo
from pipeline.base.errors import CorpusError
from pipeline.config.load import load_config
from pipeline.coordination.identity import identity
from pipeline.coordination.leases import Lease, Leases
from pipeline.corpus.events import Event
from pipeline.planning.plan import make_plan
from pipeline.planning.requests import shards_of
from pipeline.run import networks, segmenting
from pipeline.run.phases import failures_of, last_errors, phase_folder, read_phase, read_results, write_phase
from pipeline.run.steps import next_step
from pipeline.run.tasks import marks_of
from pipeline.storage.store import Store
from stages.decoder import finetune
from tests.conftest import MakeConfig, data_digests, write_config, write_inputs
from tests.support.runs import bring_up_to_date
from tests.support.workers import LEASE_SECONDS, SLURM, order_phase, start_worker


def test_ranges_become_smaller_towards_the_end() -> None:
    cuts = shards_of(1000, 50, 4)
    assert cuts[0] == (0, 50) and cuts[-1][1] == 1000
    assert all(one[1] == two[0] for one, two in pairwise(cuts))
    sizes = [end - start for start, end in cuts]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 1
    assert shards_of(0, 50, 4) == []


MANY = {
    "segment": {"method": "spacy-capped", "max_chars": 20},
    "chunk_bytes": 1 << 16,
    "launcher": SLURM,
    "part_sentences": 100,
}


def many_chunks(make_config: MakeConfig) -> Path:
    return make_config(**MANY)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of the corpus of `many_chunks`, made by one process."""
    folder = tmp_path_factory.mktemp("whole")
    write_inputs(folder)
    bring_up_to_date(write_config(folder, **MANY | {"launcher": "inline"}))
    return data_digests(folder / "out")


def test_what_workers_of_a_lost_phase_left_is_swept(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(launcher=SLURM, autobleu=None)
    bring_up_to_date(path, "launcher.kind=inline", f"output={tmp_path / 'whole'}")
    store, run, _ = order_phase(path)  # nobody comes to the end of this one
    name = min(file.name for file in (tmp_path / "whole/embeddings").rglob("*.parquet"))
    orphan = f"embeddings/{name[:2]}/{name.rpartition('-')[0]}-000000.parquet"
    store.write(orphan, b"half a fi")
    write_phase(store, phase_folder(run, 2), make_plan(load_config(path)), "main", ())
    worker = start_worker(store, phase_folder(run, 2))
    shown = worker.communicate(timeout=600)[0]
    assert worker.returncode == 0 and not store.exists(orphan), shown
    assert data_digests(tmp_path / "out") == data_digests(tmp_path / "whole")


def test_two_workers_share_the_ranges(make_config: MakeConfig, tmp_path: Path, whole: dict[str, str]) -> None:
    path = many_chunks(make_config)
    store, run, folder = order_phase(path)
    workers = [start_worker(store, folder) for _ in range(2)]
    shown = [worker.communicate(timeout=600)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], shown
    spec, done = read_phase(store, folder), list(read_results(store, folder))
    assert len(done) == spec.ranges >= 2 and not failures_of(done)
    assert data_digests(tmp_path / "out") == whole
    assert sum(one.parts for one in done) == len(store.listing("documents"))
    assert not store.listing(f"{run}/starts")
    events = [json.loads(line) for path in store.find(f"{folder}/events") for line in store.read(path).splitlines()]
    assert {event["kind"] for event in events} == {"chunk", "segmented", "part"}


def test_a_worker_that_lost_its_claim_goes_on_with_others(
    make_config: MakeConfig, tmp_path: Path, whole: dict[str, str]
) -> None:
    path = many_chunks(make_config)
    store, _, folder = order_phase(path)
    silent = start_worker(store, folder)
    try:
        while not store.find("receipts") and silent.poll() is None:
            time.sleep(0.005)
        silent.send_signal(signal.SIGSTOP)
        time.sleep(LEASE_SECONDS + 0.1)
        leases = Leases(store, f"{folder}/claims", LEASE_SECONDS)
        leases.poll()
        (held,) = (name for name in leases.held if f"{name}.done" not in leases.files)
        assert not leases.alive(held)
        taken = leases.take(held, {"worker": "another"})
    finally:
        silent.send_signal(signal.SIGCONT)
    shown, _ = silent.communicate(timeout=600)
    assert taken and silent.returncode == 0, shown
    assert f"shard {held} was taken over by another worker; going on with others" in shown
    taken.release()
    last = start_worker(store, folder)
    assert last.wait(600) == 0
    done = list(read_results(store, folder))
    assert len(done) == read_phase(store, folder).ranges > 1
    assert sum(one.worker.endswith(f"-{silent.pid}") for one in done) >= len(done) - 1
    assert data_digests(tmp_path / "out") == whole


def test_a_task_loads_networks_once_and_lists_only_the_marks_of_its_shard(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each claim loaded them again, and listed the marks of the whole run: of thousands of other workers."""
    store, run, folder = order_phase(make_config(launcher=SLURM | {"chunks_per_claim": 1, "tasks": 1}))
    for number in range(200):  # of other workers
        store.write(f"{marks_of(run, 1, 77)}/starts/ffffffffffff-{number:05d}-0", b"")
    counts: Counter[str] = Counter()

    def counted(owner: Any, name: str, what: Callable[..., str]) -> None:
        before = getattr(owner, name)

        def ask(*arguments: Any, **options: Any) -> Any:
            result = before(*arguments, **options)
            counts[what(*arguments)] += len(result) if name == "listing" else 1
            return result

        monkeypatch.setattr(owner, name, ask)

    counted(networks, "built", lambda store, config, settings: f"network of {settings.name}")
    counted(segmenting, "ChunkSegmenter", lambda *_: "segmenter")
    counted(Store, "listing", lambda store, path: "marks" if "/starts" in path else "others")
    Task(Console(quiet=True), store.url, folder).work()
    assert read_phase(store, folder).ranges == len(list(read_results(store, folder))) == 3
    assert counts["network of encode"] == counts["network of autobleu"] == counts["segmenter"] == 1
    assert counts["marks"] == 0


@pytest.mark.slow
def test_actors_of_ray_live_as_long_as_the_task_and_their_death_does_no_harm(
    make_config: MakeConfig, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _, folder = order_phase(make_config(**MANY | {"launcher": SLURM | {"inside": "local"}}))
    ends: list[tuple[int, int]] = []
    claims: list[str] = []
    killed: list[int] = []
    flow, close = ActorPool._flow, ActorPool.close

    def killing_flow(pool: ActorPool, todo: Todo, marks: str) -> Iterator[Event]:
        import ray

        claims.append(marks)
        for event in flow(pool, todo, marks):
            yield event
            if len(claims) == 2 and event.kind == "segmented" and not killed:
                killed.append(ray.get(next(iter(pool.visitors.members)).actor.process.remote()))
                os.kill(killed[0], signal.SIGKILL)

    def counted_close(pool: ActorPool) -> None:
        ends.append((pool.visitors.made, pool.segmenters.made))
        close(pool)

    monkeypatch.setattr(ActorPool, "_flow", killing_flow)
    monkeypatch.setattr(ActorPool, "close", counted_close)
    Task(Console(quiet=True), store.url, folder).work()
    done = list(read_results(store, folder))
    assert len(claims) == len(done) == read_phase(store, folder).ranges >= 2 and not failures_of(done)
    assert ends == [(1, 1)] and killed
    assert data_digests(tmp_path / "out") == whole


def test_marks_of_workers_that_died_in_an_earlier_phase_count_in_the_next(make_config: MakeConfig) -> None:
    path = make_config(launcher=SLURM | {"chunks_per_claim": 1, "tasks": 1})
    bring_up_to_date(path, "launcher.kind=inline", "autobleu=null")
    store, run, _ = order_phase(path)
    plan = make_plan(load_config(path))
    second, last = plan.chunks[1].parts[0].ref.part, plan.chunks[2].parts[0].ref.part
    for mark in (f"{second}-0", f"{second}-1"):
        store.write(f"{marks_of(run, 1, 0)}/starts/{mark}", b"")
    store.write(f"{marks_of(run, 1, 2)}/starts/{last}-0", b"")
    write_phase(store, phase_folder(run, 2), plan, "main", ())
    found = {path.removeprefix(f"{run}/starts/") for path in store.find(f"{run}/starts")}
    assert found == {f"2-00001/starts/{second}-0", f"2-00001/starts/{second}-1", f"2-00002/starts/{last}-0"}
    write_phase(store, phase_folder(run, 2), plan, "main", ())  # by a scheduler job that was restarted
    assert {path.removeprefix(f"{run}/starts/") for path in store.find(f"{run}/starts")} == found


@pytest.mark.parametrize("sign", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_workers_that_die_or_stop(
    make_config: MakeConfig, tmp_path: Path, whole: dict[str, str], sign: signal.Signals
) -> None:
    path = many_chunks(make_config)
    store, run, folder = order_phase(path)
    moments = random.Random(sign)
    for _ in range(3):
        worker = start_worker(store, folder)
        marks = len(store.find("receipts"))
        while len(store.find("receipts")) == marks and worker.poll() is None:
            time.sleep(0.005)
        time.sleep(moments.uniform(0, 0.1))
        worker.send_signal(sign)
        shown, _ = worker.communicate(timeout=600)
        if sign == signal.SIGTERM:
            done = len(list(read_results(store, folder))) == read_phase(store, folder).ranges  # before it was told
            assert worker.returncode == 0 and (done or "finished work is kept" in shown), shown
            assert not store.listing(f"{run}/starts"), "a part is blamed for the stop"
    last = start_worker(store, folder)
    shown, _ = last.communicate(timeout=600)
    assert last.returncode == 0, shown
    if len(list(read_results(store, folder))) < read_phase(store, folder).ranges:  # its lease had not expired yet
        assert sign == signal.SIGKILL
        time.sleep(LEASE_SECONDS)
        assert start_worker(store, folder).wait(600) == 0
    assert data_digests(tmp_path / "out") == whole


@pytest.mark.parametrize(("apart", "queued"), [(1e-9, True), (600.0, False)])
def test_a_decoder_that_reaches_the_time_limit_gets_on_by_its_checkpoints(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apart: float, queued: bool
) -> None:
    decoder = {"steps": 4, "batch_tokens": 64, "noise": False, "precision": "float32", "checkpoint_seconds": apart}
    path = make_config(launcher=SLURM, autobleu=None, decoder=decoder)
    store, run, folder = order_phase(path)
    Task(Console(quiet=True), store.url, folder).work()
    plan = make_plan(load_config(path))
    assert plan.missing_fits == ("decoder",)
    write_phase(store, phase_folder(run, 2), next_step(plan, "").plan, "fit", ())
    options = {"only": None, "until": None, "refit": [], "identity": identity(plan.config)}
    store.write(f"{run}/{OPTIONS_FILE}", json.dumps(options).encode())
    learn, learned, again = finetune.FineTuning._step, [], []

    def warned(training: finetune.FineTuning, rows: np.ndarray) -> None:
        if training.at.step == 2 and not again:
            os.kill(os.getpid(), WARNING)
        learn(training, rows)
        learned.append(training.at.step)

    monkeypatch.setattr(finetune.FineTuning, "_step", warned)
    monkeypatch.setattr(jobs, "requeue", lambda: again.append(True))
    task = Task(Console(quiet=True), store.url, phase_folder(run, 2))
    if not queued:
        with pytest.raises(CorpusError, match=r"^decoder: nothing was .*\(it is saved every 600 s\)"):
            task.work()
        return
    task.work()
    assert again and learned == [1, 2] and not list(read_results(store, phase_folder(run, 2)))
    Task(Console(quiet=True), store.url, phase_folder(run, 2)).work()
    assert learned == [1, 2, 3, 4] and make_plan(load_config(path)).nothing_to_do


def test_a_worker_of_another_version_is_refused(make_config: MakeConfig) -> None:
    store, _, folder = order_phase(many_chunks(make_config))
    spec = read_phase(store, folder)
    changed = spec.model_copy(update={"identity": spec.identity | {"torch": "1.0"}})
    store.write(f"{folder}/order.json", changed.model_dump_json().encode())
    worker = start_worker(store, folder)
    shown, _ = worker.communicate(timeout=600)
    assert worker.returncode == 1 and "instead of 1.0" in " ".join(shown.split()), shown
    assert any("torch is" in error for error in last_errors(store, folder))
    assert not store.find("receipts")


class CountingStore(Store):
    """A store of leases in memory, in which time passes only when the test says so; `creates`: tries to create."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.creates = 0

    def create(self, path: str, data: bytes) -> bool:
        self.creates += 1
        fresh = path not in self.there
        self.there.add(path)
        return fresh


@pytest.mark.parametrize(
    ("tasks", "shards"), [pytest.param(1000, 15_127, marks=pytest.mark.slow), (1000, 1000), (8, 30)]
)
def test_tasks_that_start_together_rarely_try_the_same_shard(tasks: int, shards: int) -> None:
    """All see the same listing, in which nothing is claimed. A store that takes 3 500 writes a second answers all."""
    store = CountingStore()
    leases = Leases(store, "claims", 120.0)
    names = [name_of(number) for number in range(shards)]
    taken, most = [], 0
    for number in range(tasks):
        before = store.creates
        wanted = in_order_of_claims(names, leases, None, tasks, random.Random(f"7_{number}"))
        lease = leases.first_free(wanted, {"worker": f"7_{number}"})
        assert lease is not None
        taken.append(lease.name)
        most = max(most, store.creates - before)
    assert len(set(taken)) == tasks
    if shards >= 8 * tasks:
        assert store.creates < 1.1 * tasks and most <= 5  # a write every 50 ms: a quarter of a second
        assert store.creates / 3500 < 2  # seconds, where the folder takes 3 500 writes a second
        assert max(taken) < name_of(8 * tasks)  # the small shards at the end of the phase are for later
    else:
        assert store.creates <= 1.3 * tasks * (math.log(tasks) + 1)


def test_a_task_tries_its_own_shard_first_and_none_that_others_hold() -> None:
    store = CountingStore()
    leases = Leases(store, "claims", 120.0)
    found = {"claims/00000-000.lease": 100.0, "claims/00001-000.lease": 100.0, "claims/00002-000.lease": -100.0}
    leases.see(found, 110.0)
    mine = Lease(store, "claims", "00001", 0)
    names = [name_of(number) for number in range(4)]
    wanted = in_order_of_claims(names, leases, mine, 1, random.Random(1))
    assert wanted[0] == "00001" and sorted(wanted[1:]) == ["00002", "00003"]  # 00000 is held, 00002 was lost
