"""Likelihood of texts under a decoder: against plain loops over rows and tokens, gradients against PyTorch's own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from stages.batching import Tokens
from stages.sonar import likelihood
from stages.sonar.ids import END
from stages.sonar.likelihood import sentence_losses
from stages.sonar.networks import SonarTextDecoder

DIM, VOCAB = 16, 40
TEXTS = [[30, 5, 6, 7, END], [31, END], [30, 9, END], [30, *range(4, 22), END], [31, 8, 8, 8, END], [31, 4, END]]


def decoder(tied: bool = True) -> SonarTextDecoder:
    torch.manual_seed(0)
    made = SonarTextDecoder(dim=DIM, layers=2, heads=2, ffn_dim=24, vocab_size=VOCAB, max_tokens=32, tied=tied)
    return made.eval().requires_grad_(False)


def embeddings() -> Tensor:
    return torch.randn(len(TEXTS), DIM, generator=torch.Generator().manual_seed(1))


def plain(network: SonarTextDecoder, x: Tensor, ids: list[int]) -> Tensor:
    """One row, one token after the other: each from a pass over those before it."""
    before, total = [END, ids[0]], torch.zeros((), dtype=x.dtype)
    for token in ids[1:]:
        logits = network(torch.tensor([before]), x[None])[0, -1]
        total = total - (logits[token] - logits.logsumexp(0))
        before.append(token)
    return total


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("group_tokens", "logits"), [(2048, 1 << 26), (20, 3 * VOCAB), (1, 1)])
def test_losses_and_gradients_are_those_of_plain_loops(
    monkeypatch: pytest.MonkeyPatch, tied: bool, group_tokens: int, logits: int
) -> None:
    monkeypatch.setattr(likelihood, "LOGITS", logits)
    network, x, weights = decoder(tied), embeddings(), torch.tensor([1.0, 2, 0, 0.5, 1, 3])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = sentence_losses(network, ours, Tokens.of(TEXTS), group_tokens)
    (weights * found).sum().backward()
    expected = torch.stack([plain(network, row, ids) for row, ids in zip(theirs, TEXTS, strict=True)])
    (weights * expected).sum().backward()
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-6)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
    assert all(parameter.grad is None for parameter in network.parameters())
    with torch.no_grad():
        assert torch.equal(sentence_losses(network, x, Tokens.of(TEXTS), group_tokens), found)


def test_a_decoder_that_knows_nothing_says_log_of_the_vocabulary() -> None:
    network = decoder(tied=False)
    assert network.output is not None
    torch.nn.init.zeros_(network.output.weight)
    found = sentence_losses(network, embeddings(), Tokens.of(TEXTS))
    assert found.tolist() == pytest.approx([(len(ids) - 1) * math.log(VOCAB) for ids in TEXTS], rel=1e-6)


def test_autocast_changes_nothing() -> None:
    network, x = decoder(), embeddings()
    with torch.autocast("cpu", torch.bfloat16):
        found = sentence_losses(network, x, Tokens.of(TEXTS))
    assert torch.equal(found, sentence_losses(network, x, Tokens.of(TEXTS)))


def test_the_gradient_takes_one_forward_and_one_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = decoder(), embeddings().requires_grad_()
    with FlopCounterMode(display=False) as alone, torch.no_grad():
        sentence_losses(network, x, Tokens.of(TEXTS))
    with FlopCounterMode(display=False) as both:
        sentence_losses(network, x, Tokens.of(TEXTS)).sum().backward()
    assert both.get_total_flops() < 2.6 * alone.get_total_flops()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="embeddings have 15 dimensions, the decoder takes 16: name the decoder"):
        sentence_losses(decoder(), torch.zeros(6, 15), Tokens.of(TEXTS))
    with pytest.raises(ValueError, match="2 embeddings, but 6 texts"):
        sentence_losses(decoder(), torch.zeros(2, DIM), Tokens.of(TEXTS))
    with pytest.raises(ValueError, match="longer than the model's 32"):
        sentence_losses(decoder(), torch.zeros(1, DIM), Tokens.of([[30, *[4] * 40, END]]))
