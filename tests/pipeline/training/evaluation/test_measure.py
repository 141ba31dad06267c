"""Contrastive accuracy of wrapped documents, and errors where documents bear the same id."""

from __future__ import annotations

import pytest
import torch

from pipeline.corpus.standalone import TextModels
from pipeline.training.evaluation.held_out import HeldOut
from pipeline.training.evaluation.measure import Judge, measure
from pipeline.training.evaluation.text_codec import TextCodec
from stages.autobleu.settings import AutobleuSettings
from stages.encode.settings import EncodeSettings
from stages.segment.settings import SegmentSettings


def test_the_sentence_on_the_other_side_of_a_cut_is_a_neighbour() -> None:
    """Sentences 3 to 11 are a document of two pieces, cut before 7: the pool is judged as if it were whole."""
    generator = torch.Generator().manual_seed(7)
    real = torch.randn(14, 7, generator=generator) + 1
    ours = real + torch.randn(14, 7, generator=generator)
    ours[6] = real[7]  # so that it is nearer than the true one
    held = HeldOut(
        real,
        lengths=torch.tensor([3, 4, 5, 2]),
        texts=("",) * 14,
        langs=("",) * 4,
        ids=("first", "long", "long", "last"),
        hashes=("",) * 4,
        paragraphs=torch.zeros(14, dtype=torch.int32),
    )
    assert held.wholes == (0, 2, 2, 1)
    pool = torch.tensor([0, 2, 6, 7, 13])
    models = TextModels(segment=SegmentSettings(), encode=EncodeSettings(), decode=AutobleuSettings(), artifacts={})
    words = TextCodec(models, "nowhere", "none", "cpu")  # loads nothing, as no text is made
    judge = Judge(held, ("ca",), pool, words, language_model=None, informed=0, device="cpu")
    shares = []
    for place in held.judged.tolist():
        others = [other for other in pool.tolist() if abs(place - other) > 1 or {place, other} in ({2, 3}, {11, 12})]
        far = (ours[place].double() - real.double()).norm(dim=1)
        shares.append(sum(float(far[other]) > float(far[place]) for other in others) / len(others))
    assert measure(judge, ours)["ca"].mean == pytest.approx(sum(shares) / len(shares))


def test_documents_that_bear_one_id_are_not_one() -> None:
    held = HeldOut(
        torch.zeros(8, 3),
        lengths=torch.tensor([2, 2, 2, 2]),
        texts=("",) * 8,
        langs=("",) * 4,
        ids=("1", "2", "1", "1"),
        hashes=("a", "b", "c", "a"),  # the last is the rest of the first
        paragraphs=torch.zeros(8, dtype=torch.int32),
    )
    assert held.wholes == (0, 2, 1, 0) and held.origin.tolist() == [0, 0, 2, 2, 1, 1, 0, 0]
    assert held.wholes_among([True, False, True, True]) == 2
