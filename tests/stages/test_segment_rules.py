"""Sentence starts by rules: those of spaCy's own tokenizers and sentencizer, in every language of the table."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokenizer import Tokenizer
from spacy.util import compile_infix_regex, get_lang_class

from stages.segment import marks
from stages.segment.rules.spacy_rules import (
    _ELLIPSES,
    _FINAL_MARKS,
    _INFIXES,
    SPACY_CODES,
    SpacyRules,
    before_openers,
    goes_on,
    spacy_code,
)
from stages.segment.text import Text
from tests.conftest import sample_documents

SAMPLES = {
    "austen-eng": 2,
    "postgresql-eng": 20,
    "libreoffice-deu": 60,
    "libreoffice-fra": 20,
    "libreoffice-rus": 60,
    "libreoffice-zho": 60,
}


@cache
def rules_of(code: str) -> SpacyRules:
    return SpacyRules(code)


@cache
def pipeline_of(code: str) -> Language:
    """spaCy with the same infixes and final marks, made without our code."""
    nlp = spacy.blank(code)
    assert isinstance(nlp.tokenizer, Tokenizer)
    if code == "xx":
        nlp.tokenizer.url_match = None
    nlp.tokenizer.infix_finditer = compile_infix_regex([*(nlp.Defaults.infixes or []), *_INFIXES]).finditer
    final = {*_FINAL_MARKS, *_ELLIPSES} - ({";"} if code != "el" else set())
    nlp.add_pipe("sentencizer", config={"punct_chars": sorted(final)})
    return nlp


def starts(code: str, texts: list[str]) -> list[list[int]]:
    """In each text, by our rules."""
    text = Text(texts)
    found = rules_of(code).starts(text, 0, len(texts))
    owner = np.searchsorted(text.edges, found, side="right") - 1
    return [(found[owner == number] - text.edges[number]).tolist() for number in range(len(texts))]


def spacys_starts(code: str, paragraph: str) -> list[int]:
    """In a paragraph, by spaCy, with what is put right afterwards. Its tokenizer makes tokens of odd white space, with
    which sentences start, so it sees the paragraph as it is written.
    """
    last, found = 0, []
    for sentence in list(pipeline_of(code)(paragraph).sents)[1:]:
        start = before_openers(paragraph, last, sentence.start_char)
        if (
            start > last
            and not goes_on(paragraph, 0, start, len(paragraph))
            and not marks.EXTENDS.match(paragraph, start)
        ):
            found.append(start)
            last = start
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_starts_are_those_of_spacy(name: str) -> None:
    documents = sample_documents(name, SAMPLES[name])
    code = spacy_code(documents[0]["lang"])
    paragraphs = [
        marks.collapse(paragraph) for one in documents for paragraph in marks.PARAGRAPH_END.split(one["text"])
    ]
    expected = [spacys_starts(code, paragraph) for paragraph in paragraphs]
    assert starts(code, paragraphs) == expected
    assert sum(map(len, expected)) > 100


PIECES = [
    *("a", "House", "U.S.", "e.g.", "z.", "B.", "Dr.", "3.14", "Z.", "3", "M.", "I.", "v.s.", "USA", "A", "A.B", "5%"),
    *("...", "..", "…", ".", "!", "?", "?!", "。", "！", "।", "」", "「", '"', "'", "(", ")", "»", "«", "’", "“", ","),
    *("एक", "http://a.b", "x@y.de", ":)", "-", "--", "–", "don't", "l'", "aujourd'hui", "😀", "/", "_", "ß", "İ", "ǅ"),
    *(" ", ";", " ", " ", " ", " ", " ", " ", " ", " ", " "),
]  # fmt: skip


@pytest.mark.parametrize("code", ["ar", "de", "el", "en", "fi", "fr", "hi", "ru", "tr", "xx"])
def test_starts_are_those_of_spacy_in_words_that_nobody_writes(code: str) -> None:
    rng = random.Random(code)
    paragraphs = [marks.collapse("".join(rng.choices(PIECES, k=rng.randrange(1, 16)))) for _ in range(600)]
    assert starts(code, paragraphs) == [spacys_starts(code, paragraph) for paragraph in paragraphs]


def test_starts_are_those_of_spacy_between_east_asian_letters() -> None:
    rng = random.Random(0)
    pieces = [*PIECES, *("你", "好", "가", "は", "カ") * 4]
    paragraphs = [marks.collapse("".join(rng.choices(pieces, k=rng.randrange(1, 16)))) for _ in range(600)]
    assert starts("xx", paragraphs) == [spacys_starts("xx", paragraph) for paragraph in paragraphs]


ALPHABETS = ("ar", "bg", "de", "el", "en", "es", "fi", "fr", "he", "hi", "hu", "hy", "kn", "nb", "pl", "ro", "ru", "sr",
             "sv", "ta", "te", "tr", "tt", "uk", "xx")  # fmt: skip


@pytest.mark.parametrize("code", ALPHABETS)
def test_words_that_look_alike_do_alike(code: str) -> None:
    """A word's shape stands for it: the same for frequent words, abbreviations and roman numerals of each language."""
    rng, rules = random.Random(code), SpacyRules(code)
    defaults = get_lang_class(code).Defaults
    words = [*rng.sample(sorted(defaults.stop_words), min(40, len(defaults.stop_words)))]
    words += rng.sample(sorted(defaults.tokenizer_exceptions), min(40, len(defaults.tokenizer_exceptions)))
    words += ["".join(rng.choices("ABCIVXLM", k=rng.randrange(1, 4))) for _ in range(20)]
    for word in words:
        for form in (word, word.capitalize(), word.upper()):
            marked = rng.choice(["", "", "(", "“", "«"]) + form + rng.choice([".", "!", ".)", "...", '?"', ".,", "’."])
            if " " not in marked:
                assert rules._word(marked) == rules._tokenised(marked), marked


