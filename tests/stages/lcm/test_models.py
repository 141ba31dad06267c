"""What holds for every Large Concept Model."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stages.lcm.batch import Batch, of_documents
from stages.lcm.build import build
from stages.lcm.card import Kind, LcmCard, load_lcm_card, shipped_lcm_cards
from stages.lcm.model import Lcm, Sampling
from stages.lcm.packing import visible_pairs
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler
from tests.stages.lcm import models

KINDS = [kind for kind in get_args(Kind) if kind != "token-lm"]  # which predicts no embeddings
PAPER = {"1.6b": 1.6e9, "7b": 7e9, "100m": 34e6, "300m": 170e6, "600m": 450e6, "900m": 700e6, "1.4b": 1.4e9}
LLAMA = 2 * 32_000  # pieces, in both embeddings of a Llama: those of smaLlama


def parameters(model: Lcm) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def on_meta(card: LcmCard, dim: int) -> Lcm:
    with torch.device("meta"):
        codebooks = Codebooks(torch.empty(64, 8192, dim, dtype=torch.float16)) if card.quantised else None
        return build(card, RobustScaler(torch.zeros(dim), torch.ones(dim)), codebooks, LLAMA)


def predictions(model: Lcm, documents: list[Tensor]) -> list[Tensor]:
    """Of each document; the same noise in the same place whatever the batch: a sampler of one step from no noise."""
    sampling = Sampling(steps=1, initial_noise=0.0, guidance=2.0)
    batch = of_documents(documents)
    return list(model.predict(batch, sampling).split(batch.lengths.tolist()))


@pytest.mark.parametrize("name", shipped_lcm_cards())
def test_shipped_models_have_the_size_that_they_are_named_for(name: str) -> None:
    card = load_lcm_card(name)
    assert card.name == name
    size = name.rpartition("-")[2]
    dim = 256 if size in ("tiny", "books") else 1024
    count = parameters(on_meta(card, dim))
    assert count == card.parameters(dim, vocabulary=LLAMA)
    if size == "tiny":
        assert 1e6 < count < (1e7 if card.kind == "token-lm" else 3e6)
    elif size == "books":  # of the trained model that ships, by the guide
        assert abs(count / 9.3e6 - 1) < 0.01
    else:
        queries_and_keys = 2 * card.model_dim**2 * (card.denoiser_layers or 0) * (card.own_attention == "value")
        assert abs((count + queries_and_keys) / PAPER[size] - 1) < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_does_not_depend_on_its_neighbours(kind: str) -> None:
    model, documents = models.model(models.card(kind)), models.documents()
    together = predictions(model, documents)
    alone = [predictions(model, [one])[0] for one in documents]
    backwards = predictions(model, documents[::-1])[::-1]
    for one, other, third in zip(together, alone, backwards, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(one, third, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prediction_depends_on_the_sentences_before_it_and_no_others(kind: str) -> None:
    model, (document,) = models.model(models.card(kind)), models.documents((9,))
    changed = document.clone()
    changed[4] += 1
    before, after = predictions(model, [document])[0], predictions(model, [changed])[0]
    differs = (before - after).abs().amax(1) > 1e-5
    assert not differs[:5].any()
    assert differs[5:].any() if model.card.quantised else differs[5:].all()  # another unit, or the same


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_is_the_prediction_of_one_sentence_more(kind: str) -> None:
    model, documents = models.model(models.card(kind)), models.documents()
    longer = [torch.cat([one, torch.ones(1, models.DIM).half()]) for one in documents]
    expected = torch.stack([one[-1] for one in predictions(model, longer)])
    sampling = Sampling(steps=1, initial_noise=0.0, guidance=2.0)
    torch.testing.assert_close(model.next(of_documents(documents), sampling), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_fall(kind: str) -> None:
    model = models.fresh(models.card(kind, dropout=0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batch = models.batch((5, 4, 6))
    seen = []
    for _ in range(120):
        optimizer.zero_grad()
        loss = model.losses(batch).mean()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert sum(seen[-20:]) < 0.75 * sum(seen[:20])


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_losses_and_gradients_bit_for_bit(kind: str) -> None:
    found = []
    for _ in range(2):
        model = models.model(models.card(kind, dropout=0.1)).train()
        torch.manual_seed(3)
        losses = model.losses(models.batch())
        losses.mean().backward()
        found.append([losses.detach(), *(p.grad for p in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_one_a_sentence_in_float32_and_every_weight_gets_a_gradient(kind: str) -> None:
    model, batch = models.model(models.card(kind)).train(), models.batch()
    with torch.autocast("cpu", torch.bfloat16):
        losses = model.losses(batch)
    assert losses.shape == (batch.sentences,)
    assert losses.dtype == torch.float32
    losses.mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kind", KINDS)
def test_prediction_leaves_the_mode_alone_and_ignores_dropout(kind: str) -> None:
    model = models.model(models.card(kind, dropout=0.5)).train()
    first, second = (predictions(model, models.documents()) for _ in range(2))
    assert model.training
    assert torch.equal(torch.cat(first), torch.cat(second))


@pytest.mark.parametrize("kind", KINDS)
def test_operations_are_what_pytorch_counts(kind: str) -> None:
    """In full rows, where the mask hides half of what is computed."""
    model = models.model(models.card(kind, context=32)).train()
    batch = models.batch((32, 32, 32, 32))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.losses(batch).mean().backward()
    counted = counter.get_total_flops()
    assert model.flops(batch) == pytest.approx(counted - hidden(model, batch))


def hidden(model: Lcm, batch: Batch) -> int:
    """Operations of attention to what masks hide."""
    width, documents = model.card.context, len(batch.lengths)
    pairs, seen = documents * width**2, visible_pairs(batch.lengths)
    if model.card.kind not in ("base", "two-tower"):  # clean and noisy
        pairs, seen = 4 * pairs, 2 * seen
    return len(model.blocks()) * (pairs - seen) * 12 * model.card.model_dim
