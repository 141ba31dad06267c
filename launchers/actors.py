"""The two kinds of actors that Ray Data feeds: one segments chunks, one visits parts; both receive and yield items.

An item is a descriptor ({"part": …} or {"chunk": …}) or an event ({"event": …}, with its chunk and the number of parts
that the chunk had so far). Items travel as JSON, many in one value, which Ray Data cannot split; actors send them on
every half second, so that small parts cost Ray little.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk

Segmenting = Callable[[Chunk], Iterator[Event]]
Visiting = Callable[[PartRef], Event]

ITEMS = "items"
FLUSH_SECONDS = 0.5
SWITCH_SECONDS = 50e-6  # after which a thread yields the interpreter, so that the computing thread need not wait
SHARED_NICE = 10  # of segmenters, if networks compute on the same cores: one late thread delays all others


def set_threads(device: str, threads: int, nice: int = 0) -> None:
    """Let this process use so many threads for networks, if they compute on CPUs.

    Args:
        device: where networks compute: `cpu`, `cuda`.
        threads: how many threads PyTorch uses.
        nice: by how much the process's priority is lowered.
    """
    if device == "cpu":
        import torch

        os.nice(nice)
        torch.set_num_threads(threads)


class SegmentActor:
    """Chunk descriptors → events. `make` loads the segmenter.

    Args:
        make: makes the task, and loads the segmenter.
        device: where networks compute: `cpu`, `cuda`.
        at_once: whether events are passed on at once, instead of every `FLUSH_SECONDS` seconds.
    """

    def __init__(self, make: Callable[[], Segmenting], device: str, at_once: bool) -> None:
        set_threads(device, 1, SHARED_NICE)  # one process per core segments already
        self._task = make()
        self._at_once = at_once

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Turn items into items."""
        out = _Outbox(self._at_once)
        for item in unpacked(batch):
            chunk = Chunk.from_json(item["chunk"])
            parts = 0
            for event in self._task(chunk):
                parts += event.kind == "segmented"
                yield from out.add({"event": event.model_dump_json(), "of": chunk.id, "parts": parts})
        yield from out.rest()


class VisitActor:
    """Part descriptors and `segmented` events → events; other events pass through. Several threads may call it.

    Args:
        make: makes the task, and loads the models.
        device: where networks compute: `cpu`, `cuda`.
        threads: how many threads PyTorch uses on CPUs.
        at_once: whether events are passed on at once, instead of every `FLUSH_SECONDS` seconds.
    """

    def __init__(self, make: Callable[[], Visiting], device: str, threads: int, at_once: bool) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        set_threads(device, threads)
        self._task = make()
        self._at_once = at_once

    def __call__(self, batch: pa.Table) -> Iterator[pa.Table]:
        """Turn items into items."""
        out = _Outbox(self._at_once)
        for item in unpacked(batch):
            if "event" in item:
                yield from out.add(item)
                ref = Event.model_validate_json(item["event"]).ref
            else:
                ref = PartRef.model_validate(item["part"])
            if ref:
                event = self._task(ref)
                if event.fatal:
                    event = event.model_copy(update={"error": f"{event.error} (on {platform.node()})"})
                yield from out.add({"event": event.model_dump_json()})
        yield from out.rest()


def packed(items: list[dict[str, Any]]) -> pa.Table:
    """Return a block of these items."""
    return pa.table({ITEMS: [json.dumps(items)]})


def unpacked(block: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the items of a block."""
    for text in block[ITEMS].to_pylist():
        yield from json.loads(text)


class _Outbox:
    """Items that have not been sent on yet."""

    def __init__(self, at_once: bool) -> None:
        self._items: list[dict[str, Any]] = []
        self._wait = 0.0 if at_once else FLUSH_SECONDS
        self._sent = time.monotonic()

    def add(self, item: dict[str, Any]) -> Iterator[pa.Table]:
        self._items.append(item)
        if time.monotonic() - self._sent >= self._wait:
            yield from self.rest()

    def rest(self) -> Iterator[pa.Table]:
        if self._items:
            yield packed(self._items)
        self._items, self._sent = [], time.monotonic()
