"""Ray Data in the Ray that this process has joined: descriptors → actors that segment → actors that visit → events.

Only descriptors (JSON texts of about 100 bytes) go through Ray; sentences and embeddings go through storage, so the
object store stays empty. `target_max_block_size = 1` makes the output of an actor flow on at once. Cost: 20 to 40 ms
per block and operator, so a block has several parts, fewer towards the end of a wave, and blocks of parts bypass the
segmenters. On a cluster that others started, the pools grow onto nodes that join; if SaT shares the GPUs, from the next
wave on.

An actor that dies is started again wherever there is room; Ray drops what it had in flight, and the next round repeats
that. (Ray's own retries stay with that very actor, which may wait for ever for a node that is gone.)

For example, a wave takes 2000 parts. Its first round sends all of them; an actor dies with three parts in flight, so
1997 come back. The second round sends those three, each alone and in a block of its own. Parts that kill their actors
again are set aside by their marks (`pipeline/run/tasks.py`), and the wave ends.
"""

from __future__ import annotations

import gc
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from launchers.actors import SegmentActor, Segmenting, VisitActor, Visiting, packed, unpacked
from launchers.pools import GpuBundles, Node, pools
from launchers.ray_metrics import measured
from pipeline.base.errors import CorpusError
from pipeline.config.launcher import LauncherSettings
from pipeline.coordination.identity import Identity, identity
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.corpus.recipes import SEGMENT
from pipeline.planning.plan import Plan
from pipeline.run.tasks import PartTask, SegmentTask, failed_event

if TYPE_CHECKING:
    from ray.data import Dataset

WAVE = 10_000  # descriptors given to Ray at once
PART_SENTENCES = 100_000  # of a large part
BLOCK_SENTENCES = 4 * PART_SENTENCES  # of the parts in one block
BLOCK_ITEMS = 64
SHARE = 4  # a block is at most this part of what is left for one thread of an actor
BYTES_A_SENTENCE = 40  # of a chunk as it is stored, roughly
PATIENCE = 24 * 3600.0  # seconds without any event (GPUs may be late) after which Ray Data gives up
ROUNDS = 5  # in a row that bring nothing, after which what is left is given up


@dataclass(frozen=True)
class Work:
    """The work of the actors: makers of tasks for a device (no `visit`: only segmenting), and the pools' resources."""

    segment: Callable[[str], Segmenting]
    visit: Callable[[str], Visiting] | None
    settings: LauncherSettings
    sat: bool = False


