"""The contrastive objective: losses against plain loops, negatives that are equal, the head of tied keys, bad input."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stages.cards import CardError
from stages.lcm.base import BaseLcm
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import ContrastiveSettings, last_steps, load_lcm_card, with_objective
from stages.lcm.contrastive import ContrastiveLcm, contrastive_losses, negatives
from stages.lcm.model import Sampling
from stages.lcm.packing import visible_pairs
from stages.scaler.robust import RobustScaler
from tests.stages.lcm import models

KEYS = ("frozen", "tied")


def made(keys: str, fresh: bool = False, **changes: object) -> ContrastiveLcm:
    one = models.card("base", objective="contrastive", **({"contrastive": {"keys": keys}} | changes))
    model = models.fresh(one) if fresh else models.model(one)
    assert isinstance(model, ContrastiveLcm)
    return model


def batch() -> Batch:
    """With sentences that stand in two places, and with a prompt of two."""
    one = models.batch()
    embeddings, weights = one.embeddings.clone(), one.weights.clone()
    embeddings[5] = embeddings[4] = embeddings[33]
    weights[:2] = 0
    return replace(one, embeddings=embeddings, weights=weights)


def plain(queries: Tensor, keys: Tensor, temperature: float, one: Batch) -> list[float]:
    """By loops over pairs, in float64."""
    found = []
    for i, query in enumerate(queries.double()):
        scores, own = [], 0.0
        for j, key in enumerate(keys.double()):
            is_negative = float(one.weights[j]) > 0 and not torch.equal(one.embeddings[i], one.embeddings[j])
            if i == j or is_negative:
                score = sum(a * b for a, b in zip(query.tolist(), key.tolist(), strict=True))
                scores.append(score / temperature / math.sqrt(len(query)))
                own = scores[-1] if i == j else own
        found.append(math.log(sum(math.exp(score) for score in scores)) - own)
    return found


def test_losses_are_those_of_plain_loops() -> None:
    torch.manual_seed(0)
    one = batch()
    queries, keys = torch.randn(2, one.sentences, 8)
    found = contrastive_losses(queries, keys, -math.log(0.3), negatives(one.embeddings, one.weights))
    assert found.tolist() == pytest.approx(plain(queries, keys, 0.3, one), rel=1e-6)


@pytest.mark.parametrize("keys", KEYS)
def test_a_model_s_losses_are_those_of_plain_loops(keys: str) -> None:
    model, one = made(keys), batch()
    clean = model.scaling.normalize(one.embeddings)
    if keys == "frozen":
        temperature = 1 / model.log_scale.exp().item()
        queries = model.scaling.normalize(model.predict(one, Sampling()))
        assert temperature != pytest.approx(0.5) and made(keys, True).log_scale.exp().item() == pytest.approx(2)
    else:
        temperature = 1.0
        queries, clean = model.post.norm(model._read(clean, one.packing)), model.pre.project(clean)
    assert model.losses(one).tolist() == pytest.approx(plain(queries, clean, temperature, one), rel=1e-5)


def test_the_temperature_can_be_set() -> None:
    assert made("frozen", True, contrastive={"temperature": 0.1}).log_scale.exp().item() == pytest.approx(10)
    assert math.exp(made("tied", True, contrastive={"keys": "tied", "temperature": 4.0}).scale) == pytest.approx(0.25)


def test_equal_sentences_and_prompts_are_no_negatives() -> None:
    one = batch()
    compared = negatives(one.embeddings, one.weights)
    for i in range(one.sentences):
        for j in range(one.sentences):
            differs = not torch.equal(one.embeddings[i], one.embeddings[j])
            assert compared[i, j] == (i == j or (differs and j > 1))
    alone = replace(one, embeddings=one.embeddings[4:5].expand(one.sentences, -1).contiguous())
    assert made("frozen").losses(alone).tolist() == [0.0] * one.sentences


def test_numbers_that_differ_in_one_bit_are_not_equal() -> None:
    torch.manual_seed(0)
    some = torch.randn(1, 1024).half().expand(1025, -1).contiguous()
    bits = some.view(torch.int16)
    bits[torch.arange(1024), torch.arange(1024)] ^= 1
    assert negatives(some, torch.ones(1025)).all()


@pytest.mark.parametrize("keys", KEYS)
def test_every_weight_gets_a_gradient_and_losses_fall(keys: str) -> None:
    model = made(keys, True).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    one, seen = models.batch((5, 4, 6)), []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            losses = model.losses(one)
        losses.mean().backward()
        assert losses.dtype == torch.float32 and all(one.grad is not None for one in model.parameters())
        optimizer.step()
        seen.append(losses.mean().item())
    assert seen[-1] < 0.75 * seen[0]


@pytest.mark.parametrize("keys", KEYS)
def test_operations_are_what_pytorch_counts(keys: str) -> None:
    model, one = made(keys, context=32).train(), models.batch((32, 32, 32, 32))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.losses(one).mean().backward()
    hidden = len(model.blocks()) * (4 * 32**2 - visible_pairs(one.lengths)) * 12 * model.card.model_dim
    assert model.flops(one) == pytest.approx(counter.get_total_flops() - hidden)


@pytest.mark.parametrize("keys", KEYS)
def test_at_the_papers_size_it_costs_less_than_a_twentieth_of_a_step(keys: str) -> None:
    chosen = with_objective(
        load_lcm_card("lcm-base-1.6b"), "contrastive", ContrastiveSettings.model_validate({"keys": keys})
    )
    one = Batch(torch.empty(0), torch.tensor([128] * 64), torch.empty(0))
    with torch.device("meta"):
        one = replace(one, embeddings=torch.empty(8192, 1024), weights=torch.ones(8192))
        scaler = RobustScaler(torch.zeros(1024), torch.ones(1024))
        base, model = build(load_lcm_card("lcm-base-1.6b"), scaler), build(chosen, scaler)
    assert base.flops(one) < model.flops(one) < 1.05 * base.flops(one)


def test_the_head_begins_with_the_inverse_of_prenet_and_learns_the_squared_error() -> None:
    model, one = made("tied", contrastive={"keys": "tied", "head": 0.25}), batch()
    with pytest.raises(ValueError, match=r"tied keys and has no head yet.*contrastive\.head above 0.*init_from"):
        model.predict(one, Sampling())
    with pytest.raises(ValueError, match="has no head yet"):
        model.next(one, Sampling())
    before = model.losses(one)
    for step in range(3):
        model.begin_step(step, 4)
    assert torch.equal(model.losses(one), before)
    model.begin_step(3, 4)
    x = torch.randn(7, models.DIM)
    torch.testing.assert_close(model.post.project(model.pre(x)), x, atol=1e-4, rtol=1e-4)
    base = BaseLcm(model.card, model.scaler)
    base.load_state_dict({name: value for name, value in model.state_dict().items() if name != "head"})
    assert torch.equal(model.losses(one), base.losses(one))
    assert torch.equal(model.predict(one, Sampling()), base.predict(one, Sampling()))
    with torch.no_grad():
        model.post.project.weight.add_(1)
    weight = model.post.project.weight.clone()
    resumed = made("tied", contrastive={"keys": "tied", "head": 0.25})
    resumed.load_state_dict(model.state_dict())
    resumed.begin_step(3, 4)  # as after a checkpoint: the head has begun
    assert torch.equal(resumed.post.project.weight, weight)


def test_the_steps_of_the_head_are_the_share_as_it_is_written() -> None:
    """In floats, 0.07 · 100 is a little more than 7."""
    shares = {0.0: 0, 1e-5: 1, 0.02: 2, 0.025: 3, 0.07: 7, 0.14: 14, 1.0: 100}
    assert {share: last_steps(share, 100) for share in shares} == shares
    model = made("tied", contrastive={"keys": "tied", "head": 0.07})
    model.begin_step(92, 100)
    assert not model.head
    model.begin_step(93, 100)
    assert model.head


def test_without_a_share_of_steps_there_is_no_head() -> None:
    model = made("tied", contrastive={"keys": "tied", "head": 0.0})
    for step in range(5):
        model.begin_step(step, 4)
    assert not model.head and not model._fitting


@pytest.mark.parametrize("keys", KEYS)
def test_a_micro_batch_of_one_target_is_refused(keys: str) -> None:
    one = models.batch((1,))
    with pytest.raises(ValueError, match="has a single target"):
        made(keys).check(one)
    made(keys).check(replace(one, weights=torch.zeros(1)))  # of prompts alone: nothing is learned anyway
    made(keys).check(models.batch((2,)))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(
        CardError, match="test-two-tower: objective contrastive belongs to the kind base, not to two-tower"
    ):
        with_objective(models.card("two-tower"), "contrastive", None)
    with pytest.raises(CardError, match="contrastive is given, but objective is not contrastive"):
        with_objective(models.card("base"), None, ContrastiveSettings())
    for wrong in ({"temperature": 0.0}, {"temperature": math.inf}, {"head": 1.1}, {"keys": "both"}):
        with pytest.raises(ValidationError):
            ContrastiveSettings.model_validate(wrong)


def test_cards_without_it_are_recorded_as_they_always_were() -> None:
    base = models.card("base")
    assert not {"objective", "contrastive"} & base.recorded().keys()
    changed = with_objective(base, "contrastive", None)
    assert changed.recorded() == with_objective(base, "contrastive", ContrastiveSettings()).recorded()
    assert changed.recorded()["contrastive"] == {"keys": "frozen", "temperature": None, "head": 0.02}
    assert with_objective(changed, "mse", None).recorded() == base.recorded()
