"""A language that the tokenizer hardly knows is told before a run, by `doctor` and in the report."""

from __future__ import annotations

import base64
import random
import unicodedata
from pathlib import Path

import pytest

from stages.segment.token_cap import add_beginning, cut_by_tokens
from tests.conftest import MakeConfig, sample_documents, write_jsonl
from tests.support.cli import pipeline

HINDI = "राम ने कहा कि वह कल बाजार जाएगा और वहाँ से फल लाएगा। सीता घर पर उसकी प्रतीक्षा कर रही थी। " * 8
WARNING = "deu_Latn: 0.4 characters per token of sonar-tiny, so segment.max_tokens (128) cuts sentences at about"


def test_plan_doctor_and_report_warn(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(autobleu=None, encode={"model": "sonar-tiny"})
    for old in (tmp_path / "in").glob("*.jsonl"):
        old.unlink()
    documents = [{"id": "hindi", "lang": "deu_Latn", "text": HINDI}, *sample_documents("libreoffice-zho", 3)]
    write_jsonl(tmp_path / "in" / "some.jsonl", documents)
    for command in (("plan", path), ("doctor", path), ("run", path)):
        shown = pipeline(*command)
        assert (WARNING in " ".join(shown.stdout.split())) == (command[0] != "run"), shown
        assert "zho_Hans:" not in shown.stdout
    assert pipeline("report", path).returncode == 0
    report = next((tmp_path / "out").rglob("*.html")).read_text()
    assert WARNING in report and "zho_Hans: " not in report


def test_one_odd_document_is_not_taken_for_its_language(make_config: MakeConfig, tmp_path: Path) -> None:
    path = make_config(autobleu=None, encode={"model": "sonar-tiny"})
    for old in (tmp_path / "in").glob("*.jsonl"):
        old.unlink()
    packed = base64.b64encode(random.Random(0).randbytes(30_000)).decode()
    documents = [{"id": "odd", "lang": "eng_Latn", "text": packed}, *sample_documents("libreoffice-eng", 6)]
    write_jsonl(tmp_path / "in" / "some.jsonl", documents)
    assert "characters per token" not in pipeline("doctor", path).stdout
    pipeline("run", path)
    assert pipeline("report", path).returncode == 0
    assert "characters per token" not in next((tmp_path / "out").rglob("*.html")).read_text()


def test_one_warning_names_all_languages_with_the_worst_first() -> None:
    counts = {"eng_Latn": (400, 100), "heb_Hebr": (70, 100), "kat_Geor": (40, 100), "tha_Thai": (4, 99)}
    (one,) = cut_by_tokens(counts, 128, "m")
    assert one.startswith(
        "kat_Geor: 0.4, heb_Hebr: 0.7 characters per token of m, so segment.max_tokens (128) cuts sentences at about "
        "50 to 88 characters; the model hardly knows these 2 languages"
    )


def test_tokens_are_those_of_composed_text() -> None:
    french = "Café résumé naïve: l'été, où êtes-vous allés? " * 20
    texts: dict[str, str] = {}
    add_beginning(texts, "fra_Latn", unicodedata.normalize("NFD", french))
    assert texts["fra_Latn"] == french


@pytest.mark.parametrize(
    ("lang", "characters", "warned"),
    [("hin_Deva", 149, True), ("hin_Deva", 150, False), ("zho_Hans", 80, False), ("kor_Hang", 74, True)],
)
def test_one_character_says_more_in_some_scripts(lang: str, characters: int, warned: bool) -> None:
    assert bool(cut_by_tokens({lang: (characters, 100)}, 128, "m")) is warned
    assert not cut_by_tokens({lang: (characters, 100)}, None, "m")