def test_every_language_of_the_table_is_known_to_spacy() -> None:
    for code in sorted({*SPACY_CODES.values(), "xx"}):
        assert get_lang_class(code).lang == code
    assert [spacy_code(lang) for lang in ("deu_Latn", "arz_Arab", "jpn_Jpan", "zho_Hant", "kor_Hang", "wol_Latn")] == [
        "de", "ar", "xx", "xx", "xx", "xx",
    ]  # fmt: skip


SENTENCES = {
    "eng_Latn": ["Mr. Hill paid $3.14, e.g. in the U.S. market.", '"Why?" said she.', "(It rained.)",
                 '"We go," he said.', "Well... yes!", "Wait...", "No."],
    "deu_Latn": ["Am 3. Mai kam z. B. Dr. Meier.", "„Schön!“ rief er.", "„Hallo.“", "»Gut.«", "»Ja.«", "Und?"],
    "fra_Latn": ["« Bonjour ! » dit-il à M. Dupont.", "« Ça va ? »", "Oui ; bien sûr.", "(Fin.)"],
    "rus_Cyrl": ["«Как дела?» — спросил он.", "— Хорошо!", "Да…", "Нет."],
    "ell_Grek": ["Τι κάνεις;", "Καλά· εσύ;", "Ναι."],
    "hin_Deva": ["मैं छात्र हूँ।", "वह गया।", "ठीक?"],
    "arb_Arab": ["أنا طالب، وأنت؟", "نعم.", "قلت له شكراً.", "شكرا!"],
    "heb_Hebr": ["שלום.\u200f", "מה שלומך?", "טוב."],
    "hye_Armn": ["Ես ուսանող եմ։", "Դու գնացիր։"],
    "amh_Ethi": ["እኔ ተማሪ ነኝ።", "እሱ ሄደ፧", "አዎ።"],
    "tir_Ethi": ["ኩሎም ሰባት ማዕሪን እዮም፡፡", "ሰብ፡ኩሉ፡ኦለዎ፡፡", "ኦይፍፀሞን።"],
    "kor_Hang": ["안녕하세요.", "저는 학생입니다.", "네?"],
    "mya_Mymr": ["ကျွန်တော်၊ ကျောင်းသား။", "သူသွားသည်။"],
    "khm_Khmr": ["ខ្ញុំជាសិស្ស។", "គាត់ទៅ។"],
    "bod_Tibt": ["ང་སློབ་མ་ཡིན།", "ཁོང་ཕྱིན།"],
    "urd_Arab": ["میں طالب علم ہوں۔", "وہ گیا۔"],
    "zho_Hans": ["“再见！”", "“好？」”", "他说版本是3.14。", "「好？」", "是的……也许吧！", "新位置.", "定义新的区域。"],
    "jpn_Jpan": ["私は学生です。", "「はい！」", "と言った。", "終わり？"],
    # letters that spaCy's own rules do not know, before a full stop
    "kat_Geor": ["ეს არის წიგნი.", "ის წავიდა.", "დიახ!"],
    "mal_Mlym": ["അവൻ പോയി.", "അർഹരാണ്\u200c.", "അവൾ വന്നു."],
    "guj_Gujr": ["તે ગયો.", "તે આવી."],
    "pan_Guru": ["ਉਹ ਗਿਆ.", "ਉਹ ਆਈ।"],
    "lao_Laoo": ["ລາວໄປ.", "ລາວມາ."],
    "tzm_Tfng": ["ⵉⴷⴷⴰ.", "ⵜⵓⵙⴰ."],
    "yor_Latn": ["Mo rí ọ̀rẹ́ mi ọ̀.", "Ó ti lọ."],
    "srp_Cyrl": ["Он је већ.", "Она је дошла."],
    "tur_Latn": ["Burada AB.", "Sonra geldi."],  # XX. is the number 20 there
}  # fmt: skip
NO_SPACES = {"zho_Hans", "jpn_Jpan"}


