"""Parts that take half a second, on a Ray cluster at an address: prints the node of each part that is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import ray

from launchers.work import Work
from pipeline.config.launcher import LauncherSettings
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk
from tests.launchers.items import NoMarks, flow, todo


class NoSegmenter(NoMarks):
    """There are no chunks."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, chunk: Chunk) -> Iterator[Event]:
        yield from ()


class Slow(NoMarks):
    """Says where it is."""

    def __init__(self, device: str) -> None:
        self.node = ray.get_runtime_context().get_node_id()

    def __call__(self, ref: PartRef) -> Event:
        time.sleep(0.5)
        return Event(kind="part", where=ref.part, detail=self.node)


def main(address: str, parts: int) -> None:
    ray.init(address=address, log_to_driver=False)
    work = Work(NoSegmenter, Slow, LauncherSettings(kind="ray", parts_in_flight=1))
    for event in flow(work, todo(range(parts))):
        print(f"done on {event.detail}{event.error}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
