"""Actors of a node's Ray that live as long as a SLURM task: networks and segmenters are loaded once, not for each
shard.

Ray Data ends its actors with each execution, so each shard would import PyTorch and load weights again in all of them.
Here a segmenter takes one chunk after the other, and a visitor some parts at a time; only descriptors and events go
through Ray. An actor that dies is started again where it was, and what it had in flight is given out once more; marks
say in what it died (`pipeline/run/tasks.py`). Where SaT segments, Ray Data does the work as before.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from launchers import ray_data
from launchers.actors import SHARED_NICE, SWITCH_SECONDS, set_threads
from launchers.pools import pools
from pipeline.base.errors import CorpusError
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk
from pipeline.planning.plan import Plan
from pipeline.run.tasks import MAX_STARTS, PartTask, SegmentTask, failed_event

PAUSE_SECONDS = 1.0  # after an actor died, before its work is given out again
MOST_TRIES = 4 * (MAX_STARTS + 1)  # of a part or chunk; marks set it aside before


class LastingSegmenter:
    """An actor that segments. `work`: that of the plan's launcher."""

    def __init__(self, work: ray_data.Work, device: str) -> None:
        set_threads(device, 1, SHARED_NICE)
        self._work, self._device = work, device
        self._task: SegmentTask | None = None

    def segment(self, chunk: str, folder: str) -> Iterator[str]:
        """Yield the events of a chunk. `folder`: of its shard, which holds the marks."""
        if self._task is None:
            task = self._work.segment(self._device)
            assert isinstance(task, SegmentTask)
            self._task = task
        if folder != self._task.folder:
            self._task.under(folder)
        for event in self._task(Chunk.from_json(chunk)):
            yield event.model_dump_json()


class LastingVisitor:
    """An actor that visits parts, several at a time.

    Args:
        work: makes the task.
        device: where networks compute: `cpu`, `cuda`.
        threads: how many threads PyTorch uses on CPUs.
    """

    def __init__(self, work: ray_data.Work, device: str, threads: int) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        set_threads(device, threads)
        assert work.visit
        task = work.visit(device)
        assert isinstance(task, PartTask)
        self._task, self._switching = task, threading.Lock()

    def visit(self, ref: str, folder: str, again: bool) -> str:
        """Bring a part up to date.

        Args:
            ref: the part as JSON.
            folder: the folder for marks of attempts.
            again: whether a worker died while visiting the part, so that marks are read again.

        Returns:
            The event as JSON.
        """
        with self._switching:
            if again or folder != self._task.folder:
                self._task.under(folder)
        return self._task(PartRef.model_validate_json(ref)).model_dump_json()

    def process(self) -> int:
        """Return the number of its process."""
        return os.getpid()


@dataclass(eq=False)
class _Member:
    """An actor, seen from here: how many calls it has in flight, of how many at most."""

    actor: Any
    most: int
    busy: int = 0


@dataclass
class ActorPool:
    """The actors of a task. `run` may be called for one shard after the other."""

    segmenters: list[_Member] = field(default_factory=list)
    visitors: list[_Member] = field(default_factory=list)

    def run(self, plan: Plan, folder: str) -> Generator[Event]:
        """Do what a shard lacks, yield events as they come; a fatal event is the last. `folder`: the shard's."""
        if plan.config.segment.uses_sat:
            yield from ray_data.run(plan, folder)
            return
        if not self.segmenters:
            self._start(plan, folder)
        finished = False
        try:
            for event in self._flow(plan, folder):
                yield event
                if event.fatal:
                    return
            finished = True
        finally:
            if not finished:  # calls are in flight that nobody waits for any more
                self.close()

    def close(self) -> None:
        """End the actors."""
        import ray

        for member in (*self.segmenters, *self.visitors):
            ray.kill(member.actor)
        self.segmenters, self.visitors = [], []

    def _start(self, plan: Plan, folder: str) -> None:
        import ray

        settings, work = plan.config.launcher, ray_data.work_of(plan, folder)
        found = pools(ray_data.nodes_of_ray(), settings, False)
        kept = {"max_restarts": -1, "max_task_retries": 0}
        segment = ray.remote(LastingSegmenter).options(num_cpus=found.segmenter_cpus, **kept)
        self.segmenters = [_Member(segment.remote(work, found.segmenter_device), 1) for _ in range(found.segmenters)]
        if work.visit:
            flight = settings.parts_in_flight
            visit = ray.remote(LastingVisitor).options(
                num_cpus=found.visitor_cpus, num_gpus=found.visitor_gpus, max_concurrency=flight, **kept
            )
            made = [visit.remote(work, found.device, found.threads) for _ in range(found.visitors)]
            self.visitors = [_Member(actor, flight) for actor in made]

    def _flow(self, plan: Plan, folder: str) -> Iterator[Event]:
        import ray
        from ray.exceptions import RayActorError, RayError

        chunks, parts = deque(plan.chunks_to_segment()), deque(plan.parts_to_visit())
        tries: Counter[str] = Counter()
        in_flight: dict[Any, tuple[_Member, Chunk | PartRef]] = {}
        seen: set[str] = set()
        while chunks or (parts and self.visitors) or in_flight:
            for member in self.segmenters:
                if chunks and not member.busy:
                    chunk, member.busy = chunks.popleft(), 1
                    call = member.actor.segment.options(num_returns="streaming").remote(chunk.to_json(), folder)
                    in_flight[call] = member, chunk
            for member in sorted(self.visitors, key=lambda one: one.busy):
                if parts and member.busy < member.most:
                    ref = parts.popleft()
                    member.busy += 1
                    in_flight[member.actor.visit.remote(ref.model_dump_json(), folder, tries[ref.part] > 0)] = (
                        member,
                        ref,
                    )
            if not in_flight:
                break
            ready: list[Any] = ray.wait(list(in_flight), num_returns=1, fetch_local=False)[0]
            call = ready[0]
            member, item = in_flight[call]
            try:
                if isinstance(item, Chunk):
                    event = Event.model_validate_json(ray.get(next(call)))
                    if event.kind == "segmented" and event.where in seen:
                        continue
                    seen.add(event.where if event.kind == "segmented" else "")
                    parts.extend([event.ref] if event.ref else [])
                    yield event
                    continue
                event = Event.model_validate_json(ray.get(call))
            except StopIteration:
                pass
            except RayError as error:
                name = item.id if isinstance(item, Chunk) else item.part
                tries[name] += 1
                if isinstance(error, RayActorError) and tries[name] < MOST_TRIES:
                    time.sleep(PAUSE_SECONDS)
                    if isinstance(item, Chunk):
                        chunks.append(item)
                    else:
                        parts.append(item)
                else:
                    what = f"its worker failed or died ({tries[name]} times); see Ray's logs: {error}"
                    yield failed_event(name, CorpusError(what))
            else:
                yield event
            member.busy -= 1
            del in_flight[call]