def sentences(lang: str, text: str) -> list[str]:
    edges = [0, *starts(spacy_code(lang), [text])[0], len(text)]
    return [text[a:b].rstrip() for a, b in pairwise(edges)]


@pytest.mark.parametrize("lang", SENTENCES)
def test_sentences_of_every_script(lang: str) -> None:
    text = ("" if lang in NO_SPACES else " ").join(SENTENCES[lang])
    assert sentences(lang, text) == SENTENCES[lang]


@pytest.mark.parametrize("lang", ["khm_Khmr", "mya_Mymr", "amh_Ethi", "hin_Deva", "hye_Armn", "bod_Tibt"])
def test_marks_of_other_scripts_need_no_space(lang: str) -> None:
    assert sentences(lang, "".join(SENTENCES[lang])) == SENTENCES[lang]


@pytest.mark.parametrize(
    "text",
    [
        "He said “no.” and left.", "(See p. 3.) and so on.", "etc.), so they went.", "no... yes.", "他……走了。",
        "Wait … what?", "a.b.c", "x?y", "“Why?” she said.",
    ],
)  # fmt: skip
def test_a_sentence_goes_on_where_it_only_seems_to_end(text: str) -> None:
    assert len(sentences("zho_Hans" if "他" in text else "eng_Latn", text)) == 1


@pytest.mark.parametrize(
    ("text", "second"),
    [
        ("It ends. “Now it starts.”", "“Now it starts.”"), ("Ends. — Now.", "— Now."), ("One. • Two.", "• Two."),
        ("Fin. « Ça va ? »", "« Ça va ? »"), ("One.\u3000(Two)", "(Two)"), ("One.\n\tTwo", "Two"),
        ("One. \x00 Two", "Two"), ("No!\u00a0Yes", "Yes"),
    ],
)  # fmt: skip
def test_what_opens_a_sentence_goes_with_it(text: str, second: str) -> None:
    assert sentences("fra_Latn" if "«" in text else "eng_Latn", text)[1:] == [second]


def test_a_long_word_does_not_make_sentences() -> None:
    url = "https://example.org/" + "first.part?x=1&second=Two!" * 60 + "x"
    assert sentences("eng_Latn", f"See {url} for it. Then go.") == [f"See {url} for it.", "Then go."]


def test_a_pipeline_that_has_seen_many_words_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Text([sample_documents("postgresql-eng", 1)[0]["text"]])
    rules = SpacyRules("en")
    expected = rules.starts(text, 0, 1).tolist()
    held = len(rules._tokenizer.vocab.strings)
    monkeypatch.setattr("stages.segment.rules.spacy_rules.MAX_STRINGS", held - 1)
    assert rules.starts(Text(["One-two. Two."]), 0, 1).tolist() == [9]
    assert len(rules._tokenizer.vocab.strings) < held
    assert rules.starts(text, 0, 1).tolist() == expected


def test_words_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stages.segment.rules.spacy_rules.KEPT_WORDS", 10)
    rules = SpacyRules("en")
    text = Text(["".join(f"word{number}. Then so-{number}! " for number in range(50))])
    assert len(rules.starts(text, 0, 1)) == 99
    assert len(rules._words) <= 12


def test_documents_that_are_not_asked_for_are_left_out() -> None:
    text = Text(["One. Two.", "Three. Four.", "Five. Six."])
    assert rules_of("en").starts(text, 1, 2).tolist() == [10 + 7]
    assert rules_of("en").starts(text, 3, 3).tolist() == []
