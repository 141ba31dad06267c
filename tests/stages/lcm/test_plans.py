"""Plans and breaks: against plain loops; a model of plans learns nothing of what it is to predict."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stages.lcm.baselines import Truth
from stages.lcm.batch import Batch
from stages.lcm.generate import continue_documents
from stages.lcm.headlines import headlines
from stages.lcm.model import Lcm, Sampling
from stages.lcm.plans import BreakCounts, PlanningPredictor, planned, planned_lengths
from tests.stages.lcm import models

DIM = 16
LENGTHS = [5, 1, 7, 2]
PARAGRAPHS = [0, 0, 1, 1, 1, 0, 0, 1, 1, 3, 3, 3, 4, 2, 2]


def batch(seed: int = 0) -> Batch:
    embeddings = torch.randn(len(PARAGRAPHS), DIM, generator=torch.Generator().manual_seed(seed)).half()
    return Batch(
        embeddings, torch.tensor(LENGTHS), torch.ones(len(embeddings)), paragraphs=torch.tensor(PARAGRAPHS).int()
    )


def plain(some: Batch, end: Tensor) -> list[tuple[list[Tensor], list[str]]]:
    """Each document as positions and what they are."""
    documents, at = [], 0
    for length in LENGTHS:
        positions: list[Tensor] = []
        kinds: list[str] = []
        numbers = PARAGRAPHS[at : at + length]
        for number in dict.fromkeys(numbers):
            rows = [some.embeddings[at + place] for place, other in enumerate(numbers) if other == number]
            mean = torch.stack(rows).double().mean(0)
            plan = min(rows, key=lambda row: float((row.double() - mean).square().sum()))
            positions += [*([end] if positions else []), plan, *rows]
            kinds += [*(["break"] if kinds else []), "plan", *["sentence"] * len(rows)]
        documents.append((positions, kinds))
        at += length
    return documents


def test_documents_get_plans_and_breaks_as_plain_loops_put_them() -> None:
    some, end = batch(), torch.full((DIM,), 2.0).half()
    assert some.paragraphs is not None
    found = planned(some.embeddings, some.lengths, some.paragraphs, end)
    expected = plain(some, end)
    assert found.lengths.tolist() == [len(positions) for positions, _ in expected]
    assert found.lengths.equal(planned_lengths(some.lengths, some.paragraphs))
    assert found.embeddings.equal(torch.stack([one for positions, _ in expected for one in positions]))
    kinds = [kind for _, of in expected for kind in of]
    for kind, places in (("sentence", found.sentences), ("plan", found.plans), ("break", found.breaks)):
        assert places.tolist() == [place for place, one in enumerate(kinds) if one == kind]


def test_who_knows_the_truth_predicts_it_with_all_breaks() -> None:
    some, end = batch(), torch.full((DIM,), 2.0)
    predictor = PlanningPredictor(Truth(), end)
    assert predictor.predict(some, Sampling()).equal(some.embeddings.float())
    assert predictor.breaks == BreakCounts(4, 4, 4, 0)
    late = PlanningPredictor(_Late(end), end)
    late.predict(some, Sampling())
    assert late.breaks == BreakCounts(4, 0, 3, 1) and "0 of 4 ends" in late.breaks.said()


class _Late:
    """Says that a paragraph ends one sentence too late, of those where it may end."""

    def __init__(self, end: Tensor) -> None:
        self.end = end

    def predict(self, some: Batch, sampling: Sampling) -> Tensor:
        ends = (some.embeddings.float() == self.end).all(1)
        found = torch.zeros(len(ends), DIM)
        found[(ends.nonzero()[:, 0] + 3).clamp(max=len(ends) - 1)] = self.end  # plan, sentence, and the next one
        return found


@pytest.mark.parametrize("kind", ["base", "two-tower"])
def test_predictions_do_not_depend_on_what_comes_later(kind: str) -> None:
    model = models.model(models.card(kind))
    dim = model.scaler.median.numel()
    x = torch.randn(9, dim, generator=torch.Generator().manual_seed(3)).half()
    paragraphs = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1]).int()
    changed = x.clone()
    changed[7:] = -x[7:] * 3  # so that the headline of the second paragraph is another
    found = []
    for embeddings in (x, changed):
        torch.manual_seed(5)
        some = Batch(embeddings, torch.tensor([9]), torch.ones(9), paragraphs=paragraphs)
        found.append(PlanningPredictor(model, torch.ones(dim)).predict(some, Sampling(steps=3)))
    assert headlines(x.numpy(), np.asarray([0, 4]))[1] != headlines(changed.numpy(), np.asarray([0, 4]))[1]
    torch.testing.assert_close(found[0][:8], found[1][:8])


class _Scripted(Lcm):
    """Gives what a script says, one position after the other."""

    def __init__(self, script: list[Tensor]) -> None:
        super().__init__()
        self.card, self.script, self.seen = models.card("base"), script, []

    def next(self, some: Batch, sampling: Sampling) -> Tensor:
        self.seen.append(int(some.lengths[0]))
        return self.script.pop(0)[None].float()

    def losses(self, some: Batch) -> Tensor:
        raise NotImplementedError

    def predict(self, some: Batch, sampling: Sampling) -> Tensor:
        raise NotImplementedError

    def flops(self, some: Batch) -> float:
        raise NotImplementedError

    def blocks(self) -> list[torch.nn.Module]:
        raise NotImplementedError


def test_breaks_and_plans_are_context_but_no_sentences_of_a_continuation() -> None:
    unit = torch.eye(8)
    end, closing = unit[0], unit[7]
    almost = 0.99 * end + 0.05 * unit[1]
    script = [unit[1], almost, unit[2], unit[2], unit[3], almost, unit[4], closing]
    model = _Scripted(list(script))
    [found] = continue_documents(
        model, [unit[5][None]], Sampling(), end=closing, max_sentences=10, end_of_paragraph=end,
        reencode=lambda predicted, numbers: predicted * 2,
    )  # fmt: skip
    assert found.stopped == "end of text" and found.embeddings.equal(2 * unit[1:4])
    assert found.paragraphs == (1, 3) and found.plans is not None and found.plans.equal(unit[[2, 4]])
    assert model.seen == list(range(1, 9))
    texts: list[str] = []

    def again(predicted: Tensor, numbers: list[int]) -> Tensor:
        """What is decoded and encoded again is known only by that: a model of words never predicts the break itself."""
        texts.append(f"{int(predicted[0].argmax())}")
        return (end if predicted[0].argmax() == 6 else closing if predicted[0].argmax() == 5 else predicted[0])[None]

    [found] = continue_documents(
        _Scripted([unit[1], unit[6], unit[2], unit[3], unit[4], unit[5]]), [unit[2][None]], Sampling(), end=closing,
        max_sentences=9, end_of_paragraph=end, reencode=again,
    )  # fmt: skip
    assert found.stopped == "end of text" and found.embeddings.equal(unit[[1, 3, 4]]) and found.paragraphs == (1,)
    assert [texts[at] for at in found.encoded] == ["1", "3", "4"]
    [found] = continue_documents(
        _Scripted([unit[1], almost, unit[2], unit[3]]), [unit[5][None]], Sampling(), end=closing, max_sentences=2,
        end_of_paragraph=end,
    )  # fmt: skip
    assert found.stopped == "limit" and found.embeddings.equal(unit[[1, 3]])
    [found] = continue_documents(
        _Scripted([end, unit[2]] * 9), [unit[5][None]], Sampling(), end=closing, max_sentences=3, end_of_paragraph=end
    )
    assert found.stopped == "limit of paragraphs" and not len(found.embeddings)  # it only ends paragraphs
