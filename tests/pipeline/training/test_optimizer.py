"""Learning rate and weight decay."""

from __future__ import annotations

import math

import pytest
import torch

from pipeline.config.train import TrainSettings
from pipeline.training.step import adamw, learning_rate
from stages.lcm.build import build
from stages.lcm.card import load_lcm_card
from stages.scaler.robust import RobustScaler


def test_learning_rate() -> None:
    settings = TrainSettings(steps=110, warmup_steps=10, lr=1.0, min_lr=0.2)
    assert [learning_rate(step, settings) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert learning_rate(10, settings) == 1.0
    assert learning_rate(60, settings) == pytest.approx(0.6)  # half way down
    assert learning_rate(85, settings) == pytest.approx(0.2 + 0.8 * (1 + math.cos(0.75 * math.pi)) / 2)
    assert learning_rate(110, settings) == pytest.approx(0.2)
    short = TrainSettings(steps=50, lr=1e-3)
    assert (short.warmup, short.last_lr) == (5, 1e-4)
    assert TrainSettings(steps=250_000).warmup == 10_000  # LCM 3.1
    assert learning_rate(0, TrainSettings(steps=1, warmup_steps=0, lr=1.0)) == 1.0


@pytest.mark.parametrize("card", ["lcm-two-tower-tiny", "lcm-base-tiny"])
def test_matrices_decay_and_nothing_else(card: str) -> None:
    model = build(load_lcm_card(card), RobustScaler(torch.zeros(8), torch.ones(8)))
    model.table = torch.nn.Embedding(3, 4)
    optimizer = adamw(model, TrainSettings(weight_decay=0.1))
    decay, free = optimizer.param_groups
    names = {id(one): name for name, one in model.named_parameters()}
    assert (decay["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    assert all(one.ndim == 2 for one in decay["params"])
    assert "table.weight" in {names[id(one)] for one in free["params"]}
    assert {one.ndim for one in free["params"] if names[id(one)] != "table.weight"} == {1}
    assert len(decay["params"]) + len(free["params"]) == len(names)
    assert (decay["betas"], decay["eps"]) == ((0.9, 0.95), 1e-5)
