"""The sample corpus that ships: every document is real running text with the keys that conf/sample.yaml reads."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

SAMPLE = Path(__file__).parents[2] / "conf" / "sample"
LANGUAGES = {"eng": "eng_Latn", "deu": "deu_Latn", "fra": "fra_Latn", "rus": "rus_Cyrl", "zho": "zho_Hans"}
FILES = sorted(SAMPLE.glob("*.jsonl.gz"))


def documents(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_documents_are_whole_and_clean(path: Path) -> None:
    lang = LANGUAGES[path.name.split("-")[1].split(".")[0]]
    for document in documents(path):
        assert list(document) == ["id", "lang", "title", "source", "text"]
        assert re.fullmatch(r"[A-Za-z0-9-]+-[0-9]{4}", document["id"])
        assert document["lang"] == lang
        assert document["title"] and path.name.startswith(document["source"])
        paragraphs = document["text"].split("\n\n")
        assert len(document["text"]) >= 300 and len(paragraphs) >= 3, document["id"]
        for paragraph in paragraphs:
            assert paragraph == " ".join(paragraph.split()) != "", document["id"]
            assert not re.search(
                r"<(/?(p|div|span|a|b|i|em)|![a-z-]+)\b|&[a-z]+;|[\x00-\x1f\x7f-\x9f\ufffd]", paragraph
            )


def test_enough_documents_languages_and_text() -> None:
    everything = [document for path in FILES for document in documents(path)]
    assert 300 <= len(everything) <= 500
    assert len({document["id"] for document in everything}) == len(everything)
    characters: Counter[str] = Counter()
    for document in everything:
        characters[document["lang"]] += len(document["text"])
    assert set(characters) == set(LANGUAGES.values())
    assert 2_000_000 <= characters.total() <= 3_000_000
    assert characters["eng_Latn"] > characters.total() / 2


def test_files_carry_no_time_stamp() -> None:
    assert 6 <= len(FILES) <= 8
    for path in FILES:
        assert path.read_bytes()[4:8] == bytes(4), path.name  # gzip's modification time


def test_sources_and_licences_are_stated() -> None:
    stated = (SAMPLE / "SOURCES.md").read_text(encoding="utf-8")
    for path in FILES:
        row = next(line for line in stated.splitlines() if line.startswith(f"| `{path.name}`"))
        texts = [document["text"] for document in documents(path)]
        assert [len(texts), sum(map(len, texts))] == [int(cell.replace(" ", "")) for cell in row.split("|")[2:4]]
