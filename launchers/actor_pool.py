"""Actors of a Ray that live as long as a phase, or as a SLURM task: networks and segmenters are loaded once.

A segmenter takes one chunk after the other, and a visitor some parts at a time. This process hands out work as soon as
an actor has room for it, and takes what comes back: 0.8 ms of its CPU for a part (`benchmarks/launcher.py`). Only
descriptors and events go through Ray.

An actor that dies is started again wherever there is room, and is given nothing until it answers; what it had in flight
is given out again, to others. Marks say in what it died (`pipeline/run/tasks.py`), so a part that kills its actors is
set aside. An actor that cannot begin, or dies again and again, is replaced. On a cluster, nodes that join get actors
within seconds; if they are the first with GPUs, all actors end what they have, and begin again there. A cluster that
adds nodes by itself is asked for the room of one more visitor while parts wait. Segmenters are as many as visitors need
by what was measured or assumed of both; while visitors wait for parts, more are started.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from launchers.actors import SegmentActor, Segmenting, VisitActor, Visiting
from launchers.pools import GpuBundles, MoreRoom, Node, Pools, pools
from launchers.ray_metrics import measured
from launchers.work import Todo, Work, work_of
from pipeline.base.errors import CorpusError
from pipeline.config.launcher import LauncherSettings
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk
from pipeline.planning.plan import Plan
from pipeline.run.tasks import MAX_STARTS, failed_event

LOOK_SECONDS = 5.0  # between looks for nodes that joined, and for visitors that wait
PATIENCE = 24 * 3600.0  # seconds without work that comes back, after which the pool gives up: GPUs may be late
RETURNS = 1800.0  # seconds after which the pool gives up actors that died, if none of them is there again
MOST_TRIES = 4 * (MAX_STARTS + 1)  # of a part or chunk, which marks set aside before; deaths of an actor without event
MOST_MADE = 3  # actors in the place of one, which could not begin or died again and again
MOST_FOLDS = 2  # ledgers that are written at a time
FOLD_SECONDS = 60.0  # for which the end of a phase waits for them; the end of the run folds what they leave
COMPACT_EVERY = 64  # ledgers that are written until small ones are merged
RESTARTED: dict[str, Any] = {"max_restarts": -1, "max_task_retries": 0}  # options of actors
_log = logging.getLogger(__name__)


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Carry out a plan in the Ray that this process has joined; a fatal event is the last. `folder`: the run's.

    Receipts of finished chunks are folded into ledgers meanwhile, so that a later plan reads few of them.
    """
    with contextlib.closing(ActorPool(folds=True)) as pool:
        yield from measured(pool.run(plan, folder), plan.config.name)


@dataclass(eq=False)
class _Member:
    """An actor, seen from here.

    `place`: the number of its GPU, if that is shared; `busy`: calls in flight; `deaths`: since it last brought work
    back.
    """

    actor: Any
    place: int | None = None
    busy: int = 0
    deaths: int = 0


@dataclass
class _Crew:
    """The actors of one kind, of which each may have some calls in flight.

    `made`: how many there have been, at most `limit`; `members`: those that have not been given up; `ready`: those
    that answer, by the number of calls that they have in flight; `silent`: those that did not answer, and are asked
    again; `gone`: since when all that had answered are dead.
    """

    most: int = 1
    made: int = 0
    limit: int = 0
    members: dict[_Member, None] = field(default_factory=dict)
    ready: list[dict[_Member, None]] = field(default_factory=lambda: [{}, {}])
    silent: dict[_Member, None] = field(default_factory=dict)
    gone: float | None = None

    def free(self) -> _Member | None:
        """Return the member with the fewest calls in flight, if it has room for one more."""
        return next((next(iter(some)) for some in self.ready[: self.most] if some), None)

    @property
    def waits(self) -> bool:
        """Whether at least half of those that answer have nothing to do."""
        idle = len(self.ready[0])
        return idle > 0 and 2 * idle >= sum(map(len, self.ready))

    def lacks(self, wanted: int) -> bool:
        """Return whether a member is to be added, of so many that are wanted."""
        self.limit = max(self.limit, MOST_MADE * wanted)
        return len(self.members) < wanted and self.made < self.limit

    def is_ready(self, member: _Member) -> bool:
        """Return whether a member answers."""
        return member in self.ready[member.busy]

    def set_busy(self, member: _Member, busy: int) -> None:
        """Note how many calls of a member are in flight."""
        if self.is_ready(member):
            del self.ready[member.busy][member]
            self.ready[busy][member] = None
        member.busy = busy

    def set_ready(self, member: _Member, ready: bool) -> None:
        """Note whether a member answers."""
        self.ready[member.busy].pop(member, None)
        if ready:
            self.ready[member.busy][member] = None
            self.gone = None

    def set_dead(self, member: _Member) -> None:
        """Note that a member died, or still is dead."""
        self.set_ready(member, False)
        if self.gone is None and not any(self.ready):
            self.gone = time.monotonic()

    @property
    def is_lost(self) -> bool:
        """Whether all are given up and none will replace them, or all that had answered are dead for long."""
        long = self.gone is not None and time.monotonic() - self.gone > RETURNS
        return long or (self.made > 0 and not self.members and self.made >= self.limit)

    def reset(self, most: int) -> None:
        """Begin without members."""
        self.most, self.made, self.limit, self.members, self.silent, self.gone = most, 0, 0, {}, {}, None
        self.ready = [{} for _ in range(most + 1)]


