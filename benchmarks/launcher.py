"""Parts a second that one driver moves through Ray when the stages do nothing: what the driver itself costs.

    python -m benchmarks.launcher --parts 25000
    python -m benchmarks.launcher --address auto                      a cluster that others started
    python -m benchmarks.launcher --parts 300 --seconds 0.2           each part takes that long

Counted from the first event on; what comes before is the start of Ray and of its actors, which is shown beside it. Of
the driver's CPU time, which says most on a machine that others use too, follows how many GPUs it can feed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise

from benchmarks.machine import describe_cpu
from launchers.actor_pool import ActorPool
from launchers.local import ray_on_this_machine
from launchers.ray_cluster import joined
from launchers.work import Todo, Work
from pipeline.base.formats import number
from pipeline.config.launcher import LauncherSettings
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk

GPU_RATE = 12_000  # sentences per second of a GPU
PART_SENTENCES = 1_000_000  # as `pipeline plan` proposes for large corpora


class NoSegmenter:
    """Never called: all parts are segmented already."""

    def __init__(self, device: str) -> None:
        self.device = device

    def under(self, folder: str) -> None:
        """Leave no marks."""

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        """Yield nothing: nothing comes of a chunk."""
        yield from ()


class NoVisitor:
    """Waits for each part, and says who had it, from when to when."""

    def __init__(self, seconds: float, device: str) -> None:
        self.seconds = seconds

    def under(self, folder: str) -> None:
        """Leave no marks."""

    def __call__(self, ref: PartRef) -> Event:
        """Say that the part is done."""
        began = time.time()
        time.sleep(self.seconds)
        return Event(kind="part", where=ref.part, detail=json.dumps([os.getpid(), began, time.time()]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="seconds that a part takes")
    parser.add_argument("--address", help="address of a cluster; a Ray of its own if not given")
    options = parser.parse_args()
    settings = LauncherSettings(kind="ray" if options.address else "local")
    started = time.perf_counter()
    first = used = 0.0
    visits: list[tuple[int, float, float]] = []
    pool = ActorPool(Work(NoSegmenter, partial(NoVisitor, options.seconds), settings))
    with joined(options.address) if options.address else ray_on_this_machine(), closing(pool):
        for event in pool.flow(Todo(_parts(options.parts), [], parts_about=options.parts), ""):
            if not first:
                first, used = time.perf_counter(), time.process_time()
            visits.append(tuple(json.loads(event.detail)))
        ended, used = time.perf_counter(), time.process_time() - used
    print(describe_cpu())
    each = used / len(visits)
    print(f"{len(visits)} parts: first after {first - started:.1f} s, then {len(visits) / (ended - first):.0f} parts/s")
    print(
        f"CPU of the driver: {1000 * each:.2f} ms per part; with parts of {number(PART_SENTENCES)} sentences, "
        f"{PART_SENTENCES / each / GPU_RATE:.0f} GPUs of {number(GPU_RATE)} sentences/s keep one core of it busy"
    )
    visits.sort(key=lambda one: one[1])
    pause = max(after[1] - before[2] for before, after in pairwise(visits))
    print(
        f"processes of actors: {len({process for process, _, _ in visits})}; longest pause between parts {pause:.2f} s"
    )


def _parts(count: int) -> Iterator[tuple[Chunk, list[PartRef]]]:
    for at in range(count):
        chunk = Chunk(f"{at:012x}", "in", f"{at}.txt", "", "text", "", 0, -1, 1000, None, "")
        yield chunk, [PartRef(part=f"{chunk.id}-00000", fingerprint="0" * 32)]


if __name__ == "__main__":
    main()
