"""FLOPs from cards are those that PyTorch counts while the networks run, to 1 %."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stages.lcm.batch import of_documents
from stages.lcm.build import build
from stages.lcm.card import DiffusionSettings, Kind, LcmCard
from stages.lcm.inference_flops import next_flops, reading_flops, writing_flops
from stages.lcm.model import Sampling
from stages.rvq.codebooks import Codebooks
from stages.scaler.robust import RobustScaler

DIM, CODEBOOKS, UNITS = 96, 5, 40


def card_of(kind: Kind) -> LcmCard:
    towers = {"contextualizer_layers": 2, "denoiser_layers": 3} if kind == "two-tower" else {"layers": 3}
    diffusion = {"diffusion": DiffusionSettings(steps=20)} if kind in ("one-tower", "two-tower") else {}
    sizes = {"model_dim": 128, "heads": 4, "inner_dim": 320, "context": 64}
    return LcmCard.model_validate(
        {"name": kind, "description": "", "licence": "", "kind": kind, **sizes, **towers, **diffusion}
    )


def counted(card: LcmCard, context: int, sampling: Sampling) -> float:
    torch.manual_seed(0)
    scaler = RobustScaler(median=torch.zeros(DIM), iqr=torch.ones(DIM))
    codebooks = Codebooks(torch.randn(CODEBOOKS, UNITS, DIM)) if card.quantised else None
    model = build(card, scaler, codebooks)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # others are not counted on CPUs
        model.next(of_documents([torch.randn(context, DIM)]), sampling)
    return float(counter.get_total_flops())


@pytest.mark.parametrize("kind", ["base", "two-tower", "one-tower", "quant-c", "quant-d"])
@pytest.mark.parametrize(("context", "guidance"), [(15, 3.0), (31, 1.0), (31, 3.0)])
def test_a_sentence_takes_what_is_counted(kind: Kind, context: int, guidance: float) -> None:
    card, sampling = card_of(kind), Sampling(steps=7, guidance=guidance)
    found = counted(card, context, sampling)
    # `next` reads one position more, the one to come, and all pairs of positions, which its mask then hides
    read = context + 1
    hidden = 4 * card.model_dim * read * (read - 1) / 2 * (card.contextualizer_layers or card.layers or 0)
    expected = reading_flops(card, DIM, read) + hidden + next_flops(card, DIM, context, sampling, CODEBOOKS, UNITS)
    if kind == "base":
        expected += next_flops(card, DIM, context, sampling) * (read - 1)  # of every position
    assert found == pytest.approx(expected, rel=0.01)


def test_writing_is_reading_and_predicting_each() -> None:
    card, sampling = card_of("two-tower"), Sampling(steps=7)
    each = sum(next_flops(card, DIM, context, sampling) for context in range(5, 12))
    assert writing_flops(card, DIM, 5, 7, sampling) == pytest.approx(reading_flops(card, DIM, 11) + each)
