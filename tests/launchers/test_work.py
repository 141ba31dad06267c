"""What actors of a Ray do, and what is left of a phase, without a Ray."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from launchers.actors import SegmentActor, VisitActor
from launchers.work import work_of
from pipeline.base.errors import StorageError
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk
from tests.conftest import MakeConfig, write_jsonl
from tests.launchers.items import NoMarks, chunk, part, todo
from tests.support.runs import planned


class TwoParts(NoMarks):
    """Segments a chunk into two parts; fails once after the first if it is told so."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        yield Event(kind="segmented", where=f"{chunk.id}-00000")
        if self.fails:
            self.fails = False
            raise OSError("the disk is gone")
        yield Event(kind="segmented", where=f"{chunk.id}-00001")
        yield Event(kind="chunk", where=chunk.path)


class NoAnswer:
    """A corpus whose store is away while marks are read."""

    def under(self, folder: str) -> None:
        raise StorageError("the store gives no answer")

    def __call__(self, item: Chunk | PartRef) -> Iterator[Event]:
        raise AssertionError(item)


def kinds(texts: list[str]) -> list[str]:
    return [Event.model_validate_json(text).kind for text in texts]


def test_a_chunk_whose_events_were_lost_is_segmented_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an actor cannot be reached for a moment. Before, it went on with what had not been sent."""
    monkeypatch.setattr("launchers.actors.FLUSH_SECONDS", 0.0)
    actor = SegmentActor(lambda device: TwoParts(), "cuda")
    text = chunk(1).to_json()
    assert kinds(actor.segment(text, "marks", True)[0]) == ["segmented"]
    assert kinds(actor.segment(text, "marks", False)[0]) == ["segmented"]
    came = [actor.segment(text, "marks", begins) for begins in (True, False, False, False)]
    assert [kind for texts, _ in came for kind in kinds(texts)] == ["segmented", "segmented", "chunk"]
    assert [over for _, over in came] == [False, False, False, True]


def test_a_chunk_that_failed_in_an_unforeseen_way_is_segmented_again() -> None:
    """Before, the same actor said that it was over, without an event that said so."""
    actor = SegmentActor(lambda device: TwoParts(fails=True), "cuda")
    text = chunk(1).to_json()
    with pytest.raises(OSError, match="the disk is gone"):
        actor.segment(text, "marks", True)
    texts, over = actor.segment(text, "marks", True)
    assert kinds(texts) == ["segmented", "segmented", "chunk"] and over


def test_a_store_that_is_away_while_marks_are_read_ends_the_run() -> None:
    """Before, the part or chunk alone was given up, because its worker had failed."""
    (text,), over = SegmentActor(lambda device: NoAnswer(), "cuda").segment(chunk(1).to_json(), "marks", True)
    of_chunk = Event.model_validate_json(text)
    made = VisitActor(lambda device: NoAnswer(), "cuda", 1).visit(part(1).model_dump_json(), "marks", False)
    of_part = Event.model_validate_json(made)
    assert over and of_chunk.where == chunk(1).path and of_part.where == part(1).part
    assert of_chunk.fatal and of_part.fatal and "the store gives no answer" in of_chunk.error


def test_actors_are_told_nothing_that_grows_with_the_corpus(make_config: MakeConfig, tmp_path: Path) -> None:
    """Before, each of 800 visitors got the whole plan: 41 MB at the paper's size."""
    path = make_config(autobleu=None, chunk_bytes=1 << 16)
    sizes = []
    for count in (1, 20):
        for number in range(count):
            write_jsonl(tmp_path / f"in/more-{number}.jsonl", [{"id": f"{number}", "text": "One sentence. " * 5000}])
        plan, folder = planned(path)
        work = work_of(plan, folder)
        sizes.append((len(plan.chunks), len(pickle.dumps((work.segment, work.visit, work.fold)))))
    (few, small), (many, large) = sizes
    assert many > few + 10 and large == small


def test_a_chunk_that_failed_is_never_finished() -> None:
    """Before, it was as soon as those of its parts came back that were segmented before it failed."""
    left, one = todo((), [1, 2]), chunk(1)
    for number in (1, 2):
        assert left.chunk() == chunk(number)
        ref = part(number)
        assert left.segmented(chunk(number), Event(kind="segmented", where=ref.part, ref=ref))
        assert left.part() == ref
    assert left.segmented(one, Event(kind="failed", where=one.path))
    assert left.segmented(chunk(2), Event(kind="chunk", where=chunk(2).path))
    for number in (1, 2):
        left.visited(part(number).part)
    assert left.take_finished(1) == [chunk(2)]
