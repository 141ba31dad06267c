"""A pool of Ray's actors loses nothing, whoever dies; it lives as long as a phase, and writes ledgers meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from launchers import actor_pool, local
from launchers.work import Work
from pipeline.config.launcher import LauncherSettings
from pipeline.corpus.events import Event
from pipeline.corpus.ledger import Ledgers
from pipeline.corpus.receipts import PartRef
from pipeline.corpus.recipes import segment_part_fingerprint
from pipeline.inputs import Chunk
from pipeline.planning.plan import make_plan
from pipeline.storage import layout
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.launchers.items import NoMarks, flow, todo
from tests.support.runs import planned, run

PARTS = 3  # of a chunk
pytestmark = pytest.mark.slow


class NoSegmenter(NoMarks):
    """Makes nothing, says it did; kills its process once in the chunk that it is told."""

    def __init__(self, marks: Path, deadly: str, device: str) -> None:
        self.marks, self.deadly = marks, deadly

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        for number in range(PARTS):
            ref = PartRef(part=f"{chunk.id}-{number:05d}", fingerprint="0" * 32)
            yield Event(kind="segmented", where=ref.part, ref=ref, rows=10)
        if chunk.id == self.deadly:
            die_once(self.marks / chunk.id)
        yield Event(kind="chunk", where=chunk.path, rows=30)


class NoVisitor(NoMarks):
    """Says that it did nothing, and where; kills its process once in each part that it is told."""

    def __init__(self, marks: Path, deadly: frozenset[str], device: str) -> None:
        self.marks, self.deadly = marks, deadly

    def __call__(self, ref: PartRef) -> Event:
        if ref.part in self.deadly:
            die_once(self.marks / ref.part)
        return Event(kind="part", where=ref.part, rows=10, detail=str(os.getpid()))


def die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Broken(NoMarks):
    """What cannot be made."""

    def __init__(self, device: str) -> None:
        raise ImportError("a library is missing")

    def __call__(self, ref: PartRef) -> Event:
        raise AssertionError


class BrokenOnce(NoVisitor):
    """What cannot be made the first time."""

    def __init__(self, marks: Path, device: str) -> None:
        super().__init__(marks, frozenset(), device)
        if not (marks / "made").exists():
            (marks / "made").touch()
            raise ImportError("a library is missing")


class Mortal(NoMarks):
    """Kills its process in its first part, and whenever it is made again."""

    def __init__(self, marks: Path, device: str) -> None:
        self.mark = marks / "died"
        if self.mark.exists():
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, ref: PartRef) -> Event:
        self.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class SlowSegmenter(NoMarks):
    """A chunk of one part, which takes some seconds."""

    def __init__(self, seconds: float, device: str) -> None:
        self.seconds = seconds

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        time.sleep(self.seconds)
        ref = PartRef(part=f"{chunk.id}-00000", fingerprint="0" * 32)
        yield Event(kind="segmented", where=ref.part, ref=ref, rows=10)
        yield Event(kind="chunk", where=chunk.path, rows=10)


class SlowVisitor(NoMarks):
    """A part takes some seconds."""

    def __init__(self, seconds: float, device: str) -> None:
        self.seconds = seconds

    def __call__(self, ref: PartRef) -> Event:
        time.sleep(self.seconds)
        return Event(kind="part", where=ref.part)


@pytest.fixture(scope="module", autouse=True)
def ray_up() -> Iterator[None]:
    """With room for five segmenters, whatever this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "_fewer_cpus", lambda: 6)
        with local.ray_on_this_machine():
            yield


def work(marks: Path, deadly_chunk: str = "", deadly_parts: frozenset[str] = frozenset()) -> Work:
    settings = LauncherSettings()
    return Work(partial(NoSegmenter, marks, deadly_chunk), partial(NoVisitor, marks, deadly_parts), settings)


