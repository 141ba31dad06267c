"""Metrics of predicted embeddings, LCM 2.4.1: tensors of sentences in, a number per sentence or per document out.

Sentences are packed as in a `Batch`: those of a document follow each other, documents follow each other. Every metric
is a tensor, so that its spread can be computed with its mean. Undefined values are NaN: the first sentence of a
document has no context. Cost: contrastive accuracy is one matrix product of the sentences with the pool, paraphrasing
one of each document with itself; all else is one pass.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.lcm.batch import Batch
from stages.lcm.model import Lcm

PAIRS = 1 << 24  # distances that are looked at in one go: 128 MB in float64
TIE = 1e-9  # distances whose squares differ by a smaller share are the same: what is left is rounding


def l2_squared(predicted: Tensor, truth: Tensor) -> Tensor:
    """Return (sentences,) float64: ‖x̂ − x‖², as in the paper's formula. Both are (sentences, dim), in SONAR space."""
    return (predicted.double() - truth.double()).square().sum(dim=1)


def l2(predicted: Tensor, truth: Tensor) -> Tensor:
    """Return (sentences,) float64: ‖x̂ − x‖, as the paper's tables seem to have it."""
    return l2_squared(predicted, truth).sqrt()


def contrastive_accuracy(predicted: Tensor, truth: Tensor, document: Tensor, pool: Tensor) -> Tensor:
    """Return (sentences,) float64: the share of the pool that is further away from x̂ₙ than xₙ is.

    Equal distances do not count as further. NaN if nothing is left of the pool.

    Args:
        predicted: (sentences, dim).
        truth: (sentences, dim).
        document: (sentences,) int64, the number of each one's document; pieces of a wrapped document, which follow each
            other, have the same number.
        pool: (rows,) int64, places in `truth` to compare with; xₙ and its two neighbours are left out.

    Returns:
        (sentences,) float64 in [0, 1].
    """
    predicted, truth, pool = predicted.double(), truth.double(), pool.to(truth.device)
    place, document = torch.arange(len(truth), device=truth.device), document.to(truth.device)
    others = truth[pool]
    norms = others.square().sum(dim=1)
    found = []
    for rows in torch.split(place, max(1, PAIRS // max(1, len(pool)))):
        x, own = predicted[rows], truth[rows]
        # ‖x̂ − o‖² > ‖x̂ − x‖²  ⇔  ‖o‖² − 2x̂·o > ‖x‖² − 2x̂·x
        distance = norms - 2 * x @ others.T
        limit = own.square().sum(dim=1) - 2 * (x * own).sum(dim=1)
        slack = TIE * (own.square().sum(dim=1) + x.square().sum(dim=1))
        near = ((rows[:, None] - pool).abs() <= 1) & (document[rows][:, None] == document[pool])
        further = (distance > (limit + slack)[:, None]) & ~near
        found.append(further.sum(dim=1).double() / (~near).sum(dim=1))
    return torch.cat(found)


def paraphrasing(predicted: Tensor, truth: Tensor, lengths: Tensor) -> Tensor:
    """Return how much a prediction repeats earlier sentences: max over m < n of cos(x̂ₙ, xₘ), over max over m < n of
    cos(xₙ, xₘ).

    Args:
        predicted: (sentences, dim).
        truth: (sentences, dim).
        lengths: (documents,) int64, how many sentences each has.

    Returns:
        (sentences,) float64; NaN for the first sentence of a document, and if the reference resembles no sentence
            before it (a maximum ≤ 0).
    """
    found = []
    for ours, real in zip(_units(predicted, lengths), _units(truth, lengths), strict=True):
        before = torch.ones(len(real), len(real), dtype=torch.bool, device=real.device).tril(-1)
        copied, usual = ((one @ real.T).masked_fill(~before, -torch.inf).amax(dim=1) for one in (ours, real))
        found.append(torch.where(usual > 0, copied / usual, torch.nan))
    return torch.cat(found)


def coherence(embeddings: Tensor, lengths: Tensor) -> Tensor:
    """Return (documents,) float64: the mean cosine of sentences n and n + 2; NaN for fewer than three. LCM 3.1.1."""
    return torch.stack([(one[:-2] * one[2:]).sum(dim=1).mean() for one in _units(embeddings, lengths)])


def documents_of(lengths: Tensor) -> Tensor:
    """Return (sentences,) int64: the number of each sentence's document."""
    return torch.arange(len(lengths)).repeat_interleave(lengths)


def mean_of(values: Tensor, documents: Tensor, weights: Tensor | None = None) -> tuple[float, float, int]:
    """Return the mean of what is not NaN, its standard error, and the number of values.

    Sentences of a document resemble each other, so the error is that of a ratio of sums over documents, which are the
    units that were drawn. The mean is NaN without values, the error also with only one document.

    Args:
        values: (sentences,) a value each, NaN where there is none.
        documents: (sentences,) int64, the number of its document.
        weights: (sentences,) how much each counts; None for equal weights.

    Returns:
        (mean, standard error, number of values).
    """
    mean, each, used = influences(values, documents, weights)
    count = int((documents[~values.isnan()].bincount() > 0).sum()) if used else 0
    error = float((each.square().sum() * count / (count - 1)).sqrt()) if count > 1 else torch.nan
    return mean, error, used


def influences(values: Tensor, documents: Tensor, weights: Tensor | None = None) -> tuple[float, Tensor, int]:
    """Return the mean of what is not NaN, and how much each document moves it.

    A document moves it by Σ weight · (value − mean) of the document over Σ weight of all. With two means over the same
    documents, the root of the sum of squares of the differences, times documents / (documents − 1), is the error of
    their difference.

    Args:
        values: (sentences,) a value each, NaN where there is none.
        documents: (sentences,) int64, the number of its document.
        weights: (sentences,) how much each counts; None for equal weights.

    Returns:
        (mean, (documents,) float64, number of values).
    """
    known = ~values.isnan()
    count = int(documents.max()) + 1 if len(documents) else 0
    values, documents = values[known].double(), documents[known]
    weights = torch.ones_like(values) if weights is None else weights[known].double()
    if not len(values) or not weights.sum() > 0:
        return torch.nan, torch.zeros(count, dtype=torch.float64), 0
    mean = (weights * values).sum() / weights.sum()
    each = documents.bincount(weights * (values - mean), minlength=count) / weights.sum()
    return float(mean), each, len(values)


def _units(embeddings: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """Return unit vectors of each document."""
    return F.normalize(embeddings.double(), dim=1).split_with_sizes(lengths.tolist())


def gradient_diversity(model: Lcm, batch: Batch) -> float:
    """Return how little the documents of a batch agree on a step (Yin et al. 2018; Heo et al. 2025, 4.1); NaN where all
    losses are 0.

    GD = Σ_i ‖g_i‖² / ‖Σ_i g_i‖², g_i being the gradient of document i's loss in training mode, with the same random
    numbers: 1/n where all n are the same, 1 where they are orthogonal. The model's gradients are dropped. Cost: a
    backward pass for each document; memory: three times the gradients.
    """
    training = model.training
    model.train()
    parameters = [one for one in model.parameters() if one.requires_grad]
    total = [torch.zeros_like(one, dtype=torch.float64) for one in parameters]
    squares = 0.0
    for document in batch.split():
        torch.manual_seed(0)
        loss = (document.weights * model.losses(document)).sum()
        for so_far, gradient in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            if gradient is not None:
                so_far += gradient
                squares += float(gradient.double().square().sum())
    model.train(training)
    together = sum(float(one.square().sum()) for one in total)
    return squares / together if together else float("nan")
