"""Visits parts in this process, one after the other; if there is enough to do, another process segments beside it.

It suits small corpora, tests and debugging: nothing has to be started. A corpus of a few chunks is segmented here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from launchers.devices import allowed_cpus, devices
from launchers.segmenting_process import SegmentingProcess
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.corpus.recipes import SEGMENT
from pipeline.planning.pilot_size import sentences_in
from pipeline.planning.plan import Plan
from pipeline.run.tasks import PartTask, SegmentTask

BESIDE_SENTENCES = 5000  # to segment, about, from which on a process for it is worth its start


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Visit waiting parts, segment chunks and visit their parts; a fatal event is the last."""
    visits = any(stage != SEGMENT for stage in plan.visits)
    visit = PartTask(plan.config, folder, devices()[0], plan.visits) if visits else None
    events = _beside(plan, folder, visit) if visit and _much_to_segment(plan) else _in_turn(plan, folder, visit)
    for event in events:
        yield event
        if event.fatal:
            return


def _much_to_segment(plan: Plan) -> bool:
    """Return whether segmenting takes so long, and this process has so many CPUs, that a second process is
    worthwhile.
    """
    if allowed_cpus() < 2:
        return False
    sentences = 0
    for chunk in plan.chunks_to_segment():
        sentences += sentences_in(chunk)
        if sentences >= BESIDE_SENTENCES:
            return True
    return False


def _beside(plan: Plan, folder: str, visit: Callable[[PartRef], Event]) -> Iterator[Event]:
    """Visit parts as they come from a process that segments."""
    waiting = deque(plan.parts_to_visit())
    with SegmentingProcess(plan.config, folder, devices()[0], plan.chunks_to_segment()) as segmenting:
        while waiting or not segmenting.over:
            for event in segmenting.come() if waiting else segmenting.wait():
                yield event
                waiting.extend([event.ref] if event.ref else [])
            if waiting:
                yield visit(waiting.popleft())


def _in_turn(plan: Plan, folder: str, visit: Callable[[PartRef], Event] | None) -> Iterator[Event]:
    """Visit waiting parts, then segment chunk after chunk and visit its parts."""
    for ref in plan.parts_to_visit():
        if visit:
            yield visit(ref)
    chunks = plan.chunks_to_segment()
    segment = SegmentTask(plan.config, folder, devices()[0]) if chunks else None
    for chunk in chunks:
        parts = []
        for event in segment(chunk) if segment else ():
            yield event
            parts += [event.ref] if event.ref else []
        for ref in parts:  # after the chunk, which must not be blamed if one of them kills this process
            if visit:
                yield visit(ref)
