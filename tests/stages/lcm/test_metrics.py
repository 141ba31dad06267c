"""Metrics of embeddings against plain loops over sentences."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from stages.lcm import metrics

LENGTHS = [1, 5, 2, 9, 3]
SENTENCES = sum(LENGTHS)
DOCUMENT = metrics.documents_of(torch.tensor(LENGTHS))
DIM = 7


@pytest.fixture
def embeddings() -> tuple[Tensor, Tensor]:
    """Predicted and true ones, as stored; the true ones resemble each other."""
    generator = torch.Generator().manual_seed(7)
    truth = torch.randn(SENTENCES, DIM, generator=generator) + 1
    return truth + torch.randn(SENTENCES, DIM, generator=generator), truth.half()


def spans() -> list[tuple[int, int]]:
    edges = [sum(LENGTHS[:k]) for k in range(len(LENGTHS) + 1)]
    return list(pairwise(edges))


def cosine(a: Tensor, b: Tensor) -> float:
    a, b = a.double(), b.double()
    return float(a @ b / (a.norm() * b.norm()))


def distance(a: Tensor, b: Tensor) -> float:
    return math.dist(a.tolist(), b.tolist())


def test_l2(embeddings: tuple[Tensor, Tensor]) -> None:
    ours, real = embeddings
    expected = [distance(a, b) for a, b in zip(ours, real, strict=True)]
    assert metrics.l2(ours, real).tolist() == pytest.approx(expected)
    assert metrics.l2_squared(ours, real).tolist() == pytest.approx([one**2 for one in expected])


@pytest.mark.parametrize("pairs", [1, 50, metrics.PAIRS])
def test_contrastive_accuracy(embeddings: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch, pairs: int) -> None:
    monkeypatch.setattr(metrics, "PAIRS", pairs)
    ours, real = embeddings
    pool = [0, 1, 2, 3, 6, 7, 8, 11, 12, 16, 19]
    expected = []
    for first, end in spans():
        for n in range(first, end):
            others = [m for m in pool if not (first <= m < end and abs(m - n) <= 1)]
            own = distance(ours[n], real[n])
            expected.append(sum(distance(ours[n], real[m]) > own for m in others) / len(others))
    found = metrics.contrastive_accuracy(ours, real, DOCUMENT, torch.tensor(pool))
    assert found.tolist() == pytest.approx(expected)
    assert 0.5 < found.mean() < 1


def test_copies_of_a_sentence_are_not_further_away_than_it() -> None:
    generator = torch.Generator().manual_seed(3)
    real = torch.randn(40, 64, generator=generator)
    real[20:] = real[:20]
    ours = real + 0.01 * torch.randn(40, 64, generator=generator)
    found = metrics.contrastive_accuracy(ours, real, torch.arange(40), torch.arange(40))
    assert found.tolist() == [38 / 39] * 40


def test_a_pool_of_neighbours_only_says_nothing(embeddings: tuple[Tensor, Tensor]) -> None:
    found = metrics.contrastive_accuracy(*embeddings, DOCUMENT, torch.tensor([1, 2, 3]))
    assert found.isnan().nonzero().flatten().tolist() == [2]


def test_paraphrasing(embeddings: tuple[Tensor, Tensor]) -> None:
    ours, real = embeddings
    expected = []
    for first, end in spans():
        expected.append(math.nan)
        for n in range(first + 1, end):
            before = range(first, n)
            usual = max(cosine(real[n], real[m]) for m in before)
            copied = max(cosine(ours[n], real[m]) for m in before)
            expected.append(copied / usual if usual > 0 else math.nan)
    found = metrics.paraphrasing(ours, real, torch.tensor(LENGTHS))
    assert found.tolist() == pytest.approx(expected, nan_ok=True)
    copies = metrics.paraphrasing(real, real, torch.tensor(LENGTHS))
    assert copies[~copies.isnan()].tolist() == pytest.approx([1.0] * int((~copies.isnan()).sum()))


def test_paraphrasing_needs_a_reference_that_resembles_something() -> None:
    real = torch.tensor([[1.0, 0], [-1, 0], [-1, 0.1]])
    assert metrics.paraphrasing(real, real, torch.tensor([3])).isnan().tolist() == [True, True, False]


def test_coherence(embeddings: tuple[Tensor, Tensor]) -> None:
    _, real = embeddings
    expected = []
    for first, end in spans():
        found = [cosine(real[n], real[n + 2]) for n in range(first, end - 2)]
        expected.append(sum(found) / len(found) if found else math.nan)
    assert metrics.coherence(real, torch.tensor(LENGTHS)).tolist() == pytest.approx(expected, nan_ok=True)


def test_the_standard_error_is_what_resampling_documents_gives() -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(2, 9, (60,), generator=generator)
    documents = metrics.documents_of(lengths)
    values = torch.randn(60, generator=generator)[documents] + 0.1 * torch.randn(len(documents), generator=generator)
    weights = torch.rand(len(documents), generator=generator)
    mean, error, count = metrics.mean_of(values, documents, weights)
    assert count == len(documents)
    assert mean == pytest.approx(float((weights * values).sum() / weights.sum()), rel=1e-5)
    sums = torch.zeros(2, 60).index_add_(1, documents, torch.stack([weights * values, weights]))
    draws = sums[:, torch.randint(0, 60, (4000, 60), generator=generator)].sum(dim=2)
    assert error == pytest.approx(float((draws[0] / draws[1]).std()), rel=0.1)
    values[:5] = torch.nan
    assert metrics.mean_of(values, documents)[0] == pytest.approx(float(values[5:].mean()), rel=1e-5)


def test_nothing_has_no_mean() -> None:
    mean, error, count = metrics.mean_of(torch.full((3,), torch.nan), torch.arange(3))
    assert math.isnan(mean) and math.isnan(error) and count == 0
    assert math.isnan(metrics.mean_of(torch.ones(3), torch.zeros(3, dtype=torch.int64))[1])  # one document
