"""One-Tower against the paper's form written plainly: truly interleaved, concatenated, one document at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.lcm.batch import of_documents
from stages.lcm.model import Sampling
from stages.lcm.one_tower import OneTowerLcm
from stages.lcm.packing import pack
from tests.stages.lcm import models


def made(**changes: object) -> OneTowerLcm:
    model = models.model(models.card("one-tower", **changes))
    assert isinstance(model, OneTowerLcm)
    return model


def norm(x: Tensor, weight: Tensor | None) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def predicted(model: OneTowerLcm, clean: Tensor, noisy: Tensor, t: Tensor, dropped: Tensor) -> Tensor:
    """Predict by fig. 7 for one document: noisy 0, clean 0, noisy 1, clean 1, and so on."""
    tower, count = model.transformer, len(clean)
    weight = torch.cat([tower.embedding_in.weight, tower.index_in.weight], dim=1)
    inputs = torch.stack([noisy, clean], dim=1).flatten(0, 1)
    timesteps = torch.stack([t, torch.zeros_like(t)], dim=1).flatten()
    x = torch.cat([inputs, tower.index(timesteps)], dim=1) @ weight.T + tower.index_in.bias
    x = x + tower.positions.weight[:count].repeat_interleave(2, dim=0)
    sees = torch.zeros(2 * count, 2 * count, dtype=torch.bool)
    for n in range(count):
        sees[2 * n + 1, 1 : 2 * n + 2 : 2] = True
        sees[2 * n, 2 * n] = True
        if not dropped[n]:
            sees[2 * n, 1 : 2 * n : 2] = True
    for block in model.blocks():
        q, k, v = (
            one.unflatten(-1, (2, -1)).transpose(0, 1)
            for one in block.attention.qkv(norm(x, block.attention_norm.weight)).chunk(3, dim=1)
        )
        weights = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(~sees, -torch.inf).softmax(-1)
        x = x + block.attention.out((weights @ v).transpose(0, 1).flatten(1))
        x = x + F.gelu(norm(x, block.feed_forward_norm.weight) @ block.feed_forward.up.weight.T) @ (
            block.feed_forward.out.weight.T
        )
    return tower.post.project(norm(x[::2], tower.post.norm.weight))


def drawn(lengths: tuple[int, ...] = models.LENGTHS) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(2)
    clean, noisy = torch.randn(2, sum(lengths), models.DIM)
    t, dropped = torch.randint(1, 11, (sum(lengths),)), torch.rand(sum(lengths)) < 0.4
    return clean, noisy, t, dropped, torch.tensor(lengths)


def test_it_is_that_of_the_paper() -> None:
    model = made()
    clean, noisy, t, dropped, lengths = drawn()
    expected = [
        predicted(model, clean[part], noisy[part], t[part], dropped[part])
        for part in torch.arange(len(t)).split(lengths.tolist())
    ]
    found = model.transformer(clean, noisy, t, dropped, pack(lengths, "cpu"))
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)


def test_reading_once_and_refining_is_the_same_as_both_together() -> None:
    model = made()
    clean, noisy, t, _, lengths = drawn()
    t = torch.full_like(t, 4)
    packing = pack(lengths, "cpu")
    found = model.transformer.refine(
        torch.cat([noisy, noisy]), torch.cat([t, t]), packing, model.transformer.read(clean, packing)
    )
    nobody = torch.zeros(len(t), dtype=torch.bool)
    expected = [model.transformer(clean, noisy, t, dropped, pack(lengths, "cpu")) for dropped in (nobody, ~nobody)]
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-4, rtol=1e-4)


def test_dropped_targets_see_nothing_of_the_context() -> None:
    model = made()
    clean, noisy, t, dropped, lengths = drawn()
    first, second = (model.transformer(c, noisy, t, dropped, pack(lengths, "cpu")) for c in (clean, clean + 1))
    assert torch.equal(first[dropped], second[dropped])
    starts = lengths.cumsum(0) - lengths
    sees = ~dropped
    sees[starts] = False
    assert ((first - second).abs().amax(1) > 1e-4)[sees].all()


def test_targets_are_dropped_at_the_rate_of_the_card() -> None:
    documents = models.documents((20,) * 30)
    model = made(unconditional=0.4)
    shares = []
    model.transformer.register_forward_pre_hook(lambda _, inputs: shares.append(inputs[3].float().mean().item()))
    torch.manual_seed(0)
    model.losses(of_documents(documents))
    assert abs(shares[0] - 0.4) < 0.06


def test_sampling_is_repeatable_by_the_seed() -> None:
    model, batch = made(), models.batch()
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(model.predict(batch, Sampling(steps=4, eta=0.5)))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
