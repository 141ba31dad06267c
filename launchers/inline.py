"""Everything in this process, one task after the other: for tests, debugging and very small corpora."""

from __future__ import annotations

from collections.abc import Iterator

from launchers.devices import devices
from pipeline.corpus.events import Event
from pipeline.corpus.recipes import SEGMENT
from pipeline.planning.plan import Plan
from pipeline.run.tasks import PartTask, SegmentTask


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Visit waiting parts, then segment chunk after chunk and visit its parts; a fatal event is the last."""
    for event in _events(plan, folder):
        yield event
        if event.fatal:
            return


def _events(plan: Plan, folder: str) -> Iterator[Event]:
    visits = [stage for stage in plan.stages if stage != SEGMENT]
    visit = PartTask(plan.config, folder, devices()[0], plan.stages) if visits else None
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
        for ref in parts:  # after the chunk, which is not to blame if one of them kills this process
            if visit:
                yield visit(ref)
