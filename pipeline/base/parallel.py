"""Runs several small reads at a time: on an object store, most of the time is spent waiting for answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

AT_ONCE = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return `[function(item) for item in items]`, computed 16 at a time."""
    if len(items) < 4:
        return [function(item) for item in items]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, items))


def prefetch(function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
    """Yield `map(function, items)` in order while up to 16 further calls run ahead; their results are held in memory.

    Items are drawn in the consumer's thread. If the consumer stops early, calls that have begun are finished first.
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
