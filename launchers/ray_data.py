"""Ray Data in the Ray that this process has joined: a pool of CPU actors segments, one actor a device visits parts.

Only descriptors (JSON texts of about 100 bytes) go through Ray; sentences and embeddings go through storage, so the
object store stays empty and a killed run loses at most the parts in flight. `target_max_block_size = 1` makes every
descriptor flow on at once.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from launchers.devices import devices
from pipeline.config import RunConfig
from pipeline.inputs import Chunk
from pipeline.plan import Plan
from pipeline.receipts import PartRef
from pipeline.recipes import SEGMENT
from pipeline.tasks import Event, PartTask, SegmentTask, failure

Batch = dict[str, Any]

WAVE = 10_000  # descriptors given to Ray at once
SEGMENTERS_SHARE = 0.2  # of each GPU, where SaT computes beside the encoder
SHARED_NICE = 10  # of segmenters where networks compute on the same cores: one late thread makes all others wait


class _Segment:
    """Chunk descriptors → events; part descriptors go through."""

    def __init__(self, config: RunConfig, folder: str, device: str, nice: int) -> None:
        os.nice(nice)
        if config.segment.uses_sat and device == "cpu":
            import torch

            torch.set_num_threads(1)  # one process a core segments already
        self._task = SegmentTask(config, folder, device)

    def __call__(self, batch: Batch) -> Iterator[Batch]:
        for text in batch["item"]:
            item = json.loads(text)
            if "chunk" in item:
                for event in self._task(Chunk.from_json(item["chunk"])):
                    yield _row({"event": event.model_dump_json()})
            else:
                yield _row(item)


class _Visit:
    """Part descriptors and `segmented` events → events; others go through."""

    def __init__(self, config: RunConfig, folder: str, device: str, stages: tuple[str, ...], threads: int) -> None:
        if device == "cpu":
            import torch

            torch.set_num_threads(threads)
        self._task = PartTask(config, folder, device, stages)

    def __call__(self, batch: Batch) -> Iterator[Batch]:
        for text in batch["item"]:
            item = json.loads(text)
            if "part" in item:
                yield _row({"event": self._task(PartRef.model_validate(item["part"])).model_dump_json()})
                continue
            yield _row(item)
            event = Event.model_validate_json(item["event"])
            if event.kind == "segmented" and event.ref:
                yield _row({"event": self._task(event.ref).model_dump_json()})


def _row(item: dict[str, Any]) -> Batch:
    return {"item": np.asarray([json.dumps(item)], dtype=object)}


def run(plan: Plan, folder: str) -> Iterator[Event]:
    """Send the descriptors through, yield events as they come back; a fatal event is the last."""
    items = [json.dumps({"part": ref.model_dump()}) for ref in plan.parts_to_visit()]
    items += [json.dumps({"chunk": chunk.to_json()}) for chunk in plan.chunks_to_segment()]
    for start in range(0, len(items), WAVE):
        for event in _wave(plan, folder, items[start : start + WAVE]):
            yield event
            if event.fatal:
                return


def _wave(plan: Plan, folder: str, items: list[str]) -> Iterator[Event]:
    import ray
    from ray.data import ActorPoolStrategy

    context = ray.data.DataContext.get_current()
    context.target_max_block_size = 1
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    for name in ("ray", "ray.data"):  # a failure comes back as an event, with its traceback
        logging.getLogger(name).setLevel(logging.CRITICAL)

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    cpus = max(1, int(resources.get("CPU", 1)))
    found = devices()
    flight = plan.config.launcher.parts_in_flight
    on_gpus = plan.config.segment.uses_sat and found[0] != "cpu"
    segmenters = min(plan.config.launcher.segmenters or (2 * len(found) if on_gpus else max(1, cpus - 1)), len(items))
    shared = SEGMENTERS_SHARE if on_gpus else 0.0
    data: ray.data.Dataset = ray.data.from_items([{"item": item} for item in items], override_num_blocks=len(items))
    data = data.map_batches(
        _Segment,
        fn_constructor_args=(plan.config, folder, found[0], SHARED_NICE if found[0] == "cpu" else 0),
        batch_size=1,
        compute=ActorPoolStrategy(size=segmenters, max_tasks_in_flight_per_actor=1),
        num_cpus=0.5 * cpus / segmenters,  # half of the machine to each pool: neither can starve the other
        num_gpus=shared * len(found) / segmenters,
    )
    if any(stage != SEGMENT for stage in plan.stages):
        data = data.map_batches(
            _Visit,
            fn_constructor_args=(plan.config, folder, found[0], plan.stages, cpus),
            batch_size=1,
            compute=ActorPoolStrategy(
                size=len(found),
                max_tasks_in_flight_per_actor=flight,
                max_concurrent_calls_per_actor=flight,
                enable_true_multi_threading=True,
            ),
            num_cpus=0.5 * cpus / len(found),
            num_gpus=1 - shared if found[0] != "cpu" else 0,
        )
    try:
        # not `iter_rows`, whose threads outlive it: one that calls Ray after `ray.shutdown` ends this process, code 1
        for bundle in data.iter_internal_ref_bundles():
            for block in ray.get(bundle.block_refs):
                for text in block["item"].to_pylist():
                    yield Event.model_validate_json(json.loads(text)["event"])
    except Exception as error:  # whatever Ray raises: the receipts are the record, the run ends with its books
        yield failure("Ray", error)
