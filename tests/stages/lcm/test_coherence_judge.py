"""The judge of coherence finds order where there is one, and repetitions; it cannot judge what has no order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stages.lcm import coherence_judge
from stages.lcm.coherence_judge import fit_judge

DIM = 12


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of them for such plain documents."""
    monkeypatch.setattr(coherence_judge, "STEPS", 200)


def turned(documents: int, sentences: int, seed: int) -> tuple[Tensor, Tensor]:
    """Documents in which each sentence is the one before it, turned by the same rotation, and noise."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(0)))[0]
    found = [torch.randn(documents, DIM, generator=generator)]
    for _ in range(sentences - 1):
        found.append(found[-1] @ rotation + 0.1 * torch.randn(documents, DIM, generator=generator))
    return torch.stack(found, dim=1).flatten(0, 1).half(), torch.full((documents,), sentences)


def test_it_prefers_the_next_sentence_to_others_and_to_repetitions() -> None:
    judge = fit_judge(*turned(480, 8, seed=1))
    assert judge.accuracy > 0.9 and judge.pairs == 432 * 7
    unseen, lengths = turned(40, 8, seed=2)
    shuffled, repeated = [], []
    real = [judge.scores(one) for one in unseen.split(lengths.tolist())]
    for document in unseen.split(lengths.tolist()):
        shuffled.append(judge.scores(document[torch.tensor([5, 2, 0, 7, 3, 1, 6, 4])]))
        repeated.append(judge.scores(document[:1].repeat(8, 1)))
    means = [float(torch.cat(one).mean()) for one in (real, shuffled, repeated)]
    assert means[0] > 0.6 > 0.4 > means[1] and means[2] < 0.2, means
    assert all(len(one) == 7 and one.dtype == torch.float64 for one in real)


def test_it_is_no_better_than_chance_where_there_is_no_order() -> None:
    generator = torch.Generator().manual_seed(3)
    judge = fit_judge(torch.randn(1600, DIM, generator=generator), torch.full((200,), 8))
    assert 0.35 < judge.accuracy < 0.65
    unseen = judge.scores(torch.randn(400, DIM, generator=generator))
    assert 0.4 < float(unseen.mean()) < 0.6, "it has not learned its pairs by heart"


def test_equal_sentences_cannot_be_told_apart_and_copies_are_not_judged_by_what_was_learned() -> None:
    generator = torch.Generator().manual_seed(3)
    one = torch.randn(200, DIM, generator=generator).repeat_interleave(8, dim=0)
    assert fit_judge(one, torch.full((200,), 8)).accuracy == 0.5
    noise = torch.randn(160 * 8, DIM, generator=generator)
    origins = ["a copy"] * 100 + [str(number) for number in range(60)]
    judge = fit_judge(noise, torch.full((160,), 8), origins=origins)
    assert judge.pairs == (160 - 6) * 7  # every tenth of 61 texts is held out, none of the copies


def test_the_same_seed_gives_the_same_judge_and_leaves_the_generator_alone() -> None:
    documents = turned(100, 7, seed=4)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    one, other = fit_judge(*documents), fit_judge(*documents)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one.scores(documents[0][:20]), other.scores(documents[0][:20]))
    assert not torch.equal(one.scores(documents[0][:20]), fit_judge(*documents, seed=1).scores(documents[0][:20]))


def test_short_documents_teach_nothing_and_too_few_are_refused() -> None:
    embeddings, lengths = turned(120, 8, seed=5)
    short = torch.cat([embeddings, torch.randn(400, DIM).half()])
    judge = fit_judge(short, torch.cat([lengths, torch.full((200,), 2)]))
    assert judge.pairs == 108 * 7
    with pytest.raises(ValueError, match=r"^0 pairs of neighbours in documents of 3 sentences and more; 500 are"):
        fit_judge(embeddings, torch.full((480,), 2))
    with pytest.raises(ValueError, match="in at least 10 documents"):
        fit_judge(embeddings, torch.tensor([960]))
