"""N-gram heads on concepts: losses and the ensemble against plain loops; gradient diversity."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest
import torch
from torch import Tensor

from stages.lcm.base import BaseLcm
from stages.lcm.batch import Batch, of_documents
from stages.lcm.metrics import gradient_diversity
from stages.lcm.model import Sampling
from stages.lcm.ngram import conjugate
from tests.stages.lcm import models

LENGTHS = (3, 1, 6)


def made(**settings: object) -> BaseLcm:
    model = models.model(models.card("base", ngram=settings))
    assert isinstance(model, BaseLcm) and model.ngram is not None
    return model


def batch() -> Batch:
    one = models.batch(LENGTHS)
    weights = one.weights.clone()
    weights[:2] = 0
    return replace(one, weights=weights)


def said(model: BaseLcm, one: Batch, wdr: bool) -> dict[tuple[int, int], Tensor]:
    """(sentence, n) → what head n says of it, from n sentences before it, normalised, by loops."""
    assert model.ngram is not None
    clean = model.scaling.normalize(one.embeddings)
    read = model._read(clean, one.packing)
    found, start = {}, 0
    for length in one.lengths.tolist():
        for at in range(start, start + length):
            for n in range(min(model.ngram.settings.n, at - start + 1)):
                x = model.post(model.ngram.heads[n - 1](read[at - n]) if n else read[at])
                for i in range(1, n + 1) if wdr else ():
                    x = x - comb(n, i) * (-1) ** i * clean[at - i]
                found[at, n] = x
        start += length
    return found


def test_the_conjugate_makes_differences_whole() -> None:
    """Δ_n x_t + Δʳ_n x_t = x_{t+n}, with Δ_n as the paper defines it, step by step (eq. 7, 8)."""
    x = torch.randn(9, 4, dtype=torch.float64)
    difference = x
    for n in range(1, 5):
        difference = difference[1:] - difference[:-1]
        torch.testing.assert_close(difference + conjugate(x, n)[: len(difference)], x[n:])


@pytest.mark.parametrize("wdr", [False, True])
def test_losses_are_those_of_plain_loops(wdr: bool) -> None:
    model, one = made(n=3, wdr=wdr, alpha=0.6).train(), batch()
    expected = []
    parts = said(model, one, wdr)
    for at in range(one.sentences):
        total = torch.zeros((), dtype=torch.float64)
        for n, share in enumerate((0.5, 0.15, 0.15)):
            if (at, n) in parts:
                error = model.scaling.denormalize(parts[at, n]) - one.embeddings[at].float()
                total = total + share * error.double().square().sum() / model.spread
        expected.append(total)
    plain, ours = torch.stack(expected), model.losses(one)
    torch.testing.assert_close(ours.double(), plain, rtol=1e-6, atol=1e-6)
    parameters = list(model.parameters())
    mine = torch.autograd.grad((one.weights * ours).sum(), parameters)
    for gradient, other in zip(mine, torch.autograd.grad((one.weights * plain).sum(), parameters), strict=True):
        assert gradient.abs().sum() > 0
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))
    plain_base = BaseLcm(models.card("base"), models.scaler())
    plain_base.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("ngram")})
    torch.testing.assert_close(model.eval().losses(one), plain_base.losses(one))


@pytest.mark.parametrize("wdr", [False, True])
def test_the_ensemble_is_eq_13(wdr: bool) -> None:
    model, one = made(n=3, wdr=wdr), batch()
    with torch.no_grad():
        parts = said(model, one, wdr)
        rows = [
            0.7 * parts[at, 0] + 0.15 * sum(parts.get((at, n), parts[at, 0]) for n in (1, 2))
            for at in range(one.sentences)
        ]
        expected = model.scaling.denormalize(torch.stack(rows))
    found = model.predict(one, Sampling(ensemble=0.3))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found, model.predict(one, Sampling()), rtol=1e-3)
    shorter = of_documents([document[:-1] for document in one.embeddings.split(list(LENGTHS)) if len(document) > 1])
    ends = torch.tensor([2, 9])
    torch.testing.assert_close(model.next(shorter, Sampling(ensemble=0.3)), found[ends], rtol=1e-4, atol=1e-4)


def test_operations_and_parameters_are_counted() -> None:
    model, base = made(n=4), models.fresh(models.card("base"))
    one, width = batch(), 16
    heads = 3 * (2 * width**2 + width * models.DIM)
    assert model.flops(one) - base.flops(one) == pytest.approx(6 * one.sentences * heads)
    assert sum(p.numel() for p in model.parameters()) == model.card.parameters(dim=models.DIM)


def test_gradient_diversity_is_its_definition() -> None:
    model, one = made(n=2, wdr=True), batch()
    gradients = []
    for document in one.split():
        model.train().zero_grad()
        (document.weights * model.losses(document)).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
    expected = sum(g.square().sum() for g in gradients) / torch.stack(gradients).sum(0).square().sum()
    assert gradient_diversity(model, one) == pytest.approx(float(expected), rel=1e-6)
    same = of_documents([models.documents((4,))[0]] * 5)
    assert gradient_diversity(model.eval(), same) == pytest.approx(1 / 5, rel=1e-6)
    assert not model.training
    assert gradient_diversity(model, replace(same, weights=torch.zeros(20))) != 0  # not a number: nothing is learned
