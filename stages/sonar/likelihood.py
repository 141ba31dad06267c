"""How likely a frozen decoder finds given texts, each after an embedding: −log p of their tokens, teacher-forced.

The decoder is given `</s> [language] s₁ … sₙ` and must say s₁ … sₙ `</s>`: n + 1 tokens per sentence, the language is
not one of them. A gradient reaches the embeddings and nothing else: it is computed with the losses, a group of
sentences at a time, so that no more is kept of a group than dim numbers per sentence. Cost: 2 · parameters FLOP per
token without the gradient, 4 · parameters with it. Memory: the activations of one group, 3 MB per token of the
published decoder with gradient, and `LOGITS` logits, twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stages.batching import Indices, Tokens
from stages.sonar.ids import END, PAD
from stages.sonar.networks import SonarTextDecoder

GROUP_TOKENS = 2048  # tokens, padding counted, that are computed together
LOGITS = 1 << 26  # that exist at a time: 268 MB in float32


def sentence_losses(
    decoder: SonarTextDecoder, embeddings: Tensor, targets: Tokens, group_tokens: int = GROUP_TOKENS
) -> Tensor:
    """Return −log p of sentences given their embeddings.

    Args:
        decoder: the network, frozen; it computes in the type of its weights.
        embeddings: (rows, dim); they get gradients.
        targets: `[language] pieces </s>` of each row.
        group_tokens: how many tokens are computed at once, about.

    Returns:
        (rows,) float32, in nats.

    Raises:
        ValueError: if rows or dimensions do not fit.
    """
    rows, dim = embeddings.shape
    width = decoder.embedding.weight.shape[1]
    if dim != width:
        raise ValueError(
            f"embeddings have {dim} dimensions, the decoder takes {width}: name the decoder of the encoder"
        )
    if len(targets.lengths) != rows:
        raise ValueError(f"{rows} embeddings, but {len(targets.lengths)} texts")
    found: Tensor = _SentenceLosses.apply(embeddings, decoder, targets, group_tokens)  # type: ignore[no-untyped-call]
    return found


class _SentenceLosses(torch.autograd.Function):
    """Computes the loss of each row and its gradient at once, which is possible as it depends on one embedding only."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, decoder: SonarTextDecoder, targets: Tokens, group_tokens: int) -> Tensor:
        differentiate = ctx.needs_input_grad[0]
        losses = torch.zeros(len(embeddings), device=embeddings.device)
        gradients = torch.zeros_like(embeddings) if differentiate else None
        with torch.autocast(embeddings.device.type, enabled=False):
            for group in _groups(targets.lengths, group_tokens):
                places = torch.from_numpy(group).to(embeddings.device, non_blocking=True)
                given = embeddings[places].to(decoder.embedding.weight.dtype)
                inputs, judged, labels = (
                    one.to(embeddings.device, non_blocking=True) for one in teacher_forced(targets, group)
                )
                with torch.set_grad_enabled(differentiate):
                    given.requires_grad_(differentiate)
                    found = _of_group(decoder, given, inputs, judged, labels)
                    if gradients is not None:
                        found.sum().backward()
                        assert given.grad is not None
                        gradients[places] = given.grad.to(gradients.dtype)
                losses[places] = found.detach()
        if gradients is not None:
            ctx.save_for_backward(gradients)
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradients,) = ctx.saved_tensors
        return upstream[0][:, None].to(gradients.dtype) * gradients, None, None, None


class _TokenLosses(torch.autograd.Function):
    """Computes −log softmax at labels: hidden (tokens, dim), weight (vocabulary, dim), labels (tokens,) → (tokens,).

    In chunks; the gradient of `hidden` is computed with the losses, so that no logits are kept. `weight` gets none.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        losses = torch.empty(len(hidden), device=hidden.device)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for some in torch.arange(len(hidden), device=hidden.device).split(max(1, LOGITS // len(weight))):
            logits = F.linear(hidden[some], weight).float()
            normal, own = logits.logsumexp(1), labels[some, None]
            losses[some] = normal - logits.gather(1, own)[:, 0]
            if gradient is not None:
                probabilities = logits.sub_(normal[:, None]).exp_()
                probabilities.scatter_add_(1, own, probabilities.new_full(own.shape, -1.0))
                gradient[some] = probabilities.to(weight.dtype) @ weight
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return upstream[0][:, None].to(gradient.dtype) * gradient, None, None


def _of_group(decoder: SonarTextDecoder, embeddings: Tensor, inputs: Tensor, judged: Tensor, labels: Tensor) -> Tensor:
    """Return (rows,) float32, of one group. inputs: (rows, length); judged: flat places that have labels; labels: of
    those.
    """
    weight = decoder.embedding.weight if decoder.output is None else decoder.output.weight
    hidden = decoder.hidden(inputs, embeddings).flatten(0, 1).index_select(0, judged)
    losses: Tensor = _TokenLosses.apply(hidden, weight, labels)  # type: ignore[no-untyped-call]
    return torch.zeros(inputs.numel(), device=losses.device).index_copy(0, judged, losses).view(inputs.shape).sum(1)


def _groups(lengths: Indices, tokens: int) -> list[Indices]:
    """Group rows of like lengths together, the longest first, with at most this many tokens per group, or one row."""
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    found, start = [], 0
    while start < len(order):
        end = start + max(1, tokens // int(lengths[order[start]]))
        found.append(order[start:end])
        start = end
    return found


def teacher_forced(targets: Tokens, rows: Indices) -> tuple[Tensor, Tensor, Tensor]:
    """Return the decoder's input, (rows, length) int64; the flat places in it that have labels; and these labels.

    They are found on the host, which would have to wait for the device if that found them.
    """
    lengths = targets.lengths[rows]
    inputs = np.full((len(rows), int(lengths.max())), PAD, np.int64)
    labels = np.full_like(inputs, PAD)
    for number, row in enumerate(rows):
        ids = targets.ids[targets.offsets[row] : targets.offsets[row + 1]]
        inputs[number, 0] = END
        inputs[number, 1 : len(ids)] = ids[:-1]
        labels[number, 1 : len(ids)] = ids[1:]
    judged = np.flatnonzero(labels != PAD)
    return torch.from_numpy(inputs), torch.from_numpy(judged), torch.from_numpy(labels.reshape(-1)[judged])
