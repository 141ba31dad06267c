"""Indexes with plans of a column: what the loader gives, against plain loops over the corpus."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.select import SelectSettings
from pipeline.storage import layout
from pipeline.training.data import order
from pipeline.training.data.index import Index, make_index, read_index
from pipeline.training.data.loader import Loader, TrainingSource
from pipeline.training.data.snapshot import FAMILIES_OF_PLANS
from stages.lcm.batch import Batch
from tests.pipeline.training.corpora import FRAGILITY
from tests.support.corpora import made_once
from tests.support.planned import write_planned
from tests.support.runs import run

SMALL: dict[str, Any] = {"split": "train", "max_sentences": 30, "micro_concepts": 40, "buffer_sentences": 100}
ROW_GROUP_ROWS = 16
Seen = tuple[str, bytes, bool]  # text, embedding, and whether it has a weight
COLUMNS = ("doc_id", "split", "text", "end", "answer", "paragraph", "embedding", "plan", "plan_embedding")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        fits = {"scaler": {}, "fragility": FRAGILITY, "predictor": {"epochs": 2}}
        run(write_planned(folder, 12, split={"validation": 0.2}, **fits))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        return made_once(tmp_path_factory, "given-plans", make) / "out"


@pytest.fixture
def corpus(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    monkeypatch.setattr(order, "STREAM_BLOCKS", 2)
    return Corpus(str(finished))


def vector(values: list[float]) -> bytes:
    return np.asarray(values, np.float16).tobytes()


def by_hand(
    corpus: Corpus, index: Index, dropped: str = "-", join: bool = False, answering: bool = False
) -> list[list[Seen]]:
    """The sequences of the split train, without sentences that begin so; `join`: over the gaps that these leave."""
    table = [row for part in range(len(corpus.parts)) for row in corpus.table(*COLUMNS, part=part).to_pylist()]
    found: list[list[Seen]] = []
    for _, group in itertools.groupby(table, lambda row: row["doc_id"]):
        document = list(group)
        plans = {row["paragraph"]: (row["plan"], vector(row["plan_embedding"])) for row in document[::-1]}
        for row in document:  # the plan stands in the first row, and that may not be selected
            if row["plan"] is not None:
                plans[row["paragraph"]] = (row["plan"], vector(row["plan_embedding"]))
        kept = [at for at, row in enumerate(document) if not re.match(dropped, row["text"]) and row["split"] == "train"]
        pieces = [kept] if join and kept else []
        if not join:
            for _, some in itertools.groupby(enumerate(kept), lambda pair: pair[1] - pair[0]):
                pieces.append([at for _, at in some])
        for piece in pieces:
            sequence: list[Seen] = []
            last: Any = None
            for at in piece:
                row = document[at]
                counts = not answering or row["answer"] is None or row["end"] > row["answer"]
                now = row["paragraph"], counts and row["answer"] is not None and answering
                if now != last:
                    if last is not None:
                        sequence.append(("End of paragraph.", index.closing_embeddings[2].tobytes(), counts))
                    plan, embedding = plans[row["paragraph"]]
                    if plan is not None:
                        sequence.append((plan, embedding, counts))
                    last = now
                sequence.append((row["text"], vector(row["embedding"]), counts))
            if join or piece[-1] == len(document) - 1:
                response = answering and document[0]["answer"] is not None
                ends = (
                    "End of response." if response else "End of text.",
                    index.closing_embeddings[int(response)].tobytes(),
                    True,
                )
                sequence.append(ends)
            found.append(sequence)
    return found


def seen(batch: Batch) -> Iterator[Seen]:
    assert batch.texts is not None
    vectors = [one.tobytes() for one in batch.embeddings.numpy()]
    return zip(batch.texts, vectors, (batch.weights > 0).tolist(), strict=True)


def loaded(index: Index, **options: Any) -> list[list[Seen]]:
    found: dict[int, list[Seen]] = {}
    for _, batch in Loader([TrainingSource(index)], **SMALL, texts=True, shuffle=False, epochs=1, **options):
        assert batch.sequences is not None
        sentences = seen(batch)
        for number, length in zip(batch.sequences.tolist(), batch.lengths.tolist(), strict=True):
            found.setdefault(number, []).extend(itertools.islice(sentences, length))
    return list(found.values())


def test_a_document_is_read_as_its_sequence_by_hand(corpus: Corpus) -> None:
    index = make_index(corpus, SelectSettings(), plans="column")
    first = next(one for one in loaded(index) if one[0][0].startswith("Saving file"))
    n = first[0][0].split()[-1]
    assert [text for text, *_ in first] == [
        f"Saving file {n}", f"The file {n} was saved.", f"It is on the disk {n}.", "It may stay.", "End of paragraph.",
        f"Open it again {n}.", "Then look.", "End of paragraph.", "Closing it", f"Close {n}.", "End of text.",
    ]  # fmt: skip


@pytest.mark.parametrize("dropped", ["-", "Then|It may|Choose", "The file|Close|请", "It is on"])
@pytest.mark.parametrize("broken", ["split-documents", "drop-sentences"])
def test_paragraphs_begin_with_the_plan_that_they_have(corpus: Corpus, dropped: str, broken: Any) -> None:
    index = make_index(
        corpus, SelectSettings(where=f"not matches(text, '^({dropped})')", broken=broken), plans="column"
    )
    expected = by_hand(corpus, index, dropped, join=broken == "drop-sentences")
    assert loaded(index) == expected
    sentences = sum(len(one) for one in expected)
    assert index.sentences("train") == sentences
    assert read_index(corpus, index.digest).parts.column_names[-2:] == list(FAMILIES_OF_PLANS)


@pytest.mark.parametrize("structure", [True, False])
def test_plans_count_as_the_sentence_behind_them_also_where_an_answer_begins_in_a_paragraph(
    corpus: Corpus, structure: bool
) -> None:
    index = make_index(corpus, SelectSettings(), answers="answer", plans="column")
    expected = by_hand(corpus, index, answering=True)
    found = loaded(index, structure=structure)
    assert [[one[:2] for one in several] for several in found] == [[one[:2] for one in several] for several in expected]
    vectors = {one for part in range(len(corpus.parts)) for one in map(bytes, corpus.embeddings(part))}
    for one, other in zip(found, expected, strict=True):
        added = [embedding not in vectors and not text.startswith("End of t") for text, embedding, _ in other]
        added = [there and not text.startswith("End of r") for there, (text, *_) in zip(added, other, strict=True)]
        assert [counts for *_, counts in one] == [
            counts and (structure or not there) for there, (*_, counts) in zip(added, other, strict=True)
        ]
    plain = [sum(text == "Saving file 3" for text, *_ in one) for one in found]
    assert max(plain) == 2  # before the prompt and again before the answer in the same paragraph


def test_a_given_plan_has_the_weight_one_and_sentences_have_theirs(corpus: Corpus) -> None:
    index = make_index(corpus, SelectSettings(), plans="column")
    table = [
        row for at in range(len(corpus.parts)) for row in corpus.table("text", "weight", "plan", part=at).to_pylist()
    ]
    weights = {row["text"]: row["weight"] for row in table} | {row["plan"]: 1.0 for row in table if row["plan"]}
    weights |= {"End of text.": 1.0, "End of paragraph.": 1.0}
    for _, batch in Loader([TrainingSource(index)], **SMALL, texts=True, weights="fragility", epochs=1):
        assert batch.texts is not None and len(batch.texts) > 10
        assert batch.weights.tolist() == [weights[text] for text in batch.texts]


def test_the_order_is_that_of_one_process_and_an_epoch_has_every_sequence(corpus: Corpus) -> None:
    index = make_index(corpus, SelectSettings(), plans="column")
    expected = sorted(one for several in by_hand(corpus, index) for one in several)
    batches: list[dict[int, list[Seen]]] = []
    for world in (1, 2):
        loaders = [
            Loader([TrainingSource(index)], **SMALL, texts=True, epochs=1, seed=3, rank=rank, world=world)
            for rank in range(world)
        ]
        batches.append({number: list(seen(batch)) for loader in loaders for number, batch in loader})
        assert sorted(one for several in batches[-1].values() for one in several) == expected
    assert batches[0] == batches[1] and len(batches[0]) > 3


def test_what_the_index_says(corpus: Corpus) -> None:
    index = make_index(corpus, SelectSettings(), plans="column")
    plans = [
        row
        for part in range(len(corpus.parts))
        for row in corpus.table("plan", "doc_id", "paragraph", part=part).to_pylist()
    ]
    paragraphs = {(row["doc_id"], row["paragraph"]) for row in plans}
    assert index.about.planned == (sum(row["plan"] is not None for row in plans), len(paragraphs))
    others = [make_index(corpus, SelectSettings(), plans=one) for one in ("none", "headline")]
    assert len({index.digest, *(one.digest for one in others)}) == 3 and others[1].about.planned is None
    assert make_index(corpus, SelectSettings(), plans="column").about == index.about


def test_what_is_refused(corpus: Corpus) -> None:
    with pytest.raises(CorpusError, match=r"none of the \d+ selected paragraphs has a plan; .* train.plans: headline"):
        make_index(corpus, SelectSettings(where="matches(text, '^(Nothing is planned|It is only)')"), plans="column")
    with pytest.raises(ConfigError, match="have no codes"):
        Loader([TrainingSource(make_index(corpus, SelectSettings(), plans="column"))], **SMALL, codes=True)


def test_a_corpus_without_the_section_is_told_what_to_add(tmp_path: Path) -> None:
    run(write_planned(tmp_path, 1, plans=None, scaler={}))
    with pytest.raises(CorpusError, match=r"add a section `plans: \{column: NAME\}`"):
        make_index(Corpus(str(tmp_path / "out")), SelectSettings(), plans="column")
