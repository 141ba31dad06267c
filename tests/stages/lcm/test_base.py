"""Base-LCM: what it sees, what its loss is, and that it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from stages.lcm.base import BaseLcm
from stages.lcm.batch import of_documents
from stages.lcm.layers import SwiGLU
from stages.lcm.model import Sampling
from tests.stages.lcm import models


def made() -> BaseLcm:
    model = models.model(models.card("base"))
    assert isinstance(model, BaseLcm)
    return model


def test_it_is_a_plain_causal_transformer_on_each_document() -> None:
    """Eq. 1, 2, 4 and 5, written with whole matrices for one document at a time."""
    model, card = made(), models.card("base")
    head = card.model_dim // card.heads
    losses, predictions = [], []
    for document in models.documents():
        x = document.float()
        normalized = (x - model.scaler.median) / model.scaler.iqr
        h = model.pre.project(torch.cat([torch.zeros(1, models.DIM), normalized[:-1]]))
        angles = torch.arange(len(x))[:, None] * 10_000.0 ** -(torch.arange(0, head, 2) / head)
        turn = torch.polar(torch.ones_like(angles), angles)[None]

        def rope(x: torch.Tensor, turn: torch.Tensor = turn) -> torch.Tensor:
            turned = torch.complex(*x.chunk(2, dim=-1)) * turn
            return torch.cat([turned.real, turned.imag], dim=-1)

        for block in model.blocks():
            q, k, v = (
                one.view(len(x), card.heads, head).transpose(0, 1)
                for one in block.attention.qkv(F.rms_norm(h, (16,), block.attention_norm.weight, 1e-6)).chunk(3, -1)
            )
            scores = rope(q) @ rope(k).transpose(1, 2) / head**0.5
            future = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
            mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
            h = h + block.attention.out(mixed.transpose(0, 1).flatten(1))
            assert isinstance(block.feed_forward, SwiGLU)
            h = h + block.feed_forward(F.rms_norm(h, (16,), block.feed_forward_norm.weight, 1e-6))
        out = model.post.project(F.rms_norm(h, (16,), model.post.norm.weight, 1e-6))
        predictions.append(model.scaler.median + model.scaler.iqr * out)
        losses.append((predictions[-1] - x).square().sum(1) / model.scaler.iqr.square().mean())
    batch = models.batch()
    torch.testing.assert_close(model.losses(batch), torch.cat(losses), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.predict(batch, Sampling()), torch.cat(predictions), atol=1e-4, rtol=1e-4)


def test_what_follows_is_the_prediction_of_one_sentence_more() -> None:
    model, documents = made(), models.documents()
    longer = of_documents([torch.cat([one, torch.zeros(1, models.DIM).half()]) for one in documents])
    expected = model.predict(longer, Sampling())[longer.lengths.cumsum(0) - 1]
    torch.testing.assert_close(model.next(of_documents(documents), Sampling()), expected, atol=1e-5, rtol=1e-5)


def test_the_first_loss_is_that_of_the_median() -> None:
    torch.manual_seed(0)
    scaler = models.scaler()
    constant = torch.arange(models.DIM) == 3  # its iqr is a stand-in, so it says nothing of how large errors are
    model = BaseLcm(models.card("base"), replace(scaler, iqr=scaler.iqr.where(~constant, 1000.0), constant=constant))
    batch = models.batch()
    expected = (batch.embeddings.float() - scaler.median).square().sum(1) / scaler.iqr[~constant].square().mean()
    torch.testing.assert_close(model.losses(batch), expected)


def test_documents_longer_than_the_context_are_errors() -> None:
    model = made()
    with pytest.raises(ValueError, match="21 sentences"):
        model.losses(models.batch((3, 21)))
    with pytest.raises(ValueError, match="20 sentences, and 1 more"):
        model.next(models.batch((3, 20)), Sampling())
