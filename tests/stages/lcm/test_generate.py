"""Continuing documents: the stopping rules, the window, and batches of documents that end at different times."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard
from stages.lcm.generate import continue_documents
from stages.lcm.model import Lcm, Sampling, paper_sampling
from stages.scaler.robust import RobustScaler

DIM = 4
END = torch.tensor([0.0, 0.0, 0.0, 1.0])


class Rule(Lcm):
    """A model whose next sentence is a given function of its document; it notes what it was shown."""

    def __init__(self, rule: Callable[[Tensor], Tensor], context: int = 128) -> None:
        super().__init__()
        self.rule = rule
        self.card = LcmCard(
            name="rule",
            description="",
            licence="MIT",
            kind="base",
            model_dim=4,
            heads=1,
            inner_dim=4,
            layers=1,
            context=context,
        )
        self.scaler = RobustScaler(torch.zeros(DIM), torch.ones(DIM))
        self.shown: list[list[int]] = []

    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        self.shown.append(batch.lengths.tolist())
        return torch.stack([self.rule(one) for one in batch.embeddings.split(batch.lengths.tolist())])

    def losses(self, batch: Batch) -> Tensor:
        raise NotImplementedError

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        raise NotImplementedError

    def flops(self, batch: Batch) -> float:
        raise NotImplementedError

    def blocks(self) -> list[nn.Module]:
        raise NotImplementedError


def turned(degrees: float) -> Tensor:
    """A vector in the plane of the first two dimensions, not of length one."""
    return 3 * torch.tensor([math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0, 0.0])


def count_down(document: Tensor) -> Tensor:
    """One less than the last in the third dimension, turned by 90°; "End of text." once it is at 1."""
    left = float(document[-1, 2]) - 1
    if left < 1:
        return 7 * END
    angle = 90 * left
    return torch.cat([turned(angle)[:2], torch.tensor([left, 0.0])])


def starting_at(left: int) -> Tensor:
    return torch.tensor([[0.0, 0.0, float(left), 0.0]])


def test_documents_end_at_their_own_time() -> None:
    model = Rule(count_down)
    documents = [starting_at(3), starting_at(1), starting_at(5)]
    found = continue_documents(model, documents, Sampling(), end=END, max_sentences=3, previous_cosine=1)
    assert [one.embeddings[:, 2].tolist() for one in found] == [[2, 1], [], [4, 3, 2]]
    assert [one.stopped for one in found] == ["end of text", "end of text", "limit"]
    assert model.shown == [[1, 1, 1], [2, 2], [3, 3]]  # the finished leave the batch


def test_nothing_is_computed_once_all_have_ended() -> None:
    model = Rule(count_down)
    continue_documents(model, [starting_at(1)], Sampling(), end=END, max_sentences=50)
    assert len(model.shown) == 1


@pytest.mark.parametrize(("degrees", "stops"), [(25, True), (27, False)])  # cos 25° = 0.906, cos 27° = 0.891
def test_a_repeat_ends_the_document(degrees: float, stops: bool) -> None:
    """Every sentence is turned by so much from the last."""

    def turn(document: Tensor) -> Tensor:
        x, y = document[-1, :2].tolist()
        return turned(math.degrees(math.atan2(y, x)) + degrees)

    found = continue_documents(Rule(turn), [turned(0)[None]], Sampling(), end=END, max_sentences=4)[0]
    if stops:  # the first is near the prompt, which was not generated; the second is near the first
        assert found.stopped == "repeats the previous sentence"
        assert torch.allclose(found.embeddings, turned(degrees)[None], atol=1e-6)
    else:
        assert found.stopped == "limit"
        assert len(found.embeddings) == 4


@pytest.mark.parametrize(("degrees", "stops"), [(25, True), (27, False)])
def test_the_end_is_near_enough(degrees: float, stops: bool) -> None:
    along = torch.tensor([math.sin(math.radians(degrees)), 0, 0, math.cos(math.radians(degrees))])
    found = continue_documents(
        Rule(lambda document: 5 * along), [turned(90)[None]], Sampling(), end=2 * END.half(), max_sentences=1
    )[0]
    assert found.stopped == ("end of text" if stops else "limit")
    assert len(found.embeddings) == (0 if stops else 1)


def test_without_an_end_only_repeats_and_the_limit_count() -> None:
    found = continue_documents(Rule(count_down), [starting_at(2)], Sampling(), end=None, max_sentences=9)[0]
    assert found.stopped == "repeats the previous sentence"  # 1, then "End of text." twice
    assert len(found.embeddings) == 2


def test_the_oldest_sentences_leave_the_window() -> None:
    """A model that says how many sentences it saw and which was the first."""

    def report(document: Tensor) -> Tensor:
        return torch.tensor([float(len(document)), float(document[0, 1]), 0.0, 0.0])

    prompt = torch.tensor([[0.0, float(number), 0.0, 0.0] for number in range(3)])
    model = Rule(report, context=5)
    found = continue_documents(model, [prompt], Sampling(), end=None, max_sentences=4, previous_cosine=1.1)[0]
    assert found.embeddings[:, 0].tolist() == [3, 4, 4, 4]
    assert found.embeddings[:, 1].tolist() == [0, 0, 1, 2]
    assert found.forgotten == 2
    short = continue_documents(model, [prompt], Sampling(), end=None, max_sentences=2, previous_cosine=1.1)[0]
    assert short.forgotten == 0
    long = torch.cat([prompt, prompt, prompt])
    assert continue_documents(model, [long], Sampling(), end=None, max_sentences=1)[0].forgotten == 5


def test_what_cannot_be_continued() -> None:
    model = Rule(count_down)
    with pytest.raises(ValueError, match="document 1 has no sentence"):
        continue_documents(model, [turned(0)[None], torch.zeros(0, DIM)], Sampling(), end=None, max_sentences=1)
    with pytest.raises(ValueError, match="max_sentences is 0"):
        continue_documents(model, [turned(0)[None]], Sampling(), end=None, max_sentences=0)
    broken = Rule(lambda document: document[-1] * math.nan)
    with pytest.raises(ValueError, match="not finite"):
        continue_documents(broken, [turned(0)[None]], Sampling(), end=None, max_sentences=1)


def test_the_choices_of_the_paper() -> None:
    one, many = paper_sampling("quant-d", False), paper_sampling("quant-d", True)
    assert (one.top_k, one.guidance) == (1, 2)
    assert (many.temperature, many.top_k, many.guidance) == (1, 3, 1)
    one, many = paper_sampling("quant-c", False), paper_sampling("quant-c", True)
    assert (one.top_k, one.guidance) == (1, 3)
    assert (many.temperature, many.top_k, many.guidance) == (0.005, 5, 1.5)
    two = paper_sampling("two-tower", True)
    assert (two.steps, two.guidance, two.rescale, two.initial_noise) == (40, 3, 0.7, 0.6)
