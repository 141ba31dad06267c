"""Ray Data loses nothing: actors that are killed, parts that come late, many to a block."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from ray.actor import ActorHandle

from launchers.local import ray_on_this_machine
from launchers.ray_data import Work, _round, flow
from pipeline.config.launcher import LauncherSettings
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk
from tests.launchers.items import chunk_item, part_item

PARTS = 3  # of a chunk
pytestmark = pytest.mark.slow


class NoSegmenter:
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


class NoVisitor:
    """Does nothing; kills its process once in each part that it is told."""

    def __init__(self, marks: Path, deadly: frozenset[str], device: str) -> None:
        self.marks, self.deadly = marks, deadly

    def __call__(self, ref: PartRef) -> Event:
        if ref.part in self.deadly:
            die_once(self.marks / ref.part)
        return Event(kind="part", where=ref.part, rows=10)


def die_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def ray_up() -> Iterator[None]:
    with ray_on_this_machine():
        yield


def work(marks: Path, deadly_chunk: str = "", deadly_parts: frozenset[str] = frozenset()) -> Work:
    settings = LauncherSettings()
    return Work(partial(NoSegmenter, marks, deadly_chunk), partial(NoVisitor, marks, deadly_parts), settings)


@pytest.mark.usefixtures("ray_up")
def test_every_part_and_chunk_comes_once(tmp_path: Path) -> None:
    items = dict([part_item(number) for number in range(300)] + [chunk_item(number) for number in range(1000, 1020)])
    events = list(flow(items.items(), work(tmp_path)))
    assert Counter(event.kind for event in events) == {"part": 360, "segmented": 60, "chunk": 20}
    assert len({(event.kind, event.where) for event in events}) == len(events)


@pytest.mark.usefixtures("ray_up")
def test_what_dead_actors_had_is_done_by_others(tmp_path: Path) -> None:
    items = dict([part_item(number) for number in range(40)] + [chunk_item(number) for number in range(1000, 1006)])
    deadly = frozenset({part_item(7)[0], f"{1002:012x}-00001"})
    events = list(flow(items.items(), work(tmp_path, f"{1004:012x}", deadly)))
    assert len(list(tmp_path.iterdir())) == 3, "not all that should have died did"
    assert Counter(event.kind for event in events) == {"part": 58, "segmented": 18, "chunk": 6}
    assert len({(event.kind, event.where) for event in events}) == len(events)


@pytest.mark.usefixtures("ray_up")
def test_what_is_started_again_leaves_the_next_round_its_place(tmp_path: Path) -> None:
    """An actor that nobody uses has its CPUs as long as anything refers to it, also a circle of references."""
    gc.disable()
    try:
        rows = list(_round([chunk_item(1000)[1]], work(tmp_path, f"{1000:012x}"), at_once=True))
        kept = [one for one in gc.get_objects() if isinstance(one, ActorHandle) and "MapWorker" in repr(one)]
    finally:
        gc.enable()
    assert "chunk" not in {json.loads(row["event"])["kind"] for row in rows}, "it did not die"
    assert not kept