_Item = Chunk | PartRef | None  # None: whether an actor is there


class ActorPool:
    """The actors of a phase or task. `run` may be called for one shard after the other.

    Args:
        work: what they do; None: that of the first plan.
        folds: whether receipts of finished chunks are folded into ledgers.

    Raises:
        RuntimeError: by `run`, if this process has joined no Ray.
    """

    def __init__(self, work: Work | None = None, folds: bool = False) -> None:
        self._work, self._folds = work, folds
        self.segmenters, self.visitors = _Crew(), _Crew()
        self._found: Pools | None = None
        self._bundles: GpuBundles | None = None
        self._more = MoreRoom()
        self._came: queue.SimpleQueue[tuple[_Crew | None, _Member | None, Any, Future[Any]]] = queue.SimpleQueue()
        self._in_flight = self._folding = self._folded = 0
        self._tries: Counter[str] = Counter()
        self._last_death = ""
        self._news = 0  # parts that were segmented since segmenters were added
        self._changes = False  # whether GPUs joined a cluster that had none

    def run(self, plan: Plan, folder: str) -> Generator[Event]:
        """Do what a plan lacks, yield events as they come; a fatal event is the last.

        `plan`: of the same configuration and stages each time; `folder`: for marks, the run's or its shard's.
        """
        self._work = self._work or work_of(plan, folder)
        yield from self.flow(Todo.of(plan), folder)

    def flow(self, todo: Todo, folder: str) -> Generator[Event]:
        """Do all of this, yield events as they come; a fatal event is the last. `folder`: for marks."""
        finished = False
        self._tries.clear()
        try:
            self._add_actors(todo)
            for event in self._flow(todo, folder):
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

        for member in (*self.segmenters.members, *self.visitors.members):
            ray.kill(member.actor)
        if self._bundles:
            self._bundles.remove()
        self._more.give_up()
        self._found = self._bundles = None
        self.segmenters, self.visitors = _Crew(), _Crew()
        self._in_flight = self._folding = self._news = 0
        self._changes = False
        self._came = queue.SimpleQueue()

    def _flow(self, todo: Todo, folder: str) -> Iterator[Event]:
        looked, heard, asks = time.monotonic(), time.monotonic(), False
        while True:
            self._hand_out(todo, folder)
            if asks:  # only now, or visitors would seem free that have just brought work back
                self._ask_for_room(todo)
                asks = False
            waits_for_folds = self._folding and time.monotonic() - heard < FOLD_SECONDS
            if not self._in_flight and not waits_for_folds and todo.is_empty:
                return
            if self._changes and not self._in_flight:
                self.close()
                self._add_actors(todo)
            if error := self._lost(todo, time.monotonic() - heard):
                yield failed_event("Ray", error).model_copy(update={"fatal": True})
                return
            with contextlib.suppress(queue.Empty):
                came = self._came.get(timeout=LOOK_SECONDS)
                heard = time.monotonic() if came[2] is not None and not came[3].exception() else heard
                yield from self._taken(todo, folder, *came)
            if time.monotonic() - looked >= LOOK_SECONDS:
                self._add_actors(todo)
                looked, asks = time.monotonic(), True

    def _hand_out(self, todo: Todo, folder: str) -> None:
        """Give all there is to actors that have room for it, unless they are about to end."""
        while not self._changes and (member := self.visitors.free()) and (part := todo.part()):
            self._visit(member, part, folder)
        while not self._changes and (member := self.segmenters.free()) and (chunk := todo.chunk()):
            self._segment(member, chunk, folder, begins=True)
        if not self._folds:
            todo.finished.clear()
        elif self._folding < MOST_FOLDS and (chunks := todo.take_finished(self._settings.chunks_per_claim)):
            self._fold(chunks)

    def _visit(self, member: _Member, part: PartRef, folder: str) -> None:
        call = member.actor.visit.remote(part.model_dump_json(), folder, self._tries[part.part] > 0)
        self._send(self.visitors, member, part, call)

    def _segment(self, member: _Member, chunk: Chunk, folder: str, begins: bool) -> None:
        self._send(self.segmenters, member, chunk, member.actor.segment.remote(chunk.to_json(), folder, begins))

    def _send(self, crew: _Crew, member: _Member, item: Chunk | PartRef, call: Any) -> None:
        crew.set_busy(member, member.busy + 1)
        self._in_flight += 1
        self._expect(call, crew, member, item)

    def _ask(self, crew: _Crew, member: _Member) -> None:
        """Have a member answer as soon as it is there; until then it is given nothing."""
        crew.set_ready(member, False)
        self._expect(member.actor.process.remote(), crew, member, None)

    def _fold(self, chunks: Sequence[Chunk]) -> None:
        """Have a ledger of chunks written on one of the nodes that may compute, whose CPUs are all taken."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        assert self._work and self._work.fold
        nodes = [one["NodeID"] for one in ray.nodes() if one["Alive"] and one["Resources"].get("CPU")]
        if not nodes:  # the end of the run folds these
            return
        self._folding += 1
        self._folded += 1
        place = NodeAffinitySchedulingStrategy(nodes[self._folded % len(nodes)], soft=False)
        task = ray.remote(_folded).options(num_cpus=0, max_retries=0, scheduling_strategy=place)
        self._expect(task.remote(self._work.fold, chunks, self._folded % COMPACT_EVERY == 0), None, None, None)

    def _expect(self, call: Any, crew: _Crew | None, member: _Member | None, item: _Item) -> None:
        came = self._came
        call.future().add_done_callback(lambda got: came.put((crew, member, item, got)))

    def _taken(
        self, todo: Todo, folder: str, crew: _Crew | None, member: _Member | None, item: _Item, got: Future[Any]
    ) -> Iterator[Event]:
        """Take what came back of a call, and yield its events."""
        error = got.exception()
        if crew is None or member is None:
            self._folding -= 1
            if error:  # the end of the run folds, too, and reports what is wrong with receipts
                _log.warning("receipts were not folded: %s", error)
        elif item is None:
            if error is None and member in crew.members:
                crew.set_ready(member, True)
            elif error:
                self._died(crew, member, error)
        else:
            crew.set_busy(member, member.busy - 1)
            self._in_flight -= 1
            if error is not None:
                yield from self._failed(todo, crew, member, item, error)
            elif isinstance(item, PartRef):
                member.deaths = 0
                todo.visited(item.part)
                yield Event.model_validate_json(got.result())
            else:
                member.deaths = 0
                texts, over = got.result()
                if not over:
                    self._segment(member, item, folder, begins=False)
                for event in map(Event.model_validate_json, texts):
                    self._news += event.kind == "segmented"
                    if todo.segmented(item, event):
                        yield event

    def _failed(
        self, todo: Todo, crew: _Crew, member: _Member, item: Chunk | PartRef, error: BaseException
    ) -> Iterator[Event]:
        """Take back what a member had that died, to give it to another."""
        from ray.exceptions import RayError, RayTaskError

        name = item.id if isinstance(item, Chunk) else item.part
        self._tries[name] += 1
        if isinstance(error, RayError) and not isinstance(error, RayTaskError):
            self._died(crew, member, error)
            if self._tries[name] < MOST_TRIES:
                todo.again(item)
                return
        what = f"its worker failed or died ({self._tries[name]} times); see Ray's logs: {error}"
        if isinstance(item, Chunk):
            todo.failed(item)
        else:
            todo.visited(item.part)
        yield failed_event(name, CorpusError(what))

    def _died(self, crew: _Crew, member: _Member, error: BaseException) -> None:
        """Wait until a member is there again; give it up if it will not be, or died again and again."""
        import ray
        from ray.exceptions import ActorDiedError

        if member not in crew.members or member in crew.silent:
            return
        self._last_death = str(error).strip().rpartition("\n")[2]
        was_ready = crew.is_ready(member)
        crew.set_dead(member)
        if isinstance(error, ActorDiedError) or member.deaths >= MOST_TRIES:
            del crew.members[member]
            ray.kill(member.actor)
            if self._bundles:
                self._bundles.leave(member.place, crew is self.visitors)
        elif was_ready:
            member.deaths += 1
            self._ask(crew, member)
        else:
            crew.silent[member] = None  # it is asked again at the next look

    def _lost(self, todo: Todo, silent: float) -> CorpusError | None:
        """Return an error if nobody is left who could do the rest, or no work has come back for `silent` seconds."""
        if silent > PATIENCE:
            return CorpusError(f"no worker has answered for {PATIENCE / 3600:.0f} hours; see Ray's logs")
        lost = [crew for crew in (self.visitors, self.segmenters) if crew.is_lost]
        if not lost or todo.is_empty or (self._in_flight and self.visitors not in lost):
            return None
        return CorpusError(f"all workers died before everything was done; see Ray's logs: {self._last_death}")

    @property
    def _settings(self) -> LauncherSettings:
        assert self._work
        return self._work.settings

    def _add_actors(self, todo: Todo) -> None:
        """Add the actors for which there is work and room."""
        work, settings = self._work, self._settings
        assert work
        found = self._found
        if found is None:
            logging.getLogger("ray").setLevel(logging.CRITICAL)  # a failure comes back as an event
            found = self._found = pools(nodes_of_ray(), settings, work.sat, work.needed)
            self._bundles = GpuBundles(found) if found.bundled else None
            self.visitors.reset(settings.parts_in_flight)
            self.segmenters.reset(1)
        now = pools(nodes_of_ray(), settings, work.sat, work.needed) if settings.kind == "ray" else found
        self._changes = now.device != found.device and now.device == "cuda"
        if self._changes:
            return
        while work.visit and self.visitors.lacks(min(now.visitors, todo.parts_about)):
            self._more.give_up()
            self._add_visitor(work.visit, found)
        segmenters = min(self._segmenters(now, todo), todo.chunks)
        while self.segmenters.lacks(segmenters):
            self._add_segmenter(work.segment, found)
        for crew in (self.visitors, self.segmenters):
            silent, crew.silent = crew.silent, {}
            for member in silent:
                self._ask(crew, member)

    def _ask_for_room(self, todo: Todo) -> None:
        """Ask an autoscaling cluster for the room of one more visitor while parts wait for the visitors that there are.

        Not before all that there is room for are at work, or it could take the place of one.
        """
        found, there = self._found, self.visitors.members
        at_work = all(map(self.visitors.is_ready, there)) and not todo.is_empty
        if self._settings.kind != "ray" or not found or not at_work or len(there) >= todo.parts_about:
            self._more.give_up()
        elif self.visitors.free() is None and not todo.lacks_parts:
            self._more.ask(len(nodes_of_ray()), found)

    def _add_visitor(self, make: Callable[[str], Visiting], found: Pools) -> None:
        options = RESTARTED | {"num_cpus": found.visitor_cpus, "num_gpus": found.visitor_gpus}
        place, where = self._bundles.of_visitor() if self._bundles else (None, None)
        options |= {"scheduling_strategy": where, "max_concurrency": self._settings.parts_in_flight}
        actor = _remote(VisitActor).options(**options)
        self._join(self.visitors, actor.remote(make, found.device, found.threads), place)

    def _add_segmenter(self, make: Callable[[str], Segmenting], found: Pools) -> None:
        options = RESTARTED | {"num_cpus": found.segmenter_cpus, "num_gpus": found.segmenter_gpus}
        place, where = self._bundles.of_segmenter() if self._bundles else (None, "SPREAD")
        actor = _remote(SegmentActor).options(**options, scheduling_strategy=where)
        self._join(self.segmenters, actor.remote(make, found.segmenter_device), place)

    def _join(self, crew: _Crew, actor: Any, place: int | None) -> None:
        crew.made += 1
        member = _Member(actor, place)
        crew.members[member] = None
        self._ask(crew, member)

    def _segmenters(self, now: Pools, todo: Todo) -> int:
        """Return how many segmenters there should be: a quarter more if all are busy and most visitors wait."""
        count = len(self.segmenters.members)
        if now.bundled or self._settings.segmenters:
            return now.segmenters
        if not (count and self._news and self.visitors.waits and self.segmenters.free() is None and todo.lacks_parts):
            return max(count, now.segmenters)
        self._news = 0
        return min(count + max(1, count // 4), now.most_segmenters)


@functools.cache  # or each actor would have a class of its own, which Ray stores
def _remote(kind: type) -> Any:
    import ray

    return ray.remote(kind)


def _folded(fold: Callable[[Sequence[Chunk], bool], None], chunks: Sequence[Chunk], compacts: bool) -> None:
    fold(chunks, compacts)


def nodes_of_ray() -> list[Node]:
    """Return what Ray may allocate, node by node."""
    import ray

    alive: list[dict[str, Any]] = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    return [Node(one.get("CPU", 0.0), int(one.get("GPU", 0))) for one in alive]
