"""Counts of receipts are added up; those that are limits give the smallest."""

from __future__ import annotations

from pipeline.corpus.receipts import summed


def test_counts_add_up_and_limits_do_not() -> None:
    parts = [{"tokens": 5.0, "least.batch_tokens": 512.0}, {"tokens": 7.0}, {"least.batch_tokens": 64.0, "cuts": 1.0}]
    assert summed(parts) == {"tokens": 12.0, "least.batch_tokens": 64.0, "cuts": 1.0}
    assert summed([summed(parts[:2]), parts[2]]) == summed(parts)
    assert summed([]) == {}
