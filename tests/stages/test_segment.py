"""Segmenting: all text is kept and in its place, sentences of every script are found, the cap is hard."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.util import get_lang_class

from stages.segment import spacy_rules
from stages.segment.marks import collapse
from stages.segment.segmenter import Segmented, Segmenter
from stages.segment.settings import SegmentSettings
from stages.segment.spacy_rules import SPACY_CODES, SpacyRules, spacy_code
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer
from tests.conftest import sample_documents

LANGS = ("eng_Latn", "zho_Hans", "fra_Latn", "ell_Grek", "tha_Thai")


def count_bytes(texts: Sequence[str]) -> list[int]:
    return [len(text.encode()) // 3 + 2 for text in texts]


CAPPED = Segmenter(SegmentSettings(max_chars=60, max_tokens=24), count_bytes)
PLAIN = Segmenter(SegmentSettings(method="spacy"), count_bytes)


def is_blank(character: str) -> bool:
    return character.isspace() or unicodedata.category(character) == "Cc"


def check(segmented: Segmented, texts: Sequence[str]) -> None:
    """Every non-blank character is in exactly one piece, in order, and `text` is the collapsed slice."""
    rows = zip(segmented.document, segmented.start, segmented.end, segmented.text.to_pylist(), strict=True)
    before = [0] * len(texts)
    last = 0
    for document, start, end, piece in rows:
        assert document >= last and start >= before[document] and start < end
        assert all(map(is_blank, texts[document][before[document] : start]))
        assert piece == re.sub(r"[\s\x00-\x1f\x7f-\x9f]+", " ", texts[document][start:end]) == piece.strip() != ""
        before[document], last = end, document
    for text, end in zip(texts, before, strict=True):
        assert all(map(is_blank, text[end:]))
    pieces = segmented.text.to_pylist()
    assert segmented.chars.tolist() == [len(piece) for piece in pieces]
    assert segmented.tokens.tolist() == count_bytes(pieces)


TRICKY = "ab A.!?…\"'«»()。！「」，;:-\n\r\t\u0301\u200d😀\u2028\x00\x85"
TEXT = st.text(st.one_of(st.sampled_from(TRICKY), st.characters(exclude_categories=["Cs"])), max_size=300)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TEXT, st.sampled_from(LANGS)), max_size=4))
def test_every_character_is_kept_in_its_place(documents: list[tuple[str, str]]) -> None:
    texts, langs = [text for text, _ in documents], [lang for _, lang in documents]
    check(PLAIN.segment(texts, langs), texts)
    capped = CAPPED.segment(texts, langs)
    check(capped, texts)
    assert capped.chars.max(initial=0) <= 60 and capped.tokens.max(initial=0) <= 24


TRAPS = {
    "a 402-character URL": "https://example.org/" + "a/b?c=d&" * 47 + "abcdef",
    "emoji": "😀" * 10_000,
    "families": "👨‍👩‍👧‍👦" * 500,
    "combining marks": "a" + "\u0301" * 5_000,
    "one character": "x",
    "one emoji": "‼️",
    "punctuation only": "?!.,;:" * 200,
    "dots": "." * 3_000 + " a. B",
    "Thai without spaces": "ภาษาไทยไม่มีช่องว่างระหว่างคำ" * 40,
    "Chinese without marks": "没有标点符号的很长的中文句子" * 60,
    "Korean in jamo": "\u1112\u1161\u11ab" * 300,
    "base64": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo" * 100 + ". And then?",
    "control characters": "a\x00\x01b" * 100,
    "windows line ends": "One.\r\nTwo, on the same paragraph\r\n\r\nThree.",
}


@pytest.mark.parametrize("lang", LANGS)
@pytest.mark.parametrize("trap", TRAPS)
def test_the_cap_is_hard(trap: str, lang: str) -> None:
    text = TRAPS[trap]
    capped = Segmenter(SegmentSettings(max_chars=200, max_tokens=64), count_bytes).segment([text], [lang])
    check(capped, [text])
    assert capped.chars.max() <= 200 and capped.tokens.max() <= 64 and capped.over_cap == 0
    assert capped.hard_cuts <= len(capped.text)


def test_the_smallest_cap_holds_down_to_single_characters() -> None:
    text = "Grüße, 你好 😀 " * 30
    tight = Segmenter(SegmentSettings(max_chars=10, max_tokens=8), lambda texts: [4 * len(text) + 3 for text in texts])
    assert set(tight.segment([text], ["deu_Latn"]).chars.tolist()) == {1}
    over = Segmenter(SegmentSettings(max_tokens=8), lambda texts: [9 * len(text) for text in texts]).segment(
        ["abc"], ["eng_Latn"]
    )
    assert over.text.to_pylist() == ["a", "b", "c"] and over.over_cap == 3  # cannot be helped, and is told


@pytest.mark.parametrize("text", ["", " \n\t \x00 \n\n \u2029"])
def test_nothing_gives_no_pieces(text: str) -> None:
    for segmenter in (PLAIN, CAPPED):
        assert len(segmenter.segment([text], ["eng_Latn"]).text) == 0
    assert len(PLAIN.segment([], []).text) == 0


SENTENCES = {
    "eng_Latn": ["Mr. Hill paid $3.14, e.g. in the U.S. market.", '"Why?" said she.', "(It rained.)",
                 '"We go," he said.', "Well... yes!", "Wait...", "No."],
    "deu_Latn": ["Am 3. Mai kam z. B. Dr. Meier.", "„Schön!“ rief er.", "„Hallo.“", "»Gut.«", "»Ja.«", "Und?"],
    "fra_Latn": ["« Bonjour ! » dit-il à M. Dupont.", "« Ça va ? »", "Oui ; bien sûr.", "(Fin.)"],
    "rus_Cyrl": ["«Как дела?» — спросил он.", "— Хорошо!", "Да…", "Нет."],
    "ell_Grek": ["Τι κάνεις;", "Καλά· εσύ;", "Ναι."],
    "hin_Deva": ["मैं छात्र हूँ।", "वह गया।", "ठीक?"],
    "arb_Arab": ["أنا طالب، وأنت؟", "نعم.", "شكرا!"],
    "hye_Armn": ["Ես ուսանող եմ։", "Դու գնացիր։"],
    "amh_Ethi": ["እኔ ተማሪ ነኝ።", "እሱ ሄደ፧", "አዎ።"],
    "kor_Hang": ["안녕하세요.", "저는 학생입니다.", "네?"],
    "mya_Mymr": ["ကျွန်တော်၊ ကျောင်းသား။", "သူသွားသည်။"],
    "khm_Khmr": ["ខ្ញុំជាសិស្ស។", "គាត់ទៅ។"],
    "bod_Tibt": ["ང་སློབ་མ་ཡིན།", "ཁོང་ཕྱིན།"],
    "urd_Arab": ["میں طالب علم ہوں۔", "وہ گیا۔"],
    "zho_Hans": ["“再见！”", "“好？」”", "他说版本是3.14。", "「好？」", "是的……也许吧！", "新位置.", "定义新的区域。"],
    "jpn_Jpan": ["私は学生です。", "「はい！」", "と言った。", "終わり？"],
}  # fmt: skip
NO_SPACES = {"zho_Hans", "jpn_Jpan"}


@pytest.mark.parametrize("lang", SENTENCES)
def test_sentences_of_every_script(lang: str) -> None:
    text = ("" if lang in NO_SPACES else " ").join(SENTENCES[lang])
    assert PLAIN.segment([text], [lang]).text.to_pylist() == SENTENCES[lang]


@pytest.mark.parametrize("lang", ["khm_Khmr", "mya_Mymr", "amh_Ethi", "hin_Deva", "hye_Armn", "bod_Tibt"])
def test_marks_of_other_scripts_need_no_space(lang: str) -> None:
    assert PLAIN.segment(["".join(SENTENCES[lang])], [lang]).text.to_pylist() == SENTENCES[lang]


def test_thai_has_no_sentence_marks_and_is_left_to_the_cap() -> None:
    text = "ฉันเป็นนักเรียน เขาไปตลาด " * 20
    assert len(PLAIN.segment([text], ["tha_Thai"]).text) == 1
    capped = CAPPED.segment([text], ["tha_Thai"])
    assert capped.cap_splits == 1 and capped.hard_cuts == 0  # at its spaces


def test_blank_lines_end_sentences_and_single_line_ends_do_not() -> None:
    text = "A heading\n\nA sentence\nover two  lines\r\n \t\r\nanother\u2029last"
    assert PLAIN.segment([text], ["eng_Latn"]).text.to_pylist() == [
        "A heading", "A sentence over two lines", "another", "last",
    ]  # fmt: skip


def test_a_batch_may_mix_languages_and_is_the_same_as_one_by_one() -> None:
    names = ("austen-eng", "libreoffice-deu", "libreoffice-fra", "libreoffice-rus", "libreoffice-zho")
    documents = [document for name in names for document in sample_documents(name, 2)]
    texts, langs = [one["text"] for one in documents], [one["lang"] for one in documents]
    together = CAPPED.segment(texts, langs)
    check(together, texts)
    alone = [
        Segmenter(CAPPED.settings, count_bytes).segment([text], [lang]) for text, lang in zip(texts, langs, strict=True)
    ]
    assert together.text.to_pylist() == [piece for one in alone for piece in one.text.to_pylist()]
    assert together.cap_splits == sum(one.cap_splits for one in alone) > 0
    assert together.hard_cuts == sum(one.hard_cuts for one in alone)


def test_tokens_are_counted_in_few_calls() -> None:
    calls: list[int] = []

    def count(texts: Sequence[str]) -> list[int]:
        calls.append(len(texts))
        return count_bytes(texts)

    texts = [one["text"] for one in sample_documents("austen-eng", 3)]
    Segmenter(SegmentSettings(max_tokens=20), count).segment(texts, ["eng_Latn"] * 3)
    assert calls[0] > 300 and len(calls) <= 5


def test_text_longer_than_spacys_limit() -> None:
    sentence = "The quick brown fox jumps over the lazy dog."
    text = " ".join([sentence] * 30_000)  # 1.35 million characters in one paragraph
    assert PLAIN.segment([text], ["eng_Latn"]).text.to_pylist() == [sentence] * 30_000


def test_a_long_word_does_not_make_sentences() -> None:
    url = "https://example.org/" + "first.part?x=1&second=Two!" * 60 + "x"
    assert PLAIN.segment([f"See {url} for it. Then go."], ["eng_Latn"]).text.to_pylist() == [
        f"See {url} for it.",
        "Then go.",
    ]


def test_a_pipeline_that_has_seen_many_words_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    text = sample_documents("postgresql-eng", 1)[0]["text"]
    rules = SpacyRules("en")
    expected = rules.starts(text)
    held = len(rules._tokenizer.vocab.strings)
    monkeypatch.setattr("stages.segment.spacy_rules.MAX_STRINGS", held - 1)
    assert rules.starts("One. Two.") == [0, 5]
    assert len(rules._tokenizer.vocab.strings) < held
    assert rules.starts(text) == expected


def test_every_language_of_the_table_is_known_to_spacy() -> None:
    for code in sorted({*SPACY_CODES.values(), "xx"}):
        assert get_lang_class(code).lang == code
    assert [spacy_code(lang) for lang in ("deu_Latn", "arz_Arab", "jpn_Jpan", "zho_Hant", "kor_Hang", "wol_Latn")] == [
        "de", "ar", "xx", "xx", "xx", "xx",
    ]  # fmt: skip


def test_the_real_tokenizer_keeps_the_cap() -> None:
    tokenizer = SonarTokenizer(load_card("sonar-tiny"))
    texts = [*TRAPS.values(), *(one["text"] for one in sample_documents("libreoffice-zho", 10))]
    langs = ["eng_Latn"] * len(TRAPS) + ["zho_Hans"] * 10
    capped = Segmenter(SegmentSettings(max_tokens=32), tokenizer.count).segment(texts, langs)
    assert capped.tokens.tolist() == tokenizer.count(capped.text.to_pylist())
    assert capped.tokens.max() <= 32 and capped.chars.max() <= 200 and capped.over_cap == 0
    assert collapse("".join(texts)).replace(" ", "") == "".join(capped.text.to_pylist()).replace(" ", "")


@pytest.mark.parametrize("code", ["en", "xx"])
def test_long_paragraphs_are_looked_at_in_windows(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [one["text"] for one in sample_documents("libreoffice-eng", 30)]
    text = collapse(" ".join([*documents, "nosentencehere " * 300, *documents[:5]]))
    rules = SpacyRules(code)
    whole = rules.starts(text)
    assert len(whole) > 300
    monkeypatch.setattr(spacy_rules, "WINDOW", 3000)
    assert rules.starts(text) == whole


@pytest.mark.parametrize("before", [1990, 2000, 2500, 2990, 2999, 3000, 3001, 3010])
def test_a_sentence_that_starts_near_the_end_of_a_window(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ("word " * before)[: before - 2] + "s. Here it starts. " + "again " * 600 + "it ends. The last one."
    rules = SpacyRules("en")
    whole = rules.starts(text)
    assert len(whole) == 4
    monkeypatch.setattr(spacy_rules, "WINDOW", 3000)
    assert rules.starts(text) == whole
