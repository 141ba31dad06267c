"""The stage `plans`: plans stand where their paragraphs begin, embedded as sentences are; the rest is zero, counted."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stages.arrow import embedding_matrix
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.plans.settings import MORE, PlanEmbeddingSettings
from stages.plans.stage import EmbedPlans, plans_of
from stages.stage import Computed, whole

TEXTS = pa.list_(pa.string())
ENCODE = EncodeSettings(model="sonar-tiny")


def stage(longest: int = 100) -> EmbedPlans:
    one = EmbedPlans(PlanEmbeddingSettings(**ENCODE.model_dump(), column="topics", max_document_sentences=longest))
    one.setup("cpu")
    return one


def part(doc: list[int], paragraph: list[int], lang: list[str], topics: list[Any], kind: pa.DataType) -> pa.Table:
    """Rows of documents, with their plans in the first row of each."""
    return pa.table({
        "sentences.doc": pa.array(doc, pa.int32()),
        "sentences.paragraph": pa.array(paragraph, pa.int32()),
        "sentences.lang": lang,
        "documents.topics": pa.array(topics, kind),
    })  # fmt: skip


def encoded(texts: list[str], langs: list[str]) -> np.ndarray:
    one = Encode(ENCODE)
    one.setup("cpu")
    found = whole(one, pa.table({"sentences.text": texts, "sentences.lang": langs}))
    return embedding_matrix(found.families["embeddings"]["embedding"])


def columns(found: Computed) -> tuple[list[str | None], np.ndarray]:
    return found.families["plans"]["plan"].to_pylist(), embedding_matrix(
        found.families["plan-embeddings"]["plan_embedding"]
    )


def test_plans_stand_in_the_first_rows_of_their_paragraphs_bit_for_bit_as_the_encoder_has_them() -> None:
    langs = ["eng_Latn"] * 5 + ["zho_Hans"] * 2
    topics = [[" Saving a file ", "", "Closing it"], None, None, None, ["none"], ["打开文件"], None]
    table = part([0, 0, 0, 0, 1, 2, 2], [0, 0, 1, 2, 0, 0, 1], langs, topics, TEXTS)
    found = whole(stage(), table)
    plan, embeddings = columns(found)
    assert plan == ["Saving a file", None, None, "Closing it", "none", "打开文件", None]
    has = [one is not None for one in plan]
    expected = encoded([one for one in plan if one], [one for one, there in zip(langs, has, strict=True) if there])
    assert (embeddings[has].view(np.uint16) == expected.view(np.uint16)).all() and expected.any(axis=1).all()
    assert not embeddings[np.invert(has)].any()
    assert {name: found.counts[name] for name in ("paragraphs", "plans", "left_over", "non_finite")} == {
        "paragraphs": 6, "plans": 4, "left_over": 0, "non_finite": 0,
    }  # fmt: skip


def test_plans_without_a_paragraph_are_counted_and_warned_of_but_not_those_of_a_document_that_goes_on() -> None:
    table = part([0, 0, 1], [0, 1, 0], ["eng_Latn"] * 3, [["a", "b", "c", "", "d"], None, ["e", "f"]], TEXTS)
    with pytest.warns(UserWarning, match=MORE):
        found = whole(stage(), table)
    assert columns(found)[0] == ["a", "b", "e"] and found.counts["left_over"] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert whole(stage(longest=1), table.slice(2)).counts["left_over"] == 0
    later = part([0, 0], [1, 2], ["eng_Latn"] * 2, [["a", "b", "c"], None], TEXTS)
    assert columns(whole(stage(), later))[0] == ["b", "c"]  # a sub-document that begins with the second paragraph


def test_one_text_is_the_plan_of_the_first_paragraph_and_a_part_may_have_none() -> None:
    table = part([0, 0, 1], [0, 1, 0], ["eng_Latn"] * 3, ["a plan", None, " "], pa.string())
    assert columns(whole(stage(), table))[0] == ["a plan", None, None]
    nothing = part([0, 0], [0, 1], ["eng_Latn"] * 2, [None, None], pa.string())
    found = whole(stage(), nothing)
    assert columns(found)[0] == [None, None] and not columns(found)[1].any() and found.counts["plans"] == 0


def test_a_list_in_a_column_of_texts_is_that_list() -> None:
    assert plans_of('["one", null, " two "]') == ["one", "", "two"]
    for text in ("[1] Introduction", "[1, 2]", "[" * 100_000, "[not json"):
        assert plans_of(text) == [text]
    assert plans_of('["half \\ud83d a character"]') == ['["half \\ud83d a character"]']
    assert plans_of(None) == [""] and plans_of([]) == [] and plans_of([2010, None]) == ["2010", ""]


def test_counting_again_gives_the_counts_that_were_made() -> None:
    table = part([0, 0, 1], [0, 1, 0], ["eng_Latn"] * 3, [["a", "b", "c"], None, ["word " * 600]], TEXTS)
    with pytest.warns(UserWarning, match=MORE):
        found = whole(stage(), table)
    with pytest.warns(UserWarning, match=MORE):
        again = stage().recount(table, found.families, found.counts)
    assert found.counts == again and found.counts["truncated"] == 1 and found.counts["left_over"] == 1
