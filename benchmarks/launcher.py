"""Parts a second that one driver moves through Ray when the stages do nothing: what Ray itself costs.

    python -m benchmarks.launcher --parts 10000 --sentences 100
    python -m benchmarks.launcher --sentences 100000 --address auto      a cluster that others started

`--sentences` decides how many parts share a block: 400 000 sentences at most, and 64 parts. Counted from the first
event on; what comes before is the start of Ray and of its actors, which is shown beside it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from benchmarks.machine import describe_cpu
from launchers.local import ray_on_this_machine
from launchers.ray_cluster import joined
from launchers.ray_data import Item, Work, flow
from pipeline.config.launcher import LauncherSettings
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk


class NoSegmenter:
    """Never called: all parts are segmented already."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        """Yield nothing: nothing comes of a chunk."""
        yield from ()


class NoVisitor:
    """Says of every part that it is done."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, ref: PartRef) -> Event:
        """Say that the part is done."""
        return Event(kind="part", where=ref.part)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=10_000)
    parser.add_argument("--sentences", type=int, default=100, help="sentences of a part")
    parser.add_argument("--address", help="address of a cluster; a Ray of its own if not given")
    options = parser.parse_args()
    refs = [PartRef(part=f"{number:012x}-00000", fingerprint="0" * 32) for number in range(options.parts)]
    items = {ref.part: Item({"part": ref.model_dump()}, options.sentences) for ref in refs}
    started = time.perf_counter()
    first = count = 0.0
    settings = LauncherSettings(kind="ray" if options.address else "local")
    with joined(options.address) if options.address else ray_on_this_machine():
        for _ in flow(items.items(), Work(NoSegmenter, NoVisitor, settings)):
            first = first or time.perf_counter()
            count += 1
        ended = time.perf_counter()
    print(describe_cpu())
    print(f"{count:.0f} parts: first after {first - started:.1f} s, then {count / (ended - first):.0f} parts/s")


if __name__ == "__main__":
    main()
