"""Made-up chunks and parts, which actors of a Ray take, and workers that do nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from launchers.actor_pool import ActorPool
from launchers.work import Todo, Work
from pipeline.corpus.events import Event
from pipeline.corpus.receipts import PartRef
from pipeline.inputs import Chunk


def chunk(number: int) -> Chunk:
    return Chunk(f"{number:012x}", "in", f"{number}.txt", "", "text", "", 0, -1, 1000, None, "")


def part(number: int) -> PartRef:
    """The only part of a chunk."""
    return PartRef(part=f"{number:012x}-00000", fingerprint="0" * 32)


def todo(parts: Iterable[int], chunks: Iterable[int] = ()) -> Todo:
    """Parts that wait, and chunks to segment."""
    return Todo([(chunk(number), [part(number)]) for number in parts], [chunk(number) for number in chunks])


def flow(work: Work, left: Todo) -> Iterator[Event]:
    """What a pool of its own does."""
    with closing(ActorPool(work)) as pool:
        yield from pool.flow(left, "")


class NoMarks:
    """What leaves no marks of attempts."""

    def under(self, folder: str) -> None:
        """Nothing is left there."""
