"""Samples by u are uniform and independent between documents."""

from __future__ import annotations

import numpy as np

from stages.sampling import document_seed, uniform


def test_u_is_uniform_and_depends_on_document_and_position() -> None:
    u = uniform(np.full(100_000, 12345, np.uint64), np.arange(100_000))
    assert u.min() >= 0 and u.max() < 1
    counts, _ = np.histogram(u, bins=20, range=(0, 1))
    assert abs(counts - 5000).max() < 350  # five standard deviations
    assert len(np.unique(u)) == len(u)
    other = uniform(np.full(100_000, 54321, np.uint64), np.arange(100_000))
    assert abs(np.corrcoef(u, other)[0, 1]) < 0.02


def test_documents_have_different_seeds() -> None:
    assert len({document_seed(f"doc-{n}") for n in range(10_000)}) == 10_000