def test_every_part_and_chunk_comes_once(tmp_path: Path) -> None:
    events = list(flow(work(tmp_path), todo(range(300), range(1000, 1020))))
    assert Counter(event.kind for event in events) == {"part": 360, "segmented": 60, "chunk": 20}
    assert len({(event.kind, event.where) for event in events}) == len(events)


def test_what_dead_actors_had_is_done_by_others(tmp_path: Path) -> None:
    deadly = frozenset({f"{7:012x}-00000", f"{1002:012x}-00001"})
    events = list(flow(work(tmp_path, f"{1004:012x}", deadly), todo(range(40), range(1000, 1006))))
    assert len(list(tmp_path.iterdir())) == 3, "not all that should have died did"
    assert Counter(event.kind for event in events) == {"part": 58, "segmented": 18, "chunk": 6}
    assert len({(event.kind, event.where) for event in events}) == len(events)


def test_actors_live_through_a_phase_of_many_parts(tmp_path: Path) -> None:
    """Before, every 10 000 chunks and parts were a wave that ended in full, and actors began again for the next."""
    events = [event for event in flow(work(tmp_path), todo(range(25_000))) if event.kind == "part"]
    assert len(events) == 25_000 and len({event.detail for event in events}) == 1


def test_a_worker_that_could_not_begin_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where storage gives no answer for a while. Before, nobody took its place."""
    monkeypatch.setattr(actor_pool, "LOOK_SECONDS", 0.2)
    events = list(
        flow(
            Work(partial(NoSegmenter, tmp_path, ""), partial(BrokenOnce, tmp_path), LauncherSettings()), todo(range(9))
        )
    )
    assert (tmp_path / "made").exists() and Counter(event.kind for event in events) == {"part": 9}


def test_workers_that_cannot_begin_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_pool, "LOOK_SECONDS", 0.2)
    events = list(flow(Work(partial(NoSegmenter, Path(), ""), Broken, LauncherSettings()), todo(range(3))))
    (event,) = events
    assert event.fatal and "all workers died" in event.error and "a library is missing" in event.error


def test_a_run_whose_workers_are_silent_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the cluster has no room for a single one."""
    monkeypatch.setattr(actor_pool, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(actor_pool, "PATIENCE", 1.0)
    monkeypatch.setattr(actor_pool, "nodes_of_ray", lambda: [actor_pool.Node(1000)])
    (event,) = flow(work(tmp_path), todo(range(3)))
    assert event.fatal and "no worker has answered" in event.error


def test_a_run_whose_workers_died_for_good_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where their node left, or memory runs out whenever one begins. Before, they were asked again for ever."""
    monkeypatch.setattr(actor_pool, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(actor_pool, "RETURNS", 1.0)
    work = Work(partial(NoSegmenter, tmp_path, ""), partial(Mortal, tmp_path), LauncherSettings())
    (event,) = flow(work, todo(range(3)))
    assert event.fatal and "all workers died" in event.error
    assert (tmp_path / "died").exists()


@pytest.mark.parametrize(
    ("segmenting", "waiting", "nodes", "grows"),
    [(0.0, 60, 1, False), (0.5, 0, 1, True), (0.5, 0, 3, True)],
    ids=["visitors have parts", "visitors wait", "most visitors have no place"],
)
def test_as_many_segment_as_visitors_need(
    monkeypatch: pytest.MonkeyPatch, segmenting: float, waiting: int, nodes: int, grows: bool
) -> None:
    """As many as was estimated, here one; more only while visitors wait. Before, one for each core but one: five."""
    monkeypatch.setattr(actor_pool, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(actor_pool, "nodes_of_ray", lambda: [actor_pool.Node(6)] * nodes)
    makers = partial(SlowSegmenter, segmenting), partial(SlowVisitor, 0.3 if waiting else 0.0)
    work = Work(*makers, LauncherSettings(), needed=lambda gpu, threads: 0.01)
    with closing(actor_pool.ActorPool(work)) as pool:
        left = todo(range(1000, 1000 + waiting), range(20))
        events = Counter(event.kind for event in pool.flow(left, ""))
        assert events == {"segmented": 20, "chunk": 20, "part": 20 + waiting}
        assert (pool.segmenters.made > 1) == grows and pool.segmenters.made <= 5 * nodes


def groups() -> list[str]:
    """The states of placement groups that were not removed."""
    from ray.util import placement_group_table

    return [one["state"] for one in placement_group_table().values() if one["state"] != "REMOVED"]


@pytest.mark.parametrize(("kind", "parts"), [("ray", 30), ("ray", 1), ("local", 30)])
def test_room_for_one_more_visitor_is_asked_for_while_parts_wait(
    monkeypatch: pytest.MonkeyPatch, kind: str, parts: int
) -> None:
    """Of a cluster; before, an autoscaling one was asked for no more than it had."""
    monkeypatch.setattr(actor_pool, "LOOK_SECONDS", 0.3)
    settings = LauncherSettings.model_validate({"kind": kind, "parts_in_flight": 1})
    slow = Work(partial(SlowSegmenter, 0.0), partial(SlowVisitor, 0.1), settings)
    seen, done = list[list[str]](), 0
    with closing(actor_pool.ActorPool(slow)) as pool:
        for event in pool.flow(todo(range(parts)), ""):
            done += event.kind == "part"
            seen.append(groups())
    assert done == parts and (["PENDING"] in seen) == (kind == "ray" and parts > 1)
    assert all(len(one) <= 1 for one in seen) and groups() == []


def never_folded(marks: Path, chunks: Sequence[Chunk], compacts: bool) -> None:
    (marks / chunks[0].id).touch()
    time.sleep(600)


def test_the_end_of_a_phase_waits_a_while_for_few_ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where storage gives no answer. Before, each finished chunk had a task that was waited for, however long."""
    monkeypatch.setattr(actor_pool, "FOLD_SECONDS", 3.0)
    settings = LauncherSettings(chunks_per_claim=1)
    stuck = replace(work(tmp_path), settings=settings, fold=partial(never_folded, tmp_path))
    with closing(actor_pool.ActorPool(stuck, folds=True)) as pool:
        events = Counter(event.kind for event in pool.flow(todo((), range(10)), ""))
    assert events == {"segmented": 30, "chunk": 10, "part": 30}
    assert len(list(tmp_path.iterdir())) <= actor_pool.MOST_FOLDS


def test_ledgers_are_written_while_a_run_goes_on(make_config: MakeConfig) -> None:
    """Before, a driver that crashed had the next plan read all receipts; now those of the last chunks alone."""
    path = make_config(launcher={"kind": "local", "chunks_per_claim": 2}, autobleu=None)
    for number, document in enumerate(sample_documents("libreoffice-eng", 9)):
        write_jsonl(path.parent / f"in/more-{number}.jsonl", [document])
    plan, folder = planned(path)
    store, first = Store(plan.config.output), plan.chunks[0]
    part = layout.part_name(first.chunk.id, 0)
    print_ = segment_part_fingerprint(first.fingerprint, 0)[:8]
    attempt = f"sentences/{part[:2]}/{part}.{print_}-000000.parquet"
    store.write(attempt, b"of an attempt that was killed")
    parts, deadline = 0, time.monotonic() + 600  # of a busy machine
    for event in actor_pool.run(plan, folder):
        assert event.kind != "failed", event
        parts += event.kind == "part"
        while parts == 6 and not len(Ledgers.read(store)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert parts < 6 or len(Ledgers.read(store)), "not while it goes on"
    again = make_plan(plan.config).chunks
    assert len(again) == len(plan.chunks) >= 10 and all(one.segmented for one in again)
    assert sum(not one.folded for one in again) <= 1
    assert not store.exists(attempt)
    run(path, "launcher.kind=inline")
    run(path, "launcher.kind=inline", "output=whole")
    assert data_digests(path.parent / "out") == data_digests(path.parent / "whole")
