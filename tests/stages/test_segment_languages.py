"""SaT where its card says that it is good, spaCy's rules elsewhere; and a batch of both as one by one."""

from __future__ import annotations

import unicodedata

import pyarrow as pa
import pytest

from stages.segment.marks import has_sentence_ends
from stages.segment.segmenter import Segmented, Segmenter
from stages.segment.settings import SegmentSettings
from tests.conftest import sample_documents
from tests.stages.segmenting import check, count_bytes

NAMES = ("libreoffice-deu", "austen-eng", "libreoffice-rus", "libreoffice-eng", "libreoffice-zho")
DOCUMENTS = [document for name in NAMES for document in sample_documents(name, 2)]
TEXTS, LANGS = [one["text"] for one in DOCUMENTS], [one["lang"] for one in DOCUMENTS]
GERMAN = TEXTS[0]


def made(**settings: object) -> Segmenter:
    return Segmenter(SegmentSettings.model_validate({"max_tokens": None} | settings), count_bytes)


def texts(found: Segmented) -> list[str]:
    return list(found.text.to_pylist())


def bare(text: str) -> str:
    return "".join(c for c in text.lower() if not unicodedata.category(c).startswith("P"))


@pytest.mark.parametrize("method", ["sat", "sat-capped"])
def test_a_language_that_the_card_does_not_name_is_segmented_by_rules(method: str) -> None:
    best, rules, alone = (
        made(method=method), made(method=method.replace("sat", "spacy")), made(method=method, sat_only=True)
    )  # fmt: skip
    for text, lang in zip(TEXTS, LANGS, strict=True):
        found = texts(best.segment([text], [lang]))
        assert found == texts((alone if lang == "eng_Latn" else rules).segment([text], [lang]))
    assert texts(alone.segment(TEXTS, LANGS)) != texts(best.segment(TEXTS, LANGS))


def test_a_batch_of_both_is_the_same_as_one_by_one() -> None:
    segmenter = made()
    together = segmenter.segment(TEXTS, LANGS)
    check(together, TEXTS)
    for number, (text, lang) in enumerate(zip(TEXTS, LANGS, strict=True)):
        alone, inside = segmenter.segment([text], [lang]), together.document == number
        assert texts(alone) == together.text.filter(pa.array(inside)).to_pylist()
        assert alone.start.tolist() == together.start[inside].tolist()
        assert alone.paragraph.tolist() == together.paragraph[inside].tolist()


def test_text_without_marks_is_left_to_the_model() -> None:
    text = bare(GERMAN)
    assert has_sentence_ends(GERMAN) and not has_sentence_ends(text) and len(text) > 400
    found = [texts(made(method="sat", sat_only=only).segment([text], ["deu_Latn"])) for only in (False, True)]
    assert found[0] == found[1] and len(found[0]) > len(text.split("\n\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("Eine Überschrift", True),
        ("wort " * 100, False),
        ("3.14 a.b " * 100, False),
        (("wort " * 20 + "Ende. ") * 5, True),
        (("字" * 60 + "。") * 10, True),
        (("शब्द " * 20 + "। ") * 5, True),
        (('wort ' * 20 + '„Ende!“ ') * 5, True),
    ],
)  # fmt: skip
def test_written_text_is_told_by_its_marks(text: str, expected: bool) -> None:
    assert has_sentence_ends(text) is expected


def test_sat_only_is_as_it_was_before_languages_counted() -> None:
    """Its recipe is that of corpora which SaT alone segmented, so they stay valid."""
    alone, best = SegmentSettings(sat_only=True), SegmentSettings()
    assert alone.artifacts() == {"sat": "b6fdd672900f446b"}
    assert best.artifacts() == alone.artifacts() | {"sat languages": "34973b79a1a77fae"}
    assert "sat_only" not in alone.meaningful() and alone.meaningful() == best.meaningful()
    paragraphs = SegmentSettings(method="paragraphs")
    assert paragraphs.languages is None and paragraphs.artifacts() == alone.artifacts()
    assert SegmentSettings(sat="sat-3l-sm").languages is None
