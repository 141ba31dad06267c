"""Scores by kind of text, on what is held out."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from recipes.sonar.data import CorpusSource, is_held_out
from recipes.sonar.scores import held_out_text, main
from stages.sonar.card import load_card
from stages.sonar.tokenizer import SonarTokenizer

SHORT = "The file was not found."
LONG = "The server writes every change to the log before it writes the pages, so that nothing is lost when it stops."


def held_out_id(word: str) -> str:
    return next(name for i in itertools.count() if is_held_out({"id": (name := f"{word}-{i}-x")}))


@pytest.fixture
def corpora(tmp_path: Path) -> list[str]:
    """A file of two kinds, of which one document is in training, and a file of aligned records."""
    documents = [
        {"id": held_out_id("kernel"), "lang": "eng_Latn", "text": f"{SHORT} {LONG}"},
        {"id": held_out_id("pg"), "lang": "eng_Latn", "text": SHORT},
        {"id": "kernel-0-y", "lang": "eng_Latn", "text": "This one was learned."},
    ]
    pair = {"id": held_out_id("help"), "eng_Latn": "Open the menu.", "deu_Latn": "Öffnen Sie das Menü."}
    paths = [tmp_path / "technical.jsonl", tmp_path / "parallel.jsonl"]
    for path, records in zip(paths, (documents, [pair]), strict=True):
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    assert not is_held_out(documents[2])
    return [str(path) for path in paths]


def test_kinds_are_files_and_the_first_words_of_ids(corpora: list[str]) -> None:
    sources = [CorpusSource.parse(text) for text in corpora]
    text = held_out_text(sources, SonarTokenizer(load_card("sonar-tiny")), most=10)
    assert {kind: set(sentences) for kind, sentences in text.sentences.items()} == {
        ("technical kernel", "eng_Latn"): {SHORT, LONG},
        ("technical pg", "eng_Latn"): {SHORT},
        ("parallel", "eng_Latn"): {"Open the menu."},
        ("parallel", "deu_Latn"): {"Öffnen Sie das Menü."},
    }
    assert len(text.aligned) == 1


def test_scores_name_the_number_of_sentences(corpora: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["sonar-tiny"], corpora, sentences=10, as_json=True)
    scores = json.loads(capsys.readouterr().out)["sonar-tiny"]
    kernel = scores["technical kernel, eng_Latn"]
    assert kernel["sentences"] == 2
    assert 0 < kernel["bleu_long"] <= 100
    assert scores["technical pg, eng_Latn"]["bleu_long"] is None
    assert set(scores["translation into eng_Latn"]) == {"deu_Latn"}
    main(["sonar-tiny"], corpora[1:], sentences=10, as_json=False)
    assert "AutoBLEU" in capsys.readouterr().out
