"""GPUs through Ray: each has one visitor, beside those who segment by SaT; the same bytes as without Ray.

The GPUs are made up, in number only: Ray books them and names them to its actors as it does real ones, and what would
compute there computes on the CPU.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from launchers import actor_pool, local
from launchers.work import Todo, Work
from pipeline.config.launcher import LauncherSettings
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk
from tests.conftest import MakeConfig, data_digests
from tests.launchers.items import NoMarks, flow, todo
from tests.launchers.made_up_gpus import on_cpu, write_mark
from tests.launchers.ray_cluster import running_cluster
from tests.support.runs import events_of as run
from tests.support.runs import planned

WAIT = 300.0  # seconds for all actors to start, on a busy machine


def actors(marks: Path, kind: str) -> Counter[tuple[str, str, str]]:
    """(device, node, GPU) → processes of this kind."""
    names = [path.name.split(" ") for path in marks.iterdir()]
    return Counter((device, node, gpu) for one, device, node, gpu, _ in names if one == kind)


class IdleSegmenter(NoMarks):
    """A chunk of one part, segmented in no time."""

    def __init__(self, marks: Path, device: str) -> None:
        write_mark(marks, "segmenter", device)

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        ref = PartRef(part=f"{chunk.id}-00000", fingerprint="0" * 32)
        yield Event(kind="segmented", where=ref.part, ref=ref, rows=10)
        yield Event(kind="chunk", where=chunk.path, rows=10)


class PatientVisitor(NoMarks):
    """Is done with a part when each GPU has a visitor and two segmenters."""

    def __init__(self, marks: Path, gpus: int, device: str) -> None:
        self.marks, self.gpus = marks, gpus
        write_mark(marks, "visitor", device)

    def __call__(self, ref: PartRef) -> Event:
        deadline = time.monotonic() + WAIT
        while (found := len(list(self.marks.iterdir()))) < 3 * self.gpus:
            if time.monotonic() > deadline:
                return Event(kind="failed", where=ref.part, error=f"{found} actors", fatal=True)
            time.sleep(0.2)
        return Event(kind="part", where=ref.part, rows=10)


class BrokenOnGpuOnce(NoMarks):
    """Says where it computes; cannot be made for a GPU the first time. Until it can, CPUs are slow but for one part."""

    def __init__(self, marks: Path, device: str) -> None:
        self.device, self.made, self.begun = device, marks / "made", marks / "begun"
        if device == "cuda":
            if not (marks / "broken").exists():
                (marks / "broken").touch()
                raise OSError("no answer")
            self.made.touch()

    def __call__(self, ref: PartRef) -> Event:
        time.sleep(0.2 if self.made.exists() or not self.begun.exists() else 4)
        self.begun.touch()
        return Event(kind="part", where=ref.part, detail=self.device)


@contextlib.contextmanager
def made_up_gpus(gpus: int, cpus: int) -> Iterator[None]:
    """The Ray of a run on this machine, which is started again where it is too busy to start within Ray's 30 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "devices", lambda: ["cuda"] * gpus)
        patch.setattr(local, "_fewer_cpus", lambda: cpus)
        with local.ray_on_this_machine():
            yield


@pytest.mark.slow
def test_each_gpu_has_one_visitor_beside_its_segmenters(tmp_path: Path) -> None:
    gpus = 2
    left = todo(range(8 * gpus), range(900, 950))
    make = partial(IdleSegmenter, tmp_path), partial(PatientVisitor, tmp_path, gpus)
    with made_up_gpus(gpus, cpus=gpus):
        events = list(flow(Work(*make, LauncherSettings(), sat=True), left))
    assert Counter(event.kind for event in events) == {"part": 8 * gpus + 50, "segmented": 50, "chunk": 50}, events[-1]
    visitors, segmenters = actors(tmp_path, "visitor"), actors(tmp_path, "segmenter")
    assert sorted(gpu for _, _, gpu in visitors) == [str(number) for number in range(gpus)]
    assert set(visitors.values()) == {1}
    assert set(segmenters) == set(visitors), "segmenters are where visitors are"
    assert set(segmenters.values()) == {2}
    assert {device for device, _, _ in visitors} == {"cuda"}


@pytest.mark.slow
def test_the_first_gpus_that_join_a_cluster_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the phase ended on CPUs; and who replaced a visitor that could not begin got no GPU."""
    monkeypatch.setattr(actor_pool, "LOOK_SECONDS", 0.2)
    real, events = actor_pool.nodes_of_ray, list[Event]()

    def nodes() -> list[actor_pool.Node]:
        return real() if any(event.kind == "part" for event in events) else [actor_pool.Node(2)]

    monkeypatch.setattr(actor_pool, "nodes_of_ray", nodes)
    make = partial(IdleSegmenter, tmp_path), partial(BrokenOnGpuOnce, tmp_path)
    with made_up_gpus(1, cpus=2):
        for event in flow(Work(*make, LauncherSettings(kind="ray"), sat=True), todo(range(200), range(900, 910))):
            events.append(event)
    assert Counter(event.kind for event in events) == {"part": 210, "segmented": 10, "chunk": 10}, events[-1]
    assert len({(event.kind, event.where) for event in events}) == len(events)
    assert {event.detail for event in events if event.kind == "part"} == {"cpu", "cuda"}
    assert (tmp_path / "broken").exists()


@pytest.mark.slow
def test_a_run_on_two_gpus_gives_the_bytes_of_one_without(make_config: MakeConfig, tmp_path: Path) -> None:
    """Rules segment on CPUs beside them; SaT on GPUs is the cluster's below."""
    path = make_config(segment={"method": "spacy-capped", "max_chars": 80})
    run(path)
    expected = data_digests(path.parent / "out")
    shutil.rmtree(path.parent / "out")
    plan, folder = planned(path, "launcher=local", "launcher.segmenters=2", "launcher.parts_in_flight=1")
    marks = tmp_path / "marks"
    marks.mkdir()
    with made_up_gpus(2, cpus=4):
        events = list(flow(on_cpu(plan, folder, marks), Todo.of(plan)))
    assert not [event for event in events if event.kind == "failed"], events
    assert data_digests(path.parent / "out") == expected
    assert sorted(gpu for _, _, gpu in actors(marks, "visitor")) == ["0", "1"]
    assert {device for device, _, _ in actors(marks, "segmenter")} == {"cpu"}


@pytest.mark.cluster
def test_a_cluster_with_gpus_gives_the_bytes_of_one_process_without(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(segment={"method": "sat-capped", "max_chars": 80}, autobleu=None)
    run(path)
    expected = data_digests(path.parent / "out")
    shutil.rmtree(path.parent / "out")
    marks = tmp_path / "marks"
    marks.mkdir()
    with running_cluster() as cluster:
        for _ in range(2):
            cluster.start(f"--address={cluster.address}", "--num-gpus=1")
        cluster.wait_for(3)
        driver = cluster.python("-m", "tests.launchers.on_gpus", str(path), cluster.address, str(marks))
        shown, _ = driver.communicate(timeout=900)
    assert driver.returncode == 0 and "[] " in shown, shown
    assert data_digests(path.parent / "out") == expected
    visitors = actors(marks, "visitor")
    assert {(device, gpu) for device, _, gpu in visitors} == {("cuda", "0")}, "Ray counts the GPUs of each node"
    assert {device for device, _, _ in actors(marks, "segmenter")} == {"cuda"}
    assert len(visitors) == 2, "one on each node"
