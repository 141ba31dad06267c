"""`lang: detect`: what is kept, what is set aside and why, and what becomes stale."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from launchers.launch import launch
from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from pipeline.config.schema import corpus_schema
from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import RunRecord
from pipeline.doctor import examine
from pipeline.inputs import (
    Document,
    LangDetect,
    Rejected,
    SplitSettings,
    nearest_languages,
    plan_chunks,
    read_documents,
)
from pipeline.planning.plan import make_plan
from pipeline.storage.store import Store
from stages.language import identifier as language
from stages.sonar.card import load_card
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.inputs import entry
from tests.support.languages import SENTENCES

DETECT = {"detect": {"threshold": 0.5}}
SAMPLES = {
    "eng_Latn": "austen-eng",
    "deu_Latn": "libreoffice-deu",
    "fra_Latn": "libreoffice-fra",
    "rus_Cyrl": "libreoffice-rus",
    "zho_Hans": "libreoffice-zho",
}
BRETON = "Dieub ha par en o dellezegezh hag o gwirioù eo ganet an holl dud."


def read(folder: Path, texts: list[str], lang: Any, model: str = "sonar-tiny") -> list[Document | Rejected]:
    write_jsonl(folder / "a.jsonl", [{"id": number, "text": text} for number, text in enumerate(texts)])
    settings = entry(folder, id="id", lang=lang)
    (chunk,) = plan_chunks(settings)
    return list(read_documents(chunk, settings, SplitSettings(), load_card(model).languages))


def refused(folder: Path, text: str, lang: Any = "detect", model: str = "sonar-tiny") -> Rejected:
    (item,) = read(folder, [text], lang, model)
    assert isinstance(item, Rejected)
    return item


def test_documents_come_with_language_and_confidence(tmp_path: Path) -> None:
    for found, lang in zip(read(tmp_path, list(SENTENCES.values()), "detect", "sonar"), SENTENCES, strict=True):
        assert isinstance(found, Document) and found.lang == lang
        assert found.lang_confidence is not None and 0.5 <= found.lang_confidence <= 1


def test_below_the_threshold(tmp_path: Path) -> None:
    item = refused(tmp_path, "Der Tag war hello bonjour mañana", {"detect": {"threshold": 0.99}})
    assert item.reason == "language not certain"
    assert "below lang.detect.threshold 0.99" in item.error and "with confidence 0." in item.error
    assert "state the language" in item.error and "or lower the threshold" in item.error
    (kept,) = read(tmp_path, ["Der Tag war hello bonjour mañana"], {"detect": {"threshold": 0.0}})
    assert isinstance(kept, Document) and kept.lang == "deu_Latn"


def test_languages_that_cannot_be_encoded(tmp_path: Path) -> None:
    breton, dutch = refused(tmp_path, BRETON), refused(tmp_path, "Alle mensen worden vrij en gelijk geboren.")
    assert breton.reason == dutch.reason == "unknown language"
    assert "looks like 'br' with confidence 0." in breton.error and "SONAR has no code" in breton.error
    assert "looks like 'nl' with confidence " in dutch.error
    assert "nld_Latn, which is not among the model's 5 languages; use a model that knows it" in dutch.error
    traditional = refused(tmp_path, SENTENCES["zho_Hant"])
    assert "zho_Hant, which is not among" in traditional.error
    mixed = refused(tmp_path, "在 LibreOffice Calc 中 ABCDEFGHIJKLMNOPQRSTUVWXYZ", {"detect": {"threshold": 0.1}})
    assert "'zh'" in mixed.error and "few of its letters are in the script of zho_Hans or zho_Hant" in mixed.error


def test_nothing_to_tell_a_language_by(tmp_path: Path) -> None:
    item = refused(tmp_path, "12:30 — 3.14 😀")
    assert item.reason == "language not certain" and "no letter" in item.error
    empty = read(tmp_path, ["", " \n\t", "\x00", "\u200b\u00ad", "\u3164"], "detect")
    assert all(isinstance(one, Rejected) and (one.kind, one.reason) == ("dropped", "no text") for one in empty)


def test_a_stated_language_is_believed(tmp_path: Path) -> None:
    (found,) = read(tmp_path, [SENTENCES["deu_Latn"]], "eng_Latn")
    assert isinstance(found, Document) and found.lang == "eng_Latn" and found.lang_confidence is None


def settings_of(folder: Path, lang: Any) -> Any:
    return load_config(write_config(folder, input=[{"path": "in/*.jsonl", "lang": lang}])).input[0].lang


def test_both_forms_mean_the_same(tmp_path: Path) -> None:
    forms: tuple[Any, ...] = ("detect", {"detect": {}}, DETECT)
    for lang in forms:
        settings = settings_of(tmp_path, lang)
        assert isinstance(settings, LangDetect) and settings.model_dump() == DETECT
        assert settings_of(tmp_path, settings.model_dump(mode="json")) == settings


@pytest.mark.parametrize(
    ("lang", "message"),
    [
        ({"detect": {"threshold": 1.5}}, "input 1: lang.detect.threshold is 1.5; allowed: less than or equal to 1. "),
        (
            {"detect": {"treshold": 0.5}},
            "key input 1: lang.detect.treshold; did you mean threshold? allowed here: thre",
        ),
        ({"detect": 0.5}, "input 1: lang.detect is 0.5; allowed: keys and values: {key: value, …}, or {} for "),
        ({"detect": {}, "column": "lang"}, "unknown key input 1: lang.column; allowed here: detect"),
        ({"columns": "lang"}, "unknown key input 1: lang.columns; did you mean column? allowed here: column"),
        (5, "input 1: lang is 5; allowed: string. About lang: SONAR language code of all documents (eng_Latn), "),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, lang: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings_of(tmp_path, lang)
    assert message in str(refusal.value)
    assert "tuple" not in str(refusal.value)
    data = {"name": "a", "output": "b", "input": [{"path": "in", "lang": lang}]}
    assert list(jsonschema.Draft202012Validator(corpus_schema()).iter_errors(data))


@pytest.mark.parametrize(
    ("code", "nearest"),
    [("eng", "eng_Latn"), ("en", "eng_Latn"), ("English", "eng_Latn"), ("es", "spa_Latn"), ("ZH", "zho_Hans"),
     ("zho_hant", "zho_Hant"), ("deu-Latn", "deu_Latn"), ("sr", "srp_Cyrl")],
)  # fmt: skip
def test_codes_that_are_stated_wrongly(tmp_path: Path, code: str, nearest: str) -> None:
    card = load_card("sonar")
    write_jsonl(tmp_path / "in/a.jsonl", [{"text": "t", "lang": code}])
    path = write_config(tmp_path, input=[{"path": "in/*.jsonl", "lang": code}], encode={"model": "sonar"})
    told = f"(the code is|nearest of the model's 202 languages:) {nearest}"
    with pytest.raises(ConfigError, match=f"input.0.lang is '{code}', .*{told}.*; or .*detect"):
        make_plan(load_config(path))
    settings = entry(tmp_path / "in", lang={"column": "lang"})
    (item,) = read_documents(plan_chunks(settings)[0], settings, SplitSettings(), card.languages)
    assert isinstance(item, Rejected) and item.reason == "unknown language"
    assert re.match(f"lang is '{code}'; {told}", item.error)


def test_two_letters_of_a_language_that_another_model_knows() -> None:
    told = nearest_languages("es", load_card("sonar-tiny").languages)
    assert told.startswith("spa_Latn is known to sonar (encode: {model: sonar}); nearest of the model's 5 languages: ")


def detecting(folder: Path, **sections: Any) -> Path:
    """A corpus.yaml for documents in five languages, and some that cannot be used."""
    documents = [one for name in SAMPLES.values() for one in sample_documents(name, 2)]
    others = {"breton": BRETON, "dutch": "Alle mensen worden vrij en gelijk geboren.", "number": "12:30", "empty": " "}
    documents += [{"id": name, "text": text, "lang": "none"} for name, text in others.items()]
    write_jsonl(folder / "in/a.jsonl", documents)
    source = {"path": "in/*.jsonl", "id": "id", "lang": "detect"}
    encode = {"model": "sonar-tiny"}
    return write_config(folder, **{"input": [source], "encode": encode, "autobleu": None, **sections})


def run(path: Path) -> Corpus:
    plan = make_plan(load_config(path))
    store = Store(plan.config.output)
    events = list(launch(plan, RunRecord(store, plan.config, plan.view).folder))
    assert not [event for event in events if event.kind == "failed"], events
    return Corpus(plan.config.output)


def test_a_run_in_five_languages(tmp_path: Path) -> None:
    corpus = run(detecting(tmp_path))
    accounting = compute_accounting(corpus.store, corpus.chunks)
    assert not accounting.problems
    assert (accounting.documents_in, accounting.kept, accounting.dropped) == (14, 10, {"no text": 1})
    assert accounting.quarantined == {"unknown language": 2, "language not certain": 1}
    documents = [row for part in corpus.parts for row in corpus.documents(part).to_pylist()]
    stated = {one["id"]: one["lang"] for name in SAMPLES.values() for one in sample_documents(name, 2)}
    assert {row["doc_id"]: row["lang"] for row in documents} == stated and set(stated.values()) == set(SAMPLES)
    assert all(0.5 <= row["lang_confidence"] <= 1 for row in documents)
    of_sentences = corpus.table("lang", "lang_confidence")
    assert set(of_sentences["lang"].to_pylist()) == set(SAMPLES)
    assert of_sentences["lang_confidence"].null_count == 0
    assert corpus.condition("lang_confidence < 0.6").columns == ("lang_confidence",)


def test_a_stated_language_has_no_confidence(tmp_path: Path) -> None:
    source = {"path": "in/*.jsonl", "id": "id", "lang": {"column": "lang"}}
    corpus = run(detecting(tmp_path, input=[source], encode=None, segment={"model": "sonar-tiny"}))
    assert corpus.table("lang_confidence")["lang_confidence"].null_count == corpus.rows > 0


def test_what_makes_it_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = detecting(tmp_path, encode=None, segment={"model": "sonar-tiny"})
    run(path)
    assert make_plan(load_config(path)).nothing_to_do
    assert make_plan(load_config(path, ["input.0.lang={detect: {threshold: 0.5}}"])).nothing_to_do

    def reasons(*overrides: str) -> list[str]:
        return list(make_plan(load_config(path, overrides)).work["segment"].reasons)

    assert reasons("input.0.lang={detect: {threshold: 0.6}}") == ["input.lang.detect.threshold: 0.5 → 0.6"]
    assert any(reason.startswith("detector: ") for reason in reasons("input.0.lang=eng_Latn"))
    monkeypatch.setattr(language, "VERSION", language.VERSION + 1)
    assert reasons() == [f"detector.version: {language.VERSION - 1} → {language.VERSION}"]


def test_the_doctor_tries_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = detecting(tmp_path, encode=None, segment={"model": "sonar-tiny"})
    (found,) = (check for check in examine(path, None) if check.name == "input")
    assert found.level == "warn" and "10 documents in " in found.found and "zho_Hans" in found.found
    assert "unknown language (2), the text looks like 'br'" in found.found
    monkeypatch.setattr(language, "_model_path", lambda: tmp_path / "in/a.jsonl")
    language.identifier.cache_clear()
    (found,) = (check for check in examine(path, None) if check.name == "input")
    assert found.level == "bad" and "lang: detect cannot start: " in found.found
