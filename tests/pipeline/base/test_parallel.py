"""Reading ahead: the order of results, how many are worked on, and that an end or an error ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from pipeline.base.parallel import AT_ONCE, prefetch


def test_results_come_in_order_and_many_are_worked_on_together() -> None:
    together = threading.Barrier(AT_ONCE, timeout=600)

    def work(item: int) -> int:
        if item < AT_ONCE:
            together.wait()  # passes only if so many threads are here
        time.sleep(0.001 * (item % 3))
        return item * item

    assert list(prefetch(work, range(100))) == [item * item for item in range(100)]
    assert list(prefetch(work, ())) == []


def test_no_more_is_drawn_than_is_worked_on() -> None:
    drawn = []

    def items() -> Iterator[int]:
        for item in range(1000):
            drawn.append(item)
            yield item

    with closing(prefetch(lambda item: item, items())) as results:
        assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(drawn) == AT_ONCE + 4
    assert not [one for one in threading.enumerate() if one.name.startswith("ThreadPoolExecutor") and one.is_alive()]


def test_an_error_comes_in_the_place_of_its_result() -> None:
    results = prefetch(lambda item: 1 // (7 - item), range(100))
    assert [next(results) for _ in range(7)] == [0, 0, 0, 0, 0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
