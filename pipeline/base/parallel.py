"""Several small reads at a time: on an object store, waiting for answers is most of the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`[function(item) for item in items]`, 16 at a time."""
    if len(items) < 4:
        return [function(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, items))


def prefetch(function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
    """`map(function, items)`, of which 16 are worked on while results are taken; so many are in memory.

    Items are drawn by the one who takes results. Whoever stops early ends it, when what has begun is done.
    """
    pool, waiting = ThreadPoolExecutor(AT_ONCE), deque[Future[Result]]()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
