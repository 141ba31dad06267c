"""Host processes: the same bytes, errors that travel, hosts that die, nothing left behind; networks are on the CPU."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launchers.launch import launch
from pipeline.base.errors import AsideError, CorpusError, HostDiedError
from pipeline.config.load import load_config
from pipeline.corpus.receipts import PartRef
from pipeline.corpus.runs import RunRecord
from pipeline.planning.plan import Plan, make_plan
from pipeline.run.hosts import HostedWorker, portable, receive, send
from pipeline.run.networks import Ran
from pipeline.run.tasks import MAX_STARTS, PartTask
from pipeline.storage.store import Store
from stages.stage import StageSettings
from tests.conftest import ROOT, data_digests, sample_documents, write_config, write_jsonl

STAGES = ("encode", "autobleu")


@dataclass
class Segmented:
    """A corpus of two parts that are segmented, and the bytes that visits make of them."""

    path: Path
    expected: dict[str, str]

    def plan(self) -> tuple[Plan, str]:
        plan = make_plan(load_config(self.path))
        return plan, RunRecord(Store(plan.config.output), plan.config, plan.view).folder

    def forget(self) -> None:
        """As if nothing but segmenting had been done."""
        for family in ("embeddings", "status", "autobleu", "receipts/encode", "receipts/autobleu"):
            for file in (self.path.parent / "out" / family).rglob("*.*"):
                file.unlink()

    def refs(self) -> list[PartRef]:
        return self.plan()[0].parts_to_visit()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Segmented:
    folder = tmp_path_factory.mktemp("hosted")
    for name in ("libreoffice-eng", "libreoffice-deu"):
        write_jsonl(folder / "in" / f"{name}.jsonl", sample_documents(name, 3))
    path = write_config(folder)
    plan = make_plan(load_config(path))
    events = list(launch(plan, RunRecord(Store(plan.config.output), plan.config, plan.view).folder))
    assert not [event for event in events if event.kind == "failed"], events
    return Segmented(path, data_digests(folder / "out"))


@pytest.fixture(scope="module")
def worker(corpus: Segmented) -> Iterator[HostedWorker]:
    worker = HostedWorker(load_config(corpus.path), "cpu", STAGES)
    yield worker
    worker.close()


def computing(worker: HostedWorker, monkeypatch: pytest.MonkeyPatch, before: Callable[[int], object]) -> None:
    """Have something happen before each computation; it is given their number."""
    compute, times = worker.networks.compute, iter(range(1000))

    def watched(settings: StageSettings, prepared: Any) -> Ran:
        before(next(times))
        return compute(settings, prepared)

    monkeypatch.setattr(worker.networks, "compute", watched)


def hosts() -> list[int]:
    """Host processes that this one has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, status = (folder / "cmdline").read_bytes(), (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"pipeline.run.hosts" in line and int(status[1]) == os.getpid() and status[0] != "Z":
            found.append(int(folder.name))
    return found


def test_arrays_and_errors_arrive_as_they_were_sent() -> None:
    here, there = socket.socketpair()
    value = {"x": np.arange(100_000, dtype=np.float32).reshape(10, -1), "texts": ["ä", ""], "none": np.empty((0, 3))}
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, here, value)
        got = receive(there)
        sending.result()
    assert got["texts"] == value["texts"] and got["none"].shape == (0, 3)
    assert np.array_equal(got["x"], value["x"]) and got["x"].flags.writeable

    class OddError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} {two}")

    assert isinstance(portable(CorpusError("what")), CorpusError)
    assert isinstance(portable(OddError(1, 2)), RuntimeError) and "OddError: 1 2" in str(portable(OddError(1, 2)))
    here.close()
    with pytest.raises(EOFError):
        receive(there)


FORKS: list[int] = []
os.register_at_fork(before=lambda: FORKS.append(os.getpid()))


def test_hosts_give_the_same_bytes(corpus: Segmented, worker: HostedWorker) -> None:
    corpus.forget()
    FORKS.clear()
    refs = corpus.refs()
    with ThreadPoolExecutor(2) as pool:
        visits = list(pool.map(worker.visit, refs))
    assert len(refs) > 1 and {visit.computed for visit in visits} == {STAGES}
    assert data_digests(corpus.path.parent / "out") == corpus.expected
    receipt = visits[0].receipts["autobleu"]
    assert receipt.device.startswith("cpu (") and receipt.seconds["compute"] > 0
    assert 1 <= len(hosts()) <= 2
    assert not FORKS, "CUDA, which this process would have initialised, does not work in a child that is forked"


def test_errors_travel_and_the_host_goes_on(
    corpus: Segmented, worker: HostedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.forget()
    ref, *_ = corpus.refs()

    def wrong(number: int) -> None:
        if number == 0:
            raise CorpusError("the device says no")

    computing(worker, monkeypatch, wrong)
    with pytest.raises(CorpusError, match="the device says no") as caught:
        worker.visit(ref)
    assert any("pipeline/run/worker.py" in note for note in caught.value.__notes__), "where in the host it was raised"
    before = hosts()
    with pytest.raises(CorpusError, match="nothing"):
        worker.visit(PartRef(part="nothing-00000", fingerprint="0" * 32))
    assert worker.visit(ref).computed == STAGES
    assert hosts() == before


@pytest.mark.faults
def test_a_part_whose_host_dies_is_visited_again_and_at_last_set_aside(
    corpus: Segmented, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus.forget()
    plan, folder = corpus.plan()
    ref, other, *_ = plan.parts_to_visit()
    task = PartTask(plan.config, folder, "cpu", STAGES, hosted=True)
    worker = task._loaded()
    assert isinstance(worker, HostedWorker)
    mine = set(hosts())

    def kill_those(first: int) -> Callable[[int], None]:
        def kill(number: int) -> None:
            if number < first:
                for pid in set(hosts()) - mine:
                    os.kill(pid, signal.SIGKILL)

        return kill

    with monkeypatch.context() as patch:
        computing(worker, patch, kill_those(1))
        event = task(ref)
    assert event.kind == "part" and event.computed == STAGES, event
    with monkeypatch.context() as patch:
        computing(worker, patch, kill_those(MAX_STARTS))
        with pytest.raises(HostDiedError, match="was killed by SIGKILL"):
            worker.visit(other)
        event = task(other)  # dies twice more, and then goes well
        assert event.kind == "part", event
    plan, folder = corpus.plan()
    corpus.forget()
    with monkeypatch.context() as patch:
        computing(worker, patch, kill_those(1000))
        event = task(other)
    assert event.kind == "failed" and "set aside" in event.error, event
    assert AsideError.__name__ in event.detail
    task.close()
    assert set(hosts()) == mine


PARENT = """
import sys
from pipeline.config.load import load_config
from pipeline.run.hosts import HostedWorker
from pipeline.planning.plan import make_plan

plan = make_plan(load_config(sys.argv[1]))
worker = HostedWorker(plan.config, "cpu", ("encode", "autobleu"))
compute = worker.networks.compute

def watched(settings, prepared):
    print("computing", flush=True)
    sys.stdin.readline()

worker.networks.compute = watched
worker.visit(plan.parts_to_visit()[0])
"""


@pytest.mark.faults
def test_no_host_outlives_a_process_that_is_killed(corpus: Segmented) -> None:
    corpus.forget()
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(corpus.path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert parent.stdout and parent.stdout.readline() == b"computing\n"
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert len(children) == 1
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{children[0]}").exists():
        assert time.monotonic() < deadline, "the host is still there"
        time.sleep(0.05)
