"""Quant-LCM: sums of centroids and eq. 23 by hand; what a model that knows its batch by heart predicts."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from stages.lcm.batch import Batch, of_documents
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.lcm.model import Lcm, Sampling
from stages.lcm.quant import QuantLcmC, residual_logits, sums_of_first
from stages.rvq.codebooks import Codebooks
from stages.rvq.fit import fit_codebooks
from stages.rvq.settings import RvqSettings
from stages.scaler.robust import RobustScaler, ScalerFit

DIM, CODEBOOKS, UNITS = 8, 3, 16
LENGTHS = [5, 3, 6]
GREEDY = Sampling(guidance=1, top_k=1)
QuantKind = Literal["quant-c", "quant-d"]


def card(kind: QuantKind, **changes: object) -> LcmCard:
    numbers = {"model_dim": 32, "heads": 2, "inner_dim": 64, "layers": 2, "context": 8, "dropout": 0.0}
    return LcmCard.model_validate(
        {"name": "tiny", "description": "", "licence": "MIT", "kind": kind, **numbers, **changes}
    )


def corpus() -> tuple[Tensor, RobustScaler, Codebooks]:
    """Embeddings that are not centred, the scaler and the codebooks that are fitted to them."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(400, DIM)) * rng.uniform(0.5, 2, DIM) + rng.normal(size=DIM)).astype(np.float16)
    fit = ScalerFit(DIM)
    fit.add(x)
    settings = RvqSettings.model_validate({"codebooks": CODEBOOKS, "units": UNITS})
    return torch.from_numpy(x), fit.finish(), fit_codebooks(x.copy(), settings, "cpu", lambda done, of: None)[0]


EMBEDDINGS, SCALER, CODEBOOKS_FITTED = corpus()


def with_codes(documents: list[Tensor]) -> Batch:
    found = of_documents(documents)
    codes = CODEBOOKS_FITTED.encode(found.embeddings.numpy(), "float32").astype(np.int32)
    return Batch(found.embeddings, found.lengths, found.weights, torch.from_numpy(codes))


def documents() -> list[Tensor]:
    return list(EMBEDDINGS[: sum(LENGTHS)].split(LENGTHS))


