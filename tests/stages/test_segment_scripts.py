"""Real text in every script of SONAR's languages: all of it is kept, sentences are found, cuts are at good places."""

from __future__ import annotations

import gzip
import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from stages.segment.marks import collapse
from stages.segment.segmenter import Segmenter
from stages.segment.settings import SegmentSettings
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer

with gzip.open(Path(__file__).parent / "fixtures/udhr/articles.jsonl.gz", "rt", encoding="utf-8") as _lines:
    TEXTS: dict[str, str] = {record["lang"]: record["text"] for record in map(json.loads, _lines)}

# Counted by reading. Thai has no marks; in Tibetan each clause that ends with a shad counts.
SENTENCES = {
    "amh_Ethi": 8, "arb_Arab": 8, "ben_Beng": 8, "bod_Tibt": 33, "ell_Grek": 8, "eng_Latn": 7, "guj_Gujr": 7,
    "heb_Hebr": 7, "hin_Deva": 7, "hye_Armn": 7, "jpn_Jpan": 8, "kan_Knda": 10, "kat_Geor": 8, "khm_Khmr": 8,
    "kor_Hang": 8, "lao_Laoo": 6, "mal_Mlym": 9, "mya_Mymr": 8, "ory_Orya": 13, "pan_Guru": 8, "rus_Cyrl": 7,
    "sin_Sinh": 9, "tam_Taml": 7, "tel_Telu": 8, "tha_Thai": 1, "tir_Ethi": 8, "tzm_Tfng": 7, "urd_Arab": 10,
    "vie_Latn": 7, "zho_Hans": 7, "zho_Hant": 6,
}  # fmt: skip
# What sat-tiny cannot tell: two word spaces as a full stop; where sentences end in Thai, of which it knows no letter.
UNSEEN = ("tha_Thai", "tir_Ethi")
CAPPED = ("spacy-capped", "sat-capped")


@cache
def segmenter(method: str, max_tokens: int | None = None) -> Segmenter:
    tokenizer = SonarTokenizer(load_card("sonar-tiny"))
    return Segmenter(SegmentSettings.model_validate({"method": method, "max_tokens": max_tokens}), tokenizer.count)


def without_blanks(text: str) -> str:
    return "".join(text.split())


def test_every_script_of_the_published_model_has_a_text() -> None:
    assert {lang.split("_")[1] for lang in TEXTS} == {lang.split("_")[1] for lang in load_card("sonar").languages}
    assert SENTENCES.keys() == TEXTS.keys()


@pytest.mark.parametrize("lang", TEXTS)
def test_rules_find_the_sentences(lang: str) -> None:
    found = segmenter("spacy").segment([TEXTS[lang]], [lang])
    assert len(found.text) == SENTENCES[lang], found.text.to_pylist()


@pytest.mark.parametrize("lang", [lang for lang in TEXTS if lang not in UNSEEN])
def test_the_model_finds_sentences_in_letters_that_it_never_saw(lang: str) -> None:
    assert len(segmenter("sat").segment([TEXTS[lang]], [lang]).text) > 1


@pytest.mark.parametrize("lang", ["hin_Deva", "pan_Guru", "vie_Latn"])
def test_the_model_alone_finds_a_full_stop_behind_a_space(lang: str) -> None:
    alone = Segmenter(SegmentSettings(method="sat", sat_only=True, max_tokens=None), lambda texts: [0] * len(texts))
    assert len(alone.segment([TEXTS[lang]], [lang]).text) == SENTENCES[lang]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("method", CAPPED)
@pytest.mark.parametrize("lang", TEXTS)
def test_all_of_it_is_kept_in_its_place(lang: str, method: str, form: Literal["NFC", "NFD"]) -> None:
    text = unicodedata.normalize(form, TEXTS[lang])
    found = segmenter(method).segment([text], [lang])
    written = found.text.to_pylist()
    assert without_blanks("".join(written)) == without_blanks(unicodedata.normalize("NFC", text))
    end = 0
    for piece, start, stop in zip(written, found.start.tolist(), found.end.tolist(), strict=True):
        assert not text[end:start].strip() and start < stop
        assert piece == collapse(unicodedata.normalize("NFC", text[start:stop]))
        end = stop
    assert not text[end:].strip()


@pytest.mark.parametrize("method", CAPPED)
@pytest.mark.parametrize("lang", TEXTS)
def test_no_cut_is_hard_where_200_characters_have_a_space_or_a_mark(lang: str, method: str) -> None:
    found = segmenter(method).segment([TEXTS[lang]], [lang])
    assert found.hard_cuts == 0
    assert found.chars.max() <= 200 and len(found.text) > 1
    assert found.chars.tolist() == [len(piece) for piece in found.text.to_pylist()]


@pytest.mark.parametrize("method", CAPPED)
def test_the_cap_in_tokens_holds_in_scripts_that_the_tokenizer_spells_in_bytes(method: str) -> None:
    found = segmenter(method, 64).segment(list(TEXTS.values()), list(TEXTS))
    written = found.text.to_pylist()
    assert found.tokens.tolist() == SonarTokenizer(load_card("sonar-tiny")).count(written)
    assert found.tokens.max() <= 64 and found.chars.max() <= 200 and found.over_cap == 0
    together = unicodedata.normalize("NFC", " ".join(TEXTS.values()))
    assert without_blanks("".join(written)) == without_blanks(together)
