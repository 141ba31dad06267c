"""The work of a phase, as actors of a Ray do it: who makes their tasks, and which chunks and parts are left.

Of millions of parts only those are in memory that wait because a segmenter has just made them, or that workers have.

For example, chunk `a` of a plan has two segmented parts that wait, chunk `b` is to be segmented. `part` gives the two
parts of `a`, `chunk` gives `b`, whose parts follow as its segmenter reports them. A chunk is *finished* when it is
segmented and all its parts came back; receipts of finished chunks are folded into ledgers while the phase goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from launchers.actors import Segmenting, Visiting
from pipeline.config.launcher import LauncherSettings
from pipeline.config.run_config import RunConfig
from pipeline.coordination.identity import Identity, identity
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.corpus.recipes import SEGMENT
from pipeline.inputs import Chunk
from pipeline.planning.plan import Plan
from pipeline.planning.workload import segmenters_per_visitor
from pipeline.run.tasks import PartTask, SegmentTask, fold_chunks
from pipeline.storage import layout

MOST_WAITING = 100_000  # parts, beyond which no further chunk is segmented: 50 MB
BYTES_A_SENTENCE = 40  # of a chunk as it is stored, roughly


@dataclass(frozen=True)
class Work:
    """The work of the actors.

    `segment`, `visit`: make the tasks for a device (no `visit`: only segmenting); `settings`: the section `launcher`;
    `sat`: whether SaT segments; `needed`: how many segmenters keep a visitor busy, which computes on a GPU or so many
    threads (None: unknown); `fold`: writes a ledger of chunks, and compacts ledgers if told to.
    """

    segment: Callable[[str], Segmenting]
    visit: Callable[[str], Visiting] | None
    settings: LauncherSettings
    sat: bool = False
    needed: Callable[[bool, int], float | None] = lambda gpu, threads: None
    fold: Callable[[Sequence[Chunk], bool], None] | None = None


def work_of(plan: Plan, folder: str) -> Work:
    """Return the work of a plan. `folder`: that of the run, or of its shard."""
    config = plan.config
    ordered = identity(config) if config.launcher.kind == "ray" else None  # nodes may join that were not checked
    return Work(
        segment=partial(SegmentTask, config, folder, ordered=ordered),
        visit=partial(_part_task, config, folder, plan.visits, ordered) if set(plan.visits) - {SEGMENT} else None,
        settings=config.launcher,
        sat=config.segment.uses_sat,
        needed=partial(segmenters_per_visitor, plan),
        fold=partial(fold_chunks, config, ordered),
    )


def _part_task(
    config: RunConfig, folder: str, stages: tuple[str, ...], ordered: Identity | None, device: str
) -> PartTask:
    return PartTask(config, folder, device, stages, ordered, hosted=device != "cpu")


@dataclass
class _Open:
    """A chunk under way.

    `over`: its segmenter has ended; `well`: it did not fail; `left`: parts that have not come back; `seen`: parts that
    were reported.
    """

    chunk: Chunk
    over: bool
    well: bool = True
    left: int = 0
    seen: set[str] = field(default_factory=set)


class Todo:
    """The chunks and parts of a phase that are left.

    Args:
        begun: segmented chunks, with those of their parts that wait for a visit.
        chunks: chunks that are to be segmented.
        visits: whether parts are visited at all.
        parts_about: how many parts there will be, about.
    """

    def __init__(
        self,
        begun: Iterable[tuple[Chunk, Sequence[PartRef]]],
        chunks: Sequence[Chunk],
        visits: bool = True,
        parts_about: int = 1 << 20,
    ) -> None:
        self._begun, self._chunks, self._visits = iter(begun), iter(chunks), visits
        self._parts: deque[PartRef] = deque()
        self._again: deque[Chunk] = deque()
        self._open: dict[str, _Open] = {}
        self.chunks, self.parts_about = len(chunks), parts_about
        self.finished: list[Chunk] = []  # since the last `take_finished`

    @classmethod
    def of(cls, plan: Plan) -> Todo:
        """Return what a plan leaves to do."""
        visits = plan.visits
        if all(stage == SEGMENT for stage in visits):
            return cls((), plan.chunks_to_segment(), False, 0)
        chunks, each = plan.chunks_to_segment(), BYTES_A_SENTENCE * plan.config.part_sentences
        about = len(plan.parts_to_visit()) + sum(1 + chunk.bytes // each for chunk in chunks)
        return cls(_begun(plan), chunks, True, about)

    def part(self) -> PartRef | None:
        """Return the next part to visit, or None if none waits now."""
        while not self._parts:
            found = next(self._begun, None)
            if found is None:
                return None
            chunk, refs = found
            self._open[chunk.id] = _Open(chunk, over=True, left=len(refs))
            self._parts.extend(refs)
        return self._parts.popleft()

    def chunk(self) -> Chunk | None:
        """Return the next chunk to segment, or None if there is none, or many parts wait."""
        if len(self._parts) > MOST_WAITING:
            return None
        chunk = self._again.popleft() if self._again else next(self._chunks, None)
        if chunk:
            self._open.setdefault(chunk.id, _Open(chunk, over=False))
        return chunk

    def again(self, item: Chunk | PartRef) -> None:
        """Take back what a worker had that died."""
        if isinstance(item, Chunk):
            self._again.append(item)
        else:
            self._parts.append(item)

    @property
    def is_empty(self) -> bool:
        """Whether no chunk and no part waits for a worker."""
        if (part := self.part()) is not None:
            self._parts.appendleft(part)
            return False
        if (chunk := self.chunk()) is not None:
            self._again.appendleft(chunk)
            return False
        return True

    @property
    def lacks_parts(self) -> bool:
        """Whether chunks wait for a segmenter, and no part for a visitor."""
        return not self.is_empty and not self._parts

    def segmented(self, chunk: Chunk, event: Event) -> bool:
        """Take an event of a segmenter. Returns whether it is news: a chunk that is segmented again repeats some."""
        one = self._open.get(chunk.id)
        if one is None or event.where in one.seen:
            return False
        if event.kind != "segmented":
            one.over, one.well = True, event.kind == "chunk"
            self._close(one)
            return True
        one.seen.add(event.where)
        if event.ref and self._visits:
            one.left += 1
            self._parts.append(event.ref)
        return True

    def failed(self, chunk: Chunk) -> None:
        """Give up a chunk."""
        self._open.pop(chunk.id, None)

    def visited(self, part: str) -> None:
        """Take note that a part came back."""
        if one := self._open.get(layout.part_owner(part)):
            one.left -= 1
            self._close(one)

    def _close(self, one: _Open) -> None:
        if one.over and not one.left:
            del self._open[one.chunk.id]
            self.finished += [one.chunk] if one.well else []

    def take_finished(self, least: int) -> list[Chunk]:
        """Return the chunks that were finished since the last time; none if they are fewer than `least`."""
        if len(self.finished) < least:
            return []
        found, self.finished = self.finished, []
        return found


def _begun(plan: Plan) -> Iterator[tuple[Chunk, Sequence[PartRef]]]:
    visits = plan.visits
    for one in plan.chunks:
        if refs := one.waiting(visits):
            yield one.chunk, refs