@dataclass(frozen=True)
class Item:
    """What to do, and about how many sentences it has."""

    descriptor: dict[str, Any]
    sentences: int


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Carry out the plan, yield events as they come back; a fatal event is the last."""
    yield from measured(flow(items_of(plan), work_of(plan, folder)), plan.config.name)


def work_of(plan: Plan, folder: str) -> Work:
    """Return the work of a plan."""
    config = plan.config
    ordered = identity(config) if config.launcher.kind == "ray" else None  # nodes may join that were not checked
    return Work(
        segment=partial(SegmentTask, config, folder, ordered=ordered),
        visit=partial(_part_task, plan, folder, ordered) if any(stage != SEGMENT for stage in plan.visits) else None,
        settings=config.launcher,
        sat=config.segment.uses_sat,
    )


def items_of(plan: Plan) -> Iterator[tuple[str, Item]]:
    """Yield the items of `flow` lazily: of millions of parts only a wave is in memory."""
    for one in plan.chunks_to_work_on():
        waiting = list(one.waiting(plan.visits))
        rows = {part.ref.part: part.rows for part in one.parts} if waiting else {}
        yield from ((ref.part, _part_item(ref, rows[ref.part])) for ref in waiting)
    for chunk in plan.chunks_to_segment():
        yield chunk.id, Item({"chunk": chunk.to_json()}, chunk.bytes // BYTES_A_SENTENCE)


def _part_task(plan: Plan, folder: str, ordered: Identity | None, device: str) -> PartTask:
    return PartTask(plan.config, folder, device, plan.visits, ordered, hosted=device != "cpu")


def _part_item(ref: PartRef, rows: int) -> Item:
    return Item({"part": ref.model_dump()}, rows)


def flow(items: Iterable[tuple[str, Item]], work: Work) -> Iterator[Event]:
    """Turn items, with the part's name or the chunk's id, into events until each has its last; a fatal event is the
    last.
    """
    source = iter(items)
    while wave := dict(islice(source, WAVE)):
        for event in _wave(wave, work):
            yield event
            if event.fatal:
                return


def _wave(left: dict[str, Item], work: Work) -> Iterator[Event]:
    """Do round after round until nothing is left. A chunk is done when all its parts are."""
    seen: set[tuple[str, str]] = set()
    parts: dict[str, int] = {}  # of finished chunks
    came: dict[str, set[str]] = {}  # parts of a chunk that came back
    idle = 0
    first = True
    while left:
        idle += 1
        try:
            for row in _round(list(left.values()), work, at_once=not first):
                idle = 0
                event = Event.model_validate_json(row["event"])
                chunk = row.get("of", "")
                if event.kind == "segmented" and event.ref:
                    came.setdefault(chunk, set()).add(event.where)
                    if work.visit and ("part", event.where) not in seen:
                        left[event.where] = _part_item(event.ref, event.rows)
                elif event.kind == "chunk":
                    parts[chunk] = row["parts"]
                else:
                    left.pop(chunk or event.where, None)
                if parts.get(chunk) == len(came.get(chunk, ())):
                    left.pop(chunk, None)
                mark = (event.kind, event.where if event.ref or not chunk else chunk)
                if mark not in seen:
                    seen.add(mark)
                    yield event
        except Exception as error:  # whatever Ray raises: receipts are the record, and the run ends with its accounting
            yield failed_event("Ray", error)
            return
        first = False
        if left and idle == ROUNDS:
            words = f"workers died {ROUNDS} times before any of {len(left)} parts and chunks was done; see Ray's logs"
            yield failed_event("Ray", CorpusError(words))
            return


def _round(items: list[Item], work: Work, *, at_once: bool) -> Iterator[dict[str, Any]]:
    """Send the items through new pools of what the cluster has now, and yield the rows that come back.

    `at_once`: each item alone, and back at once, for those that may kill their actor.
    """
    import ray
    from ray.data import ActorPoolStrategy

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.execution_no_progress_timeout_s = PATIENCE
    context.max_errored_blocks = -1  # what an actor that died had in flight
    warnings.filterwarnings("ignore", message="`ray_remote_args_fn` is deprecated")  # there is no other way yet
    for name in ("ray", "ray.data"):  # a failure comes back as an event, with its traceback
        logging.getLogger(name).setLevel(logging.CRITICAL)

    grows = work.settings.kind == "ray"  # nodes may join; what is booked now leaves no room on those that are there
    if grows:  # as soon as all actors are busy
        context.autoscaling_config.actor_pool_util_upscaling_threshold = 1.0

    def pool(size: int, most: int, fixed: bool = False, **options: Any) -> ActorPoolStrategy:
        size = min(size, most)
        most = most if grows and not fixed and not bundles else size
        return ActorPoolStrategy(min_size=size, max_size=most, initial_size=size, **options)

    found = pools(nodes_of_ray(), work.settings, work.sat)
    bundles = GpuBundles(found) if found.bundled else None
    flight = work.settings.parts_in_flight
    chunks = _blocks([one for one in items if "chunk" in one.descriptor], 0 if at_once else found.segmenters)
    parts = _blocks([one for one in items if "part" in one.descriptor], 0 if at_once else flight * found.visitors)
    sources = [_source(parts)] if parts else []
    if chunks:
        sources += [
            _source(chunks).map_batches(
                SegmentActor,
                fn_constructor_args=(partial(work.segment, found.segmenter_device), found.segmenter_device, at_once),
                batch_size=1,  # one block; with GPUs Ray accepts no other way to say so
                batch_format="pyarrow",
                compute=pool(
                    found.segmenters, len(chunks), bool(work.settings.segmenters), max_tasks_in_flight_per_actor=1
                ),
                num_cpus=found.segmenter_cpus,
                num_gpus=found.segmenter_gpus,
                ray_remote_args_fn=partial(_of_actors, bundles.of_segmenters() if bundles else None),
            )
        ]
    data = sources[0].union(*sources[1:]) if len(sources) > 1 else sources[0]
    if work.visit:
        expected = len(parts) + sum(1 + one.sentences // PART_SENTENCES for one in items if "chunk" in one.descriptor)
        data = data.map_batches(
            VisitActor,
            fn_constructor_args=(partial(work.visit, found.device), found.device, found.threads, at_once),
            batch_size=1,
            batch_format="pyarrow",
            compute=pool(
                found.visitors,
                expected,
                max_tasks_in_flight_per_actor=flight,
                max_concurrent_calls_per_actor=flight,
                enable_true_multi_threading=True,
            ),
            num_cpus=found.visitor_cpus,
            num_gpus=found.visitor_gpus,
            ray_remote_args_fn=partial(_of_actors, bundles.of_visitors() if bundles else None),
        )
    # not `iter_rows`, whose threads outlive it: one that calls Ray after `ray.shutdown` ends this process, code 1
    try:
        for bundle in data.iter_internal_ref_bundles():
            for block in ray.get(bundle.block_refs):
                yield from unpacked(block)
    finally:
        if bundles:
            bundles.remove()
        del data, sources
        gc.collect()  # an actor that died keeps its CPUs and GPUs from the next round while anything refers to it


def _of_actors(places: Iterator[Any] | None) -> dict[str, Any]:
    """Return options of the next actor: one that dies is started again, and what it had in flight is dropped."""
    placed = {"scheduling_strategy": next(places)} if places else {}
    return {"max_restarts": -1, "max_task_retries": 0} | placed


def nodes_of_ray() -> list[Node]:
    """Return what Ray may allocate, node by node."""
    import ray

    alive: list[dict[str, Any]] = [one["Resources"] for one in ray.nodes() if one["Alive"]]
    return [Node(one.get("CPU", 0.0), int(one.get("GPU", 0))) for one in alive]


def _source(blocks: list[list[dict[str, Any]]]) -> Dataset:
    import ray

    data: Dataset = ray.data.from_blocks([packed(block) for block in blocks])  # `from_arrow` runs a task for each
    return data


def _blocks(items: list[Item], threads: int) -> list[list[dict[str, Any]]]:
    """Keep neighbours together, fewer towards the end, so that all threads end at about the same time; 0: each
    alone.
    """
    blocks: list[list[dict[str, Any]]] = []
    most = room = 0
    for done, item in enumerate(items):
        if not blocks or len(blocks[-1]) >= most or item.sentences > room:
            blocks.append([])
            room = BLOCK_SENTENCES
            most = min(BLOCK_ITEMS, math.ceil((len(items) - done) / (SHARE * threads))) if threads else 1
        blocks[-1].append(item.descriptor)
        room -= item.sentences
    return blocks
