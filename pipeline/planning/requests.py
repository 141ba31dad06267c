"""How many requests a run makes of an object store, and what they cost, by what there is to do.

The numbers per part, chunk, shard and heartbeat are counts of what workers ask S3 for, through s3fs: a look whether a
file exists is a HEAD, and a LIST too if it does not. `tests/pipeline/planning/test_requests.py` compares them with a
counted store.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MULTIPART_BYTES, PIECE_BYTES = 100 << 20, 50 << 20  # s3fs uploads files from this size on in such pieces
WRITE_DOLLARS, READ_DOLLARS = 0.005e-3, 0.0004e-3  # a request of S3 Standard, us-east-1: PUT, POST, LIST; GET, HEAD
MONTH_DOLLARS = ((50e12, 0.023e-9), (450e12, 0.022e-9), (math.inf, 0.021e-9))  # the first bytes, a byte and month


@dataclass(frozen=True)
class Requests:
    """Requests of each kind. `puts` are those of multipart uploads too; deleting costs nothing."""

    puts: float = 0.0
    gets: float = 0.0
    heads: float = 0.0
    lists: float = 0.0
    deletes: float = 0.0

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            self.puts + other.puts,
            self.gets + other.gets,
            self.heads + other.heads,
            self.lists + other.lists,
            self.deletes + other.deletes,
        )

    def times(self, count: float) -> Requests:
        """Return these requests, multiplied by a number."""
        kinds = (self.puts, self.gets, self.heads, self.lists, self.deletes)
        return Requests(*(count * each for each in kinds))

    @property
    def total(self) -> float:
        """The number of all requests."""
        return self.puts + self.gets + self.heads + self.lists + self.deletes

    @property
    def dollars(self) -> float:
        """The cost of these requests on S3."""
        return WRITE_DOLLARS * (self.puts + self.lists) + READ_DOLLARS * (self.gets + self.heads)


A_LISTING = Requests(heads=1, lists=2)  # of a folder that is empty
A_SEARCH = Requests(lists=1)  # for files of a folder whose names begin in one way
A_CHUNK = (
    Requests(puts=2, gets=1, heads=3, lists=2, deletes=1) + A_SEARCH
)  # mark; receipt; receipts of earlier versions
A_SHARD = Requests(puts=7, gets=2, heads=5, lists=7, deletes=1) + A_LISTING.times(3)  # lease, plan, marks, record, fold
A_TASK = Requests(puts=1, gets=1, heads=5, lists=8, deletes=1)  # it begins, and finds nothing more to claim
A_BEAT = Requests(puts=3, gets=1, heads=2, lists=2)  # of a worker: what it does, its lease, whether it is to stop


def of_a_part(stages: int, files: Iterable[float]) -> Requests:
    """Return the requests of the work on a part that is segmented and visited once.

    `stages`: how many row-wise ones, without segmenting; `files`: bytes of each of its files.
    """
    return Requests(
        puts=2 + stages + sum(puts_of(stored) for stored in files),  # its mark, a receipt for each stage, the files
        gets=3 + stages,
        heads=4 + 2 * stages,
        lists=1 + stages,
        deletes=1,
    )


def puts_of(stored: float) -> int:
    """Return the requests that write a file of this size."""
    return 1 if stored < MULTIPART_BYTES else 2 + math.ceil(stored / PIECE_BYTES)


def month_dollars(stored: float) -> float:
    """Return what it costs on S3 to store this many bytes for a month."""
    dollars, left = 0.0, stored
    for most, each in MONTH_DOLLARS:
        dollars += each * min(left, most)
        left = max(0.0, left - most)
    return dollars


def shards_of(chunks: int, most: int, workers: int) -> list[tuple[int, int]]:
    """Divide chunks into shards.

    Towards the end a shard is half of each worker's share of the rest, so that workers end at about the same time.

    Args:
        chunks: how many chunks there are.
        most: the most chunks of a shard.
        workers: how many workers take shards.

    Returns:
        [start, end) of every shard.
    """
    found, start = [], 0
    while start < chunks:
        size = max(1, min(most, -(-(chunks - start) // (2 * workers))))
        found.append((start, start + size))
        start += size
    return found
