"""Segmenting documents: all text is kept and in its place by every method, and the cap is hard."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.segment import segmenter as module
from stages.segment.marks import collapse
from stages.segment.segmenter import Segmenter
from stages.segment.settings import MethodName, SegmentSettings
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer
from tests.conftest import sample_documents
from tests.stages.segmenting import TEXT, TRAPS, check, count_bytes

LANGS = ("eng_Latn", "zho_Hans", "arb_Arab", "ell_Grek", "tha_Thai")
METHODS: tuple[MethodName, ...] = ("spacy", "spacy-capped", "sat", "sat-capped", "paragraphs")
BY_METHOD = {
    method: Segmenter(SegmentSettings(method=method, max_chars=60, max_tokens=24), count_bytes) for method in METHODS
}
PLAIN, CAPPED = BY_METHOD["spacy"], BY_METHOD["spacy-capped"]


def real_documents(count: int) -> tuple[list[str], list[str]]:
    names = ("austen-eng", "libreoffice-deu", "libreoffice-fra", "libreoffice-rus", "libreoffice-zho")
    documents = [document for name in names for document in sample_documents(name, count)]
    return [one["text"] for one in documents], [one["lang"] for one in documents]


@pytest.mark.parametrize("method", METHODS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXT, st.sampled_from(LANGS)), max_size=4))
def test_every_character_is_kept_in_its_place(method: MethodName, documents: list[tuple[str, str]]) -> None:
    texts, langs = [text for text, _ in documents], [lang for _, lang in documents]
    segmented = BY_METHOD[method].segment(texts, langs)
    check(segmented, texts)
    if method not in ("spacy", "sat"):
        assert segmented.chars.max(initial=0) <= 60 and segmented.tokens.max(initial=0) <= 24


@pytest.mark.parametrize("method", ["spacy-capped", "sat-capped", "paragraphs"])
def test_the_cap_is_hard(method: MethodName) -> None:
    segmenter = Segmenter(SegmentSettings(method=method, max_chars=200, max_tokens=64), count_bytes)
    for lang in LANGS if method == "spacy-capped" else LANGS[:2]:  # which have rules of their own
        capped = segmenter.segment(list(TRAPS.values()), [lang] * len(TRAPS))
        check(capped, list(TRAPS.values()))
        assert capped.chars.max() <= 200 and capped.tokens.max() <= 64 and capped.over_cap == 0
        assert capped.hard_cuts <= len(capped.text)


@pytest.mark.parametrize("method", ["spacy-capped", "sat-capped"])
def test_the_smallest_cap_holds_down_to_single_characters(method: MethodName) -> None:
    text = "Grüße, 你好 😀 " * 30
    narrow = SegmentSettings(method=method, max_chars=10, max_tokens=8)
    tight = Segmenter(narrow, lambda texts: [4 * len(text) + 3 for text in texts])
    assert set(tight.segment([text], ["deu_Latn"]).chars.tolist()) == {1}
    over = Segmenter(narrow, lambda texts: [9 * len(text) for text in texts]).segment(["abc"], ["eng_Latn"])
    assert over.text.to_pylist() == ["a", "b", "c"] and over.over_cap == 3  # cannot be helped, and is told


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("text", ["", " \n\t \x00 \n\n \u2029"])
def test_nothing_gives_no_pieces(method: MethodName, text: str) -> None:
    assert len(BY_METHOD[method].segment([text], ["eng_Latn"]).text) == 0
    assert len(BY_METHOD[method].segment([], []).text) == 0


def test_thai_has_no_sentence_marks_and_is_left_to_the_cap() -> None:
    text = "ฉันเป็นนักเรียน เขาไปตลาด " * 20
    assert len(PLAIN.segment([text], ["tha_Thai"]).text) == 1
    capped = CAPPED.segment([text], ["tha_Thai"])
    assert capped.cap_splits == 1 and capped.hard_cuts == 0  # at its spaces


def test_blank_lines_end_sentences_and_single_line_ends_do_not() -> None:
    text = "A heading\n\nA sentence\nover two  lines\r\n \t\r\nanother\u2029last"
    found = PLAIN.segment([text], ["eng_Latn"])
    assert found.text.to_pylist() == ["A heading", "A sentence over two lines", "another", "last"]
    assert found.paragraph.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_may_mix_languages_and_is_the_same_as_one_by_one(method: MethodName) -> None:
    texts, langs = real_documents(1)
    segmenter = BY_METHOD[method]
    together = segmenter.segment(texts, langs)
    check(together, texts)
    alone = [segmenter.segment([text], [lang]) for text, lang in zip(texts, langs, strict=True)]
    assert together.text.to_pylist() == [piece for one in alone for piece in one.text.to_pylist()]
    assert together.paragraph.tolist() == [number for one in alone for number in one.paragraph.tolist()]
    assert together.cap_splits == sum(one.cap_splits for one in alone)
    assert together.hard_cuts == sum(one.hard_cuts for one in alone)
    assert (together.cap_splits > 0) == segmenter.settings.capped


def test_the_model_needs_neither_case_nor_punctuation() -> None:
    sentences = ["The committee met on Monday.", "It did not reach a decision.", "We will meet again next week."]
    bare = " ".join(one.lower().strip(".") for one in sentences)
    assert len(PLAIN.segment([bare], ["eng_Latn"]).text) == 1
    assert BY_METHOD["sat"].segment([" ".join(sentences)], ["eng_Latn"]).text.to_pylist() == sentences
    assert len(BY_METHOD["sat"].segment([bare], ["eng_Latn"]).text) > 1


@pytest.mark.parametrize("method", [one for one in METHODS if one != "paragraphs"])
def test_paragraphs_of_other_methods_stand_between_blank_lines(method: MethodName) -> None:
    text = "\n\n".join(["It rained all day. We stayed inside.", "Nobody came.", "Then the sun came out. We left."])
    for threshold in (None, 0.001):
        settings = SegmentSettings(method=method, paragraph_threshold=threshold)
        found = Segmenter(settings, count_bytes).segment([text], ["eng_Latn"])
        blank = [text.count("\n\n", 0, start) for start in found.start.tolist()]
        assert found.paragraph.tolist() == blank and len(set(blank)) == 3


def test_paragraphs_have_two_to_nine_sentences() -> None:
    text = collapse(" ".join(real_documents(2)[0][:2]))
    found = Segmenter(SegmentSettings(method="paragraphs"), count_bytes).segment([text], ["eng_Latn"])
    sizes = np.bincount(found.paragraph)
    assert len(sizes) > 30 and sizes.max() <= 9 and sizes.min() >= 2 and len(set(sizes.tolist())) > 4


def test_fragments_are_joined_where_the_cap_allows_it() -> None:
    text = "No. Yes. Well, that is a longer sentence of this text. Ah!\n\nOh."
    found = Segmenter(SegmentSettings(method="spacy-capped", min_chars=8), count_bytes).segment([text], ["eng_Latn"])
    assert found.text.to_pylist() == ["No. Yes.", "Well, that is a longer sentence of this text. Ah!", "Oh."]
    tight = SegmentSettings(method="spacy-capped", min_chars=8, max_chars=50)
    assert Segmenter(tight, count_bytes).segment([text], ["eng_Latn"]).text.to_pylist()[1:] == [
        "Well, that is a longer sentence of this text. Ah!",
        "Oh.",
    ]
    tight = SegmentSettings(method="spacy-capped", min_chars=8, max_chars=46)
    assert Segmenter(tight, count_bytes).segment([text], ["eng_Latn"]).text.to_pylist()[1:] == [
        "Well, that is a longer sentence of this text.",
        "Ah!",
        "Oh.",
    ]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize(
    ("lang", "sentences"),
    [
        ("vie_Latn", ["Tất cả mọi người đều được tự do.", "Họ phải đối xử với nhau trong tình anh em."]),
        ("kor_Hang", ["모든 사람은 태어날 때부터 자유롭다.", "사람은 이성과 양심을 부여받았다."]),
        ("hin_Deva", ["सभी लोग जन्म से स्वतन्त्र हैं।", "उन्हें बुद्धि की देन प्राप्त है।"]),
    ],
)
def test_text_is_written_in_nfc_and_offsets_are_those_of_the_document(
    lang: str, sentences: list[str], form: str
) -> None:
    text = unicodedata.normalize("NFD", " ".join(sentences)) if form == "NFD" else " ".join(sentences)
    found = PLAIN.segment([text], [lang])
    assert found.text.to_pylist() == [unicodedata.normalize("NFC", one) for one in sentences]
    for start, end, sentence in zip(found.start, found.end, sentences, strict=True):
        assert unicodedata.normalize("NFC", text[start:end]) == unicodedata.normalize("NFC", sentence)


def test_tokens_are_counted_in_few_calls() -> None:
    calls: list[int] = []

    def count(texts: Sequence[str]) -> list[int]:
        calls.append(len(texts))
        return count_bytes(texts)

    texts = [one["text"] for one in sample_documents("austen-eng", 3)]
    Segmenter(SegmentSettings(method="spacy-capped", max_tokens=20), count).segment(texts, ["eng_Latn"] * 3)
    assert calls[0] > 300 and len(calls) <= 5


def test_a_very_long_document_is_looked_at_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "The quick brown fox jumps over the lazy dog."
    text = " ".join([sentence] * 30_000)  # 1.35 million characters in one paragraph
    assert PLAIN.segment([text], ["eng_Latn"]).text.to_pylist() == [sentence] * 30_000
    texts, langs = real_documents(2)
    whole = CAPPED.segment(texts, langs)
    monkeypatch.setattr(module, "LONGEST", 3000)
    monkeypatch.setattr(module, "TOGETHER", 4000)
    windows = CAPPED.segment(texts, langs)
    check(windows, texts)
    same = set(zip(whole.document, whole.start, whole.end, whole.paragraph, strict=True))
    assert len(same - set(zip(windows.document, windows.start, windows.end, windows.paragraph, strict=True))) < 10


@pytest.mark.parametrize("unit", ["x", "字", "🇩🇪", "👨‍👩‍👧‍👦", "\u1112\u1161\u11ab", "\u0915\u093c", "a\u0323\u0301"])
def test_a_megabyte_without_a_space_is_cut_between_clusters(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one unit; of the others a tenth, in windows of a tenth."""
    tenth = 1 if unit == "字" else 10
    monkeypatch.setattr(module, "LONGEST", module.LONGEST // tenth)
    text = unit * (1_300_000 // tenth // len(unit))
    segmenter = Segmenter(SegmentSettings(method="spacy-capped", max_tokens=None), count_bytes)
    began = time.process_time()
    found = segmenter.segment([text], ["eng_Latn"])
    assert time.process_time() - began < 60  # about 2 s; quadratic time would be hours
    pieces = found.text.to_pylist()
    assert found.chars.max() <= 200 and "".join(pieces) == unicodedata.normalize("NFC", text)
    assert found.hard_cuts == len(pieces) - 2  # but for the end of a window and the last
    composed = unicodedata.normalize("NFC", unit)
    assert all(len(piece) % len(composed) == 0 for piece in pieces)
    assert all(
        (end - start) % len(unit) == 0 for start, end in zip(found.start.tolist(), found.end.tolist(), strict=True)
    )


@pytest.mark.parametrize("method", METHODS)
def test_lone_surrogates_are_refused(method: MethodName) -> None:
    """The readers quarantine them; nothing behind them could write such a text."""
    for text in ("One. T\udc80wo.", "e\u0301 \ud800"):
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            BY_METHOD[method].segment([text], ["eng_Latn"])


def test_the_real_tokenizer_keeps_the_cap() -> None:
    tokenizer = SonarTokenizer(load_card("sonar-tiny"))
    texts = [*TRAPS.values(), *(one["text"] for one in sample_documents("libreoffice-zho", 10))]
    langs = ["eng_Latn"] * len(TRAPS) + ["zho_Hans"] * 10
    for method in ("spacy-capped", "sat-capped"):
        capped = Segmenter(SegmentSettings(method=method, max_tokens=32), tokenizer.count).segment(texts, langs)
        assert capped.tokens.tolist() == tokenizer.count(capped.text.to_pylist())
        assert capped.tokens.max() <= 32 and capped.chars.max() <= 200 and capped.over_cap == 0
