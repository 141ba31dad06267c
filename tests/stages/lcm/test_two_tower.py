"""Two-Tower against the paper's form written plainly: one document, whole masks, AdaLN at every position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from stages.lcm.batch import of_documents
from stages.lcm.layers import Lookup
from stages.lcm.model import Sampling
from stages.lcm.packing import pack
from stages.lcm.two_tower import Context, DenoiserBlock, TwoTowerLcm
from tests.stages.lcm import models


def made(**changes: object) -> TwoTowerLcm:
    model = models.model(models.card("two-tower", **changes))
    assert isinstance(model, TwoTowerLcm)
    return model


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (2, -1)).transpose(0, 1)


def denoised(model: TwoTowerLcm, encoded: Tensor, noisy: Tensor, t: Tensor, dropped: Tensor) -> Tensor:
    """encoded: (sentences, model_dim), the contextualizer's outputs for one document, not shifted."""
    context = torch.cat([torch.zeros(1, encoded.shape[1]), encoded])[:-1]  # the zero vector is prepended
    sees = torch.ones(len(noisy), len(noisy), dtype=torch.bool).tril()
    sees[dropped, 1:] = False  # rows that are dropped see only the zero vector
    x = model.noisy_pre.project(noisy)
    for block in model.denoiser:
        assert isinstance(block, DenoiserBlock)
        parts = block.modulation(F.silu(model.timestep(t))).split(16, dim=1)  # eq. 21
        b, g, a = parts[0:3]
        v = block.self_attention.qkv((1 + g) * norm(x) + b)[:, 32:]
        x = x + a * block.self_attention.out(v)  # eq. 22
        b, g, a = parts[3:6]
        k, v = block.cross_attention.kv(context).chunk(2, dim=1)
        scores = heads(block.cross_attention.q((1 + g) * norm(x) + b)) @ heads(k).transpose(1, 2) / 8**0.5
        mixed = scores.masked_fill(~sees, -torch.inf).softmax(-1) @ heads(v)
        x = x + a * block.cross_attention.out(mixed.transpose(0, 1).flatten(1))
        b, g, a = parts[6:9]
        x = x + a * block.feed_forward((1 + g) * norm(x) + b)
    return model.post(x)


def test_the_denoiser_is_that_of_the_paper() -> None:
    model, lengths = made(), torch.tensor(models.LENGTHS)
    count = int(lengths.sum())
    torch.manual_seed(2)
    clean, noisy = torch.randn(2, count, models.DIM)
    t, dropped = torch.randint(1, 11, (count,)), torch.rand(count) < 0.4
    packing = pack(lengths, "cpu")
    context = Context(model._read(clean, packing), packing, packing, dropped)
    found = model._denoise(noisy, Lookup.over(t, 11), context)
    expected = []
    for part in torch.arange(count).split(lengths.tolist()):
        longer = torch.tensor([len(part) + 1])  # by one, which the last output is shifted to
        read = model._read(torch.cat([clean[part], clean[:1]]), pack(longer, "cpu"))
        expected.append(denoised(model, read[1:], noisy[part], t[part], dropped[part]))
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)


def test_a_look_up_and_its_gradient_are_those_of_a_product_with_a_one_hot_matrix() -> None:
    torch.manual_seed(0)
    index, table = torch.randint(0, 11, (300,)), torch.randn(16, 36, requires_grad=True)
    lookup, weights = Lookup.over(index, 11), torch.randn(300, 36)
    choice = torch.nn.functional.one_hot(index, 16).float()
    (expected,) = torch.autograd.grad(((choice @ table) * weights).sum(), table)
    found = lookup(table)
    assert torch.equal(found, choice @ table)
    assert torch.equal(torch.autograd.grad((found * weights).sum(), table)[0], expected)


def test_a_fresh_denoiser_is_the_identity() -> None:
    torch.manual_seed(0)
    model = TwoTowerLcm(models.card("two-tower"), models.scaler())
    lengths = torch.tensor(models.LENGTHS)
    packing = pack(lengths, "cpu")
    count = len(packing.scatter)
    lookup = Lookup.over(torch.randint(1, 11, (count,)), 11)
    context = Context(torch.randn(count, 16), packing, packing)
    x = torch.randn(count, 16)
    for block in model.denoiser:
        assert torch.equal(block(x, torch.randn(len(lookup.entries), 16), lookup, context), x)


