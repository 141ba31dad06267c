"""What is expected of texts without a model, beside what the real segmenter makes of them."""

from __future__ import annotations

import re
import textwrap

import pytest

from pipeline.planning.sentence_counts import COUNTED, SentenceCounter
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from tests.conftest import sample_documents


@pytest.mark.parametrize(
    ("text", "settings", "sentences"),
    [
        ("One. Two! “Three?” Four", {}, 4),
        ("第一句。第二句！", {}, 2),
        ("A line\nanother\n\nand one that is behind a blank line", {}, 3),
        ("A line\nanother\n\n", {"method": "spacy-capped"}, 1),
        ("A line that was\nbroken at the\nend of its page\n", {}, 1),
        ("3.14 is a number.", {}, 1),
        ("x" * 450, {"max_chars": 100}, 5),
        ("x" * 450, {"max_chars": 100, "method": "spacy"}, 1),
        ("word " * 90, {"method": "sat", "sat_only": True}, 5),
        (" \n \t \n", {}, 0),
        ("", {}, 0),
    ],
)
def test_sentences_by_their_marks(text: str, settings: dict[str, object], sentences: int) -> None:
    counter = SentenceCounter(SegmentSettings(**{"method": "sat-capped"} | settings))
    assert counter(text, "eng_Latn").sentences == sentences


def test_the_beginning_of_a_long_text_stands_for_all_of_it() -> None:
    beginning = "It rains.\n" * (COUNTED // 10) + "again." + " " * (COUNTED % 10)
    counter = SentenceCounter(SegmentSettings())
    count = counter.sentences(beginning[:COUNTED], "eng_Latn")
    assert counter.sentences(beginning[:COUNTED] + "x" * 3 * COUNTED, "eng_Latn") == 4 * count


def texts_of(kind: str) -> list[str]:
    prose = [str(one["text"]) for one in sample_documents("austen-eng", 6)]
    if kind == "wrapped":
        return ["\n\n".join(textwrap.fill(one, 70) for one in re.split(r"\n\s*\n", text)) for text in prose]
    if kind == "without marks":
        return [re.sub(r"[^\w\s]", "", one).lower() for one in prose]
    if kind == "lists":
        help_pages = [str(one["text"]) for one in sample_documents("libreoffice-eng", 60)]
        return ["\n".join(f"- {one.split('. ')[0].strip('.')[:80]}" for one in help_pages)]
    return prose


FAST = {("prose", "spacy-capped"), ("wrapped", "sat-capped"), ("lists", "sat")}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        pytest.param(kind, method, marks=() if (kind, method) in FAST else pytest.mark.slow)
        for kind in ("prose", "wrapped", "without marks", "lists")
        for method in ("spacy", "spacy-capped", "sat", "sat-capped")
    ],
)
def test_what_comes_is_within_what_is_stated(kind: str, method: str) -> None:
    """Ends of lines were counted as ends of sentences: more than twice as many as come of what is wrapped."""
    settings = SegmentSettings(**{"method": method, "max_tokens": None})
    texts = texts_of(kind)
    real = len(
        Segmenter(settings, lambda some: [len(one) for one in some]).segment(texts, ["eng_Latn"] * len(texts)).document
    )
    counter = SentenceCounter(settings)
    counts = [counter(one, "eng_Latn") for one in texts]
    found, doubtful = sum(one.sentences for one in counts), sum(one.doubtful for one in counts)
    assert abs(real / found - 1) < 0.21 + 0.6 * doubtful / found, (real, found, doubtful)
    assert (doubtful < 0.1 * found) or (method.startswith("sat") and kind not in ("prose", "wrapped"))