def fitted(kind: QuantKind, steps: int, lr: float) -> tuple[Lcm, list[float]]:
    """A model that was trained on the three documents alone, and its losses."""
    torch.manual_seed(0)
    model = build(card(kind), SCALER, CODEBOOKS_FITTED).train()
    batch = with_codes(documents())
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        loss = model.losses(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return model.eval(), losses


@pytest.fixture(scope="module")
def quant_c() -> tuple[Lcm, list[float]]:
    return fitted("quant-c", 100, 1e-2)


@pytest.fixture(scope="module")
def quant_d() -> tuple[Lcm, list[float]]:
    return fitted("quant-d", 300, 3e-3)


@pytest.fixture(params=["quant-c", "quant-d"])
def model(request: pytest.FixtureRequest, quant_c: tuple[Lcm, list[float]], quant_d: tuple[Lcm, list[float]]) -> Lcm:
    return (quant_c if request.param == "quant-c" else quant_d)[0]


def test_sums_are_those_of_the_first_codebooks() -> None:
    codes = CODEBOOKS_FITTED.encode(EMBEDDINGS[:20].numpy(), "float32")
    counts = torch.arange(20) % (CODEBOOKS + 1)
    found = sums_of_first(CODEBOOKS_FITTED.centroids, torch.from_numpy(codes.astype(np.int32)), counts)
    for row, count in enumerate(counts.tolist()):
        expected = CODEBOOKS_FITTED.decode(codes[row, None], count)[0] if count else torch.zeros(DIM)
        assert torch.equal(found[row], expected)


def test_eq_23() -> None:
    rng = np.random.default_rng(1)
    centroids, residual, beta = rng.normal(size=(7, 5)), rng.normal(size=(3, 5)), 1 / 0.3
    logits = residual_logits(torch.tensor(centroids).half(), torch.tensor(residual, dtype=torch.float32))
    found = (logits * beta).softmax(1)
    for row in range(3):
        weights = [math.exp(-beta * math.dist(one.astype(np.float16), residual[row])) for one in centroids]
        assert found[row].tolist() == pytest.approx([one / sum(weights) for one in weights], rel=1e-4)


@pytest.mark.slow
def test_the_first_losses_are_those_of_guessing(
    quant_c: tuple[Lcm, list[float]], quant_d: tuple[Lcm, list[float]]
) -> None:
    """Heads start at zero: all units are equally likely, and the embedding is the median."""
    assert quant_d[1][0] == pytest.approx(math.log(UNITS), rel=1e-5)
    normalized = SCALER.normalize(torch.cat(documents()))
    assert quant_c[1][0] == pytest.approx(float(normalized.square().sum(1).mean()), rel=1e-5)


def test_training_lowers_the_losses(quant_c: tuple[Lcm, list[float]], quant_d: tuple[Lcm, list[float]]) -> None:
    """Not to zero: the first of three documents has no context, and some targets are trained without theirs."""
    for _, losses in (quant_c, quant_d):
        assert np.mean(losses[-50:]) < 0.4 * losses[0]


def has_context() -> Tensor:
    """(sentences,) bool: all but the first of each document, which could be any of three."""
    found = torch.ones(sum(LENGTHS), dtype=torch.bool)
    found[[0, *np.cumsum(LENGTHS)[:-1]]] = False
    return found


def test_a_model_that_knows_its_documents_predicts_their_codes(quant_d: tuple[Lcm, list[float]]) -> None:
    batch = with_codes(documents())
    assert batch.codes is not None
    found = quant_d[0].predict(batch, GREEDY)
    expected = CODEBOOKS_FITTED.decode(batch.codes.numpy().astype(np.uint16))
    assert torch.allclose(found[has_context()], expected[has_context()], atol=1e-5)


def test_a_model_that_knows_its_documents_predicts_embeddings_near_theirs(quant_c: tuple[Lcm, list[float]]) -> None:
    batch = of_documents(documents())
    error = (quant_c[0].predict(batch, GREEDY) - batch.embeddings.float())[has_context()].square().sum(1).mean()
    assert error < 0.5 * batch.embeddings.float().var(0).sum()


def test_continuous_targets_take_the_centroid_nearest_to_the_residual(quant_c: tuple[Lcm, list[float]]) -> None:
    model = quant_c[0]
    assert isinstance(model, QuantLcmC)
    outputs: list[Tensor] = []
    handle = model.transformer.post.register_forward_hook(lambda *found: outputs.append(found[-1]))
    try:
        found = model.predict(of_documents(documents()), GREEDY)
    finally:
        handle.remove()
    sums = torch.zeros(sum(LENGTHS), DIM)
    for output, centroids in zip(outputs, CODEBOOKS_FITTED.centroids.float(), strict=True):
        residual = SCALER.denormalize(output) - sums
        nearest = (residual[:, None] - centroids).square().sum(2).argmin(1)
        sums += centroids[nearest]
    assert torch.allclose(found, sums, atol=1e-5)


def test_predictions_are_sums_of_one_centroid_of_each_codebook(model: Lcm) -> None:
    torch.manual_seed(0)
    found = model.predict(of_documents(documents()), Sampling(guidance=1, temperature=5.0, top_k=None))
    sums = CODEBOOKS_FITTED.centroids[0].float()
    for centroids in CODEBOOKS_FITTED.centroids[1:]:
        sums = (sums[:, None] + centroids.float()).reshape(-1, DIM)
    assert torch.cdist(found, sums, compute_mode="donot_use_mm_for_euclid_dist").min(1).values.max() < 1e-5


def test_sentences_depend_on_those_before_them_only(model: Lcm) -> None:
    texts = documents()
    whole = model.predict(of_documents(texts), GREEDY).split(LENGTHS)
    alone = [model.predict(of_documents([one]), GREEDY) for one in texts]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(whole, alone, strict=True))
    changed = [torch.cat([texts[2][:3], EMBEDDINGS[at : at + 3]]) for at in range(100, 160, 3)]
    again = model.predict(of_documents(changed), GREEDY).view(len(changed), 6, DIM)
    assert torch.allclose(again[:, :4], whole[2][:4].expand(len(changed), 4, DIM), atol=1e-5)
    # one change may choose the same codes, where the model knows its three documents too well
    assert not torch.allclose(again[:, 4:], whole[2][4:].expand(len(changed), 2, DIM), atol=1e-2)