def test_dropped_positions_and_those_without_a_place_see_nothing_of_the_context() -> None:
    model, lengths = made(), torch.tensor(models.LENGTHS)
    packing = pack(lengths, "cpu")
    count = len(packing.scatter)
    torch.manual_seed(0)
    noisy, dropped, lookup = (
        torch.randn(count, models.DIM),
        torch.arange(count) % 3 == 0,
        Lookup.same(torch.tensor([7])),
    )
    one, other = (Context(torch.randn(count, 16), packing, packing, dropped) for _ in range(2))
    first, second = (model._denoise(noisy, lookup, context) for context in (one, other))
    assert torch.equal(first[dropped], second[dropped])
    assert ((first - second).abs().amax(1) > 1e-4)[~dropped].all()
    both = model._denoise(torch.cat([noisy, noisy]), lookup, Context(one.encoded, packing, packing))
    torch.testing.assert_close(both[count:][dropped], first[dropped], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(both[:count][~dropped], first[~dropped], atol=1e-5, rtol=1e-5)


def test_targets_are_dropped_at_the_rate_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    model, documents = made(unconditional=0.4), models.documents((20,) * 30)
    seen = []
    original = model._denoise

    def watched(noisy: Tensor, timesteps: Lookup, context: Context) -> Tensor:
        assert context.dropped is not None
        seen.append(context.dropped.float().mean().item())
        return original(noisy, timesteps, context)

    monkeypatch.setattr(model, "_denoise", watched)
    torch.manual_seed(0)
    model.losses(of_documents(documents))
    assert seen == [pytest.approx(0.4, abs=0.06)]


def test_guidance_of_one_is_the_conditional_prediction() -> None:
    model, batch = made(), models.batch()
    plain, guided = (
        model.predict(batch, Sampling(steps=1, initial_noise=0.0, guidance=guidance, rescale=0.0))
        for guidance in (1.0, 1.0 + 1e-6)
    )
    torch.testing.assert_close(plain, guided, atol=1e-4, rtol=1e-4)


def test_sampling_computes_the_keys_once_and_gives_the_same_as_computing_them_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = made(), models.batch()
    torch.manual_seed(0)
    kept = model.predict(batch, Sampling(steps=5))
    original = model._denoise
    monkeypatch.setattr(model, "_denoise", lambda x, t, context, caches: original(x, t, context))
    torch.manual_seed(0)
    torch.testing.assert_close(model.predict(batch, Sampling(steps=5)), kept, atol=1e-4, rtol=1e-4)


def test_the_loss_is_weighted_by_the_timestep() -> None:
    """With a clamp of both to 2 every loss doubles."""
    diffusion = {"steps": 10}
    plain = made(diffusion=diffusion)
    doubled = made(diffusion=diffusion | {"snr_min": 2.0, "snr_max": 2.0})
    losses = []
    for model in (plain, doubled):
        torch.manual_seed(1)
        losses.append(model.losses(models.batch()))
    torch.testing.assert_close(losses[1], 2 * losses[0])


def test_own_attention_without_queries_and_keys_is_the_same_function() -> None:
    """Of the same weights: losses, gradients and predictions; and every weight has a gradient that is not zero."""
    full = models.model(models.card("two-tower"))
    value = models.fresh(models.card("two-tower", own_attention="value")).eval()
    value.load_state_dict(full.state_dict())
    batch = models.batch()
    found = []
    for model in (full, value):
        torch.manual_seed(3)
        losses = model.losses(batch)
        losses.sum().backward()
        torch.manual_seed(4)
        found.append((losses.detach(), model.predict(batch, Sampling(steps=3))))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    grads = dict(full.named_parameters())
    for name, parameter in value.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        theirs = grads.get(name)
        gradient = grads[name.replace("value", "qkv")].grad[32:] if theirs is None else theirs.grad
        assert torch.equal(parameter.grad, gradient), name
    unused = sum(p.numel() for p in full.parameters()) - sum(p.numel() for p in value.parameters())
    assert unused == 2 * 2 * 16**2  # in two blocks
    assert value.card.parameters(models.DIM) == sum(p.numel() for p in value.parameters())


def test_own_attention_belongs_to_two_towers() -> None:
    with pytest.raises(ValidationError, match="kind base has no own_attention"):
        models.card("base", own_attention="value")
    assert "own_attention" not in models.card("two-tower").recorded()
    assert models.card("two-tower", own_attention="value").recorded()["own_attention"] == "value"
