"""Visits parts in this process, one after the other; if there is enough to do, another process segments beside it.

It suits small corpora, tests and debugging: nothing has to be started. A corpus of a few chunks is segmented here too.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator

from launchers.devices import allowed_cpus, devices
from launchers.segmenting_process import SegmentingProcess
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.corpus.recipes import SEGMENT
from pipeline.planning.pilot_size import sentences_in
from pipeline.planning.plan import Plan
from pipeline.run.tasks import PartTask, SegmentTask

BESIDE_SENTENCES = 5000  # to segment, about, from which on a process for it is worth its start


class InlineWorkers:
    """Visits parts in this process and segments beside it. It may run one shard after the other: networks, segmenter
    and process are loaded once.
    """

    def __init__(self) -> None:
        self._visit: PartTask | None = None
        self._segment: SegmentTask | None = None
        self._beside: SegmentingProcess | None = None

    def run(self, plan: Plan, folder: str) -> Generator[Event]:
        """Visit waiting parts, segment chunks and visit their parts; a fatal event is the last.

        `plan`: of the same configuration and stages each time; `folder`: the run's, or its shard's.
        """
        visit = None
        if any(stage != SEGMENT for stage in plan.visits):
            if self._visit:
                self._visit.under(folder)
            else:
                self._visit = PartTask(plan.config, folder, devices()[0], plan.visits)
            visit = self._visit
        much = visit and (self._beside or _much_to_segment(plan))
        events = self._run_beside(plan, folder, visit) if visit and much else self._in_turn(plan, folder, visit)
        for event in events:
            yield event
            if event.fatal:
                return

    def close(self) -> None:
        """End the process that segments."""
        if self._beside:
            self._beside.__exit__()
            self._beside = None

    def _run_beside(self, plan: Plan, folder: str, visit: Callable[[PartRef], Event]) -> Generator[Event]:
        """Visit parts as they come from a process that segments."""
        waiting = deque(plan.parts_to_visit())
        if not self._beside:
            self._beside = SegmentingProcess(plan.config, devices()[0])
        segmenting, whole = self._beside, False
        segmenting.segment(plan.chunks_to_segment(), folder)
        try:
            while waiting or not segmenting.over:
                for event in segmenting.come() if waiting else segmenting.wait():
                    yield event
                    waiting.extend([event.ref] if event.ref else [])
                if waiting:
                    yield visit(waiting.popleft())
            whole = True
        finally:
            if not whole:  # it still segments, which nobody asks for any more
                self.close()

    def _in_turn(self, plan: Plan, folder: str, visit: Callable[[PartRef], Event] | None) -> Generator[Event]:
        """Visit waiting parts, then segment chunk after chunk and visit its parts."""
        for ref in plan.parts_to_visit():
            if visit:
                yield visit(ref)
        chunks = plan.chunks_to_segment()
        if chunks and self._segment:
            self._segment.under(folder)
        elif chunks:
            self._segment = SegmentTask(plan.config, folder, devices()[0])
        for chunk in chunks:
            parts = []
            for event in self._segment(chunk) if self._segment else ():
                yield event
                parts += [event.ref] if event.ref else []
            for ref in parts:  # after the chunk, which must not be blamed if one of them kills this process
                if visit:
                    yield visit(ref)


def run(plan: Plan, folder: str) -> Generator[Event]:
    """Visit waiting parts, segment chunks and visit their parts; a fatal event is the last."""
    with contextlib.closing(InlineWorkers()) as workers, contextlib.closing(workers.run(plan, folder)) as events:
        yield from events


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
