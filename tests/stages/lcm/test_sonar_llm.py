"""SONAR-LLM: its loss is the likelihood of words given Base-LCM's prediction; draws of targets; bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stages.batching import Tokens
from stages.lcm.base import BaseLcm
from stages.lcm.batch import Batch
from stages.lcm.model import Sampling
from stages.lcm.sonar_llm import SonarLlm
from stages.sonar.ids import END
from stages.sonar.networks import SonarTextDecoder
from tests.stages.lcm import models
from tests.stages.lcm.models import VOCAB


def decoder(dim: int = models.DIM) -> SonarTextDecoder:
    torch.manual_seed(2)
    return SonarTextDecoder(dim=dim, layers=2, heads=2, ffn_dim=16, vocab_size=VOCAB, max_tokens=16)


def batch(lengths: tuple[int, ...] = models.LENGTHS) -> Batch:
    return models.batch_of_words(lengths)


def made(fresh: bool = False, **settings: object) -> SonarLlm:
    card = models.card("base", objective="sonar-llm", sonar_llm=settings)
    model = models.fresh(card) if fresh else models.model(card)
    assert isinstance(model, SonarLlm)
    model.use(decoder())
    return model


def likelihood(network: SonarTextDecoder, x: torch.Tensor, ids: list[int]) -> torch.Tensor:
    """−log p of one sentence, token after token."""
    before, total = [END, ids[0]], torch.zeros(())
    for token in ids[1:]:
        total = total - network(torch.tensor([before]), x[None])[0, -1].log_softmax(0)[token]
        before.append(token)
    return total


def test_losses_and_gradients_are_those_of_plain_loops() -> None:
    """−Σ log softmax(z)[s], teacher-forced, of Base-LCM's predictions: eq. 1."""
    model, one, network = made(), batch(), decoder().requires_grad_(False)
    base = BaseLcm(model.card, model.scaler)
    base.load_state_dict(model.state_dict())
    normalized = base.scaling.normalize(one.embeddings)
    predicted = base.scaling.denormalize(base._predict(normalized, one.packing))
    assert one.tokens is not None
    ids = [one.tokens.ids[a:b].tolist() for a, b in zip(one.tokens.offsets, one.tokens.offsets[1:], strict=False)]
    expected = torch.stack([likelihood(network, x, words) for x, words in zip(predicted, ids, strict=True)])
    found = model.losses(one)
    assert found[:2].tolist() == [0, 0]  # of a prompt
    assert found[2:].tolist() == pytest.approx(expected[2:].tolist(), rel=1e-6)
    (one.weights * found).sum().backward()
    (one.weights * expected).sum().backward()
    for (name, ours), theirs in zip(model.named_parameters(), base.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and ours.grad.abs().sum() > 0, name
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.predict(one, Sampling()), base.predict(one, Sampling()))


def test_the_decoder_is_no_part_of_the_model() -> None:
    model = made()
    assert model.state_dict().keys() == BaseLcm(model.card, model.scaler).state_dict().keys()
    before = {name: one.clone() for name, one in model._decoder[0].state_dict().items()}
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-2)
    one, seen = batch(), []
    for _ in range(40):
        loss = model.losses(one).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert seen[-1] < 0.9 * seen[0]
    assert all(torch.equal(before[name], one) for name, one in model._decoder[0].state_dict().items())


@pytest.mark.parametrize(("most", "draws"), [(1, 80), (3, 80), (100, 2)])
def test_some_targets_of_a_document_stand_for_all(most: int, draws: int) -> None:
    model, one = made(targets_per_document=most), batch()
    everything = made().losses(one)
    assert torch.equal(model.eval().losses(one), everything)
    model.train()
    sums = torch.zeros(len(one.lengths))
    for draw in range(draws):
        torch.manual_seed(draw)
        losses = model.losses(one).detach()
        for number, (mine, all_of_it) in enumerate(
            zip(losses.split(one.lengths.tolist()), everything.split(one.lengths.tolist()), strict=True)
        ):
            targets = int((all_of_it > 0).sum())
            chosen = mine > 0
            assert int(chosen.sum()) == min(most, targets)
            torch.testing.assert_close(mine[chosen], all_of_it[chosen] * targets / min(most, targets))
            sums[number] += mine.sum() / draws
    expected = torch.stack([some.sum() for some in everything.split(one.lengths.tolist())])
    torch.testing.assert_close(sums, expected.detach(), rtol=0.15, atol=0.0)
    torch.manual_seed(7)
    first = model.losses(one)
    torch.manual_seed(7)
    assert torch.equal(first, model.losses(one))


def test_operations_count_the_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch()
    base = BaseLcm(made().card, models.scaler()).flops(one)
    everything, some = made().train(), made(targets_per_document=1).train()
    assert everything.flops(one) > some.flops(one) > base
    share = (some.flops(one) - base) / (everything.flops(one) - base)
    assert share == pytest.approx(5 / (sum(models.LENGTHS) - 2))
    assert some.eval().flops(one) == everything.flops(one)


def test_tokens_of_some_sentences() -> None:
    tokens = Tokens.of([[1, 2], [3], [4, 5, 6]])
    found = tokens.select(np.array([2, 0]))
    assert found.ids.tolist() == [4, 5, 6, 1, 2] and found.offsets.tolist() == [0, 3, 5]


def test_what_does_not_fit_is_refused() -> None:
    model = models.fresh(models.card("base", objective="sonar-llm"))
    assert isinstance(model, SonarLlm)
    with pytest.raises(ValueError, match="learns by words and has not been given a decoder"):
        model.losses(batch())
    with pytest.raises(ValueError, match="the decoder takes embeddings of 14 dimensions, these have 12"):
        model.use(decoder(14))
    model.use(decoder())
    with pytest.raises(ValueError, match="has not been given the tokens of its sentences"):
        model.losses(models.batch())
    with pytest.raises(ValueError, match="sonar_llm is given, but objective is not sonar-llm"):
        models.card("base", sonar_llm={})
    with pytest.raises(ValueError, match="objective sonar-llm belongs to the kind base, not to quant-d"):
        models.card("quant-d", objective="sonar-llm")
    with pytest.raises(ValueError, match="targets_per_document"):
        models.card("base", objective="sonar-llm", sonar_llm={"targets_per_document": 0})
