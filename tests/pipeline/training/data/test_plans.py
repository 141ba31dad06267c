"""Indexes with plans: what the loader gives, against plain loops over the corpus."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from pipeline import Corpus
from pipeline.config.select import SelectSettings
from pipeline.training.data.index import Index, make_index
from tests.pipeline.training.data.test_loader import ending, everything, sentences_of
from tests.pipeline.training.expected import Sentence, Sequence, sequences_of


def with_plans(index: Index, piece: Sequence, answering: bool = False) -> tuple[list[Sentence], list[bool]]:
    """Return the sentences of a sequence with plans and breaks, and which are added; an answer is apart from its
    prompt.
    """
    of = list(zip(piece.paragraphs, piece.answers if answering else piece.paragraphs, strict=True))
    found: list[Sentence] = []
    added: list[bool] = []
    for number, (_, group) in enumerate(itertools.groupby(range(len(of)), lambda at: of[at])):
        rows = [piece.sentences[at] for at in group]
        vectors = np.stack([np.frombuffer(one[1], np.float16).astype(np.float64) for one in rows])
        plan = rows[int(np.argmin(((vectors - vectors.mean(0)) ** 2).sum(1)))]
        found += [*([ending(index, 2)] if number else []), plan, *rows]
        added += [*([True] if number else []), True, *[False] * len(rows)]
    closed = [ending(index, int(answering and not all(piece.answers)))] * piece.ends
    return found + closed, added + [False] * len(closed)


def loaded(index: Index, **options: Any) -> list[list[Sentence]]:
    found: dict[int, list[Sentence]] = {}
    for _, batch in everything(index, shuffle=False, epochs=1, **options):
        assert batch.sequences is not None
        sentences = sentences_of(batch)
        for number, length in zip(batch.sequences.tolist(), batch.lengths.tolist(), strict=True):
            found.setdefault(number, []).extend(itertools.islice(sentences, length))
    return list(found.values())


@pytest.mark.parametrize("broken", ["split-documents", "drop-sentences", "drop-documents"])
def test_every_paragraph_begins_with_its_plan_and_ends_with_a_break(corpus: Corpus, broken: Any) -> None:
    index = make_index(corpus, SelectSettings(where="chars >= 20", broken=broken), plans="headline")
    kept = sequences_of(corpus, "train", lambda row: row["chars"] >= 20)
    every = {one.doc_id: len(one.sentences) for one in sequences_of(corpus, "train")}
    if broken == "drop-documents":
        kept = [one for one in kept if len(one.sentences) == every[one.doc_id]]
    if broken == "drop-sentences":
        joined: dict[str, Sequence] = {}
        for one in kept:
            whole = joined.setdefault(one.doc_id, Sequence(one.doc_id, ends=True))
            whole.sentences += one.sentences
            whole.paragraphs += one.paragraphs
        kept = list(joined.values())
    expected = [with_plans(index, one)[0] for one in kept]
    found = loaded(index)
    assert found == expected and sum(len(set(one.paragraphs)) > 1 for one in kept) > 3
    assert index.about.splits["train"] == (
        len({one.doc_id for one in kept}), len(kept), sum(len(one.sentences) for one in kept),
    )  # fmt: skip
    names = everything(index).names(list(range(1)))
    assert names[0].startswith(kept[0].doc_id)


def test_a_shuffled_epoch_has_the_same_documents(corpus: Corpus) -> None:
    index = make_index(corpus, SelectSettings(), plans="headline")
    expected = sorted(sentence for one in sequences_of(corpus, "train") for sentence in with_plans(index, one)[0])
    for world in (1, 2):
        loaders = [everything(index, epochs=1, rank=rank, world=world) for rank in range(world)]
        assert sorted(one for loader in loaders for _, batch in loader for one in sentences_of(batch)) == expected


@pytest.mark.parametrize("structure", [True, False])
def test_plans_and_breaks_count_where_they_are_asked_for_and_are_no_answers(corpus: Corpus, structure: bool) -> None:
    index = make_index(corpus, SelectSettings(), answers="answer", plans="headline")
    found = loaded(index, structure=structure)
    for piece, one in zip(sequences_of(corpus, "train"), found, strict=True):
        expected, added = with_plans(index, piece, answering=True)
        answers = iter(piece.answers)
        of = [True if plan else next(answers, True) for plan in added]
        for at, plan in enumerate(added):
            if plan:  # as the sentence that follows it: plans are followed by one, breaks by a plan and one
                of[at] = structure and of[at + 1 + added[at + 1]]
        assert [sentence[:3] for sentence in one] == [sentence[:3] for sentence in expected]
        assert [sentence[3] > 0 for sentence in one] == of


def test_the_digest_tells_them_apart_and_old_ones_stay(corpus: Corpus) -> None:
    plain, planned = (make_index(corpus, SelectSettings(), plans=plans) for plans in ("none", "headline"))
    assert plain.digest == make_index(corpus, SelectSettings()).digest != planned.digest
    assert planned.about.plans == "headline" and plain.about.plans is None
    assert make_index(corpus, SelectSettings(), plans="headline").about == planned.about