def test_the_next_sentence_is_what_a_longer_document_predicts(model: Lcm) -> None:
    texts = documents()
    found = model.next(of_documents([texts[0][:4], texts[1][:1], texts[2][:5]]), GREEDY)
    whole = model.predict(of_documents(texts), GREEDY).split(LENGTHS)
    assert torch.allclose(found, torch.stack([whole[0][4], whole[1][1], whole[2][5]]), atol=1e-5)


def test_guidance_mixes_what_is_known_with_and_without_context(model: Lcm) -> None:
    """0 is the model without context, eq. 20, and 2 goes beyond 1."""
    texts = documents()
    other = [EMBEDDINGS[100 : 100 + len(one)] for one in texts]
    without = Sampling(guidance=0, top_k=1)
    assert torch.equal(model.predict(of_documents(texts), without), model.predict(of_documents(other), without))
    by_one = model.predict(of_documents(other), GREEDY)
    assert not torch.allclose(by_one, model.predict(of_documents(other), without), atol=1e-2)
    assert not torch.allclose(by_one, model.predict(of_documents(other), Sampling(guidance=2, top_k=1)), atol=1e-2)


def test_without_guidance_the_unconditional_model_is_not_computed(model: Lcm) -> None:
    """What it says has no effect: predictions of the same weights are the same to the last bit."""
    passes: list[int] = []
    handle = model.blocks()[0].register_forward_hook(lambda *found: passes.append(len(found[-1])))
    try:
        model.predict(of_documents(documents()), GREEDY)
        with_one = sum(passes)
        passes.clear()
        model.predict(of_documents(documents()), Sampling(guidance=2, top_k=1))
    finally:
        handle.remove()
    assert with_one < sum(passes)


def test_a_seed_repeats_samples_and_losses(model: Lcm) -> None:
    batch, sampling = with_codes(documents()), Sampling(guidance=1.5, temperature=2.0, top_k=None, top_p=0.95)
    drawn, losses = [], []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(model.predict(batch, sampling))
        losses.append(model.losses(batch))
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(losses[0], losses[1])
    assert not torch.equal(drawn[0], drawn[2]) and not torch.equal(losses[0], losses[2])


def test_losses_are_of_each_sentence(model: Lcm) -> None:
    assert model.losses(with_codes(documents())).shape == (sum(LENGTHS),)
    assert model.losses(with_codes(documents())).dtype == torch.float32


@pytest.mark.parametrize("kind", ["quant-c", "quant-d"])
def test_weights_without_centroids(kind: QuantKind) -> None:
    """Those are the corpus's: a checkpoint holds them no second time."""
    model = build(card(kind), SCALER, CODEBOOKS_FITTED)
    assert not [name for name in model.state_dict() if "centroids" in name]


def test_what_is_lacking() -> None:
    with pytest.raises(ValueError, match="section rvq"):
        build(card("quant-d"), SCALER)
    model = build(card("quant-d"), SCALER, CODEBOOKS_FITTED)
    batch = with_codes(documents())
    with pytest.raises(ValueError, match=r"no codes.*section rvq"):
        model.losses(of_documents(documents()))
    assert batch.codes is not None
    with pytest.raises(ValueError, match=r"2 codes per sentence.*3 codebooks"):
        model.losses(Batch(batch.embeddings, batch.lengths, batch.weights, batch.codes[:, :2]))
    wide = Codebooks(torch.zeros(2, 4, DIM + 1).half())
    with pytest.raises(ValueError, match=f"codebooks of dimension {DIM + 1}.*scaler of {DIM}"):
        build(card("quant-c"), SCALER, wide)
    with pytest.raises(ValueError, match="context is 8"):
        model.predict(of_documents([EMBEDDINGS[:9]]), GREEDY)
