"""The comparison of a corpus with another and with an earlier run: what differs, and nothing that does not; escaped."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.report import MEASURES
from pipeline.quality.report.compared import compare_corpora, run_of
from pipeline.quality.report.page import Note, Section, Table
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.pipeline.quality.test_explore import data_of
from tests.support.cli import pipeline

ODD = "<b>name</b>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of two runs, the second with shorter sentences; and another, of fewer documents, of another name."""
    folder = tmp_path_factory.mktemp("compared")
    english, german = (sample_documents(f"libreoffice-{lang}", 3) for lang in ("eng", "deu"))
    for name, documents in (("one", [*english, *german]), ("two", english)):
        write_jsonl(folder / name / "in/a.jsonl", documents)
    first = write_config(folder / "one", autobleu=None, encode=None)
    assert pipeline("run", first).returncode == 0
    assert pipeline("run", first, "--set", "segment.max_chars=60").returncode == 0
    other = write_config(folder / "two", autobleu=None, encode=None, name=ODD, noise={})
    assert pipeline("run", other, "--set", "segment.max_chars=60").returncode == 0
    return folder


def table(section: Section, title: str) -> dict[str, list[str]]:
    (found,) = [one for one in section.blocks if isinstance(one, Table) and one.title.startswith(title)]
    texts = [[one if isinstance(one, str) else one.text for one in row] for row in found.rows]
    return {row[0]: row[1:] for row in texts}


def test_an_earlier_run(folder: Path) -> None:
    corpus = Corpus(str(folder / "one/out"))
    first, newest = corpus.store.folders("runs")
    assert run_of(corpus, first[:-2]) == f"runs/{first}" and run_of(corpus, "two") is None
    section = compare_corpora(corpus, first, 10**9)
    assert table(section, "Settings that differ") == {"segment.max_chars": ["60", "80"]}
    measures = table(section, "Measures")
    sentences = measures["sentences"]
    here, there = (int(one.replace(" ", "")) for one in sentences[1:3])
    assert here == corpus.rows > there and sentences[3] == f"+{here - there}"
    assert measures["documents"][1:] == ["6", "6", "same"] and measures["chars_mean"][3].startswith("−")
    assert set(measures) <= set(MEASURES) and "autobleu_mean" not in measures
    languages = table(section, "By language")
    assert set(languages) == {"eng_Latn", "deu_Latn"}
    assert sum(int(one[0].replace("\u202f", "")) for one in languages.values()) == here
    same = compare_corpora(corpus, f"runs/{newest}", 10**9)
    assert any(isinstance(one, Note) and one.text == "All settings are the same." for one in same.blocks)
    assert {one[3] for one in table(same, "Measures").values()} == {"same"}


def test_another_corpus_by_the_command(folder: Path, tmp_path: Path) -> None:
    one, two = (str(folder / name / "out") for name in ("one", "two"))
    section = compare_corpora(Corpus(one), two, 10**9)
    settings = table(section, "Settings that differ")
    assert settings["name"] == ['"test"', f'"{ODD}"'] and settings["noise"] == ["–", "{}"]
    assert "output" not in settings and "segment.max_chars" not in settings
    assert table(section, "Measures")["documents"][1:] == ["6", "3", "+3"]
    assert table(section, "Measures")["digit_share_mean"][1:2] == ["–"]
    assert table(section, "By language")["deu_Latn"][1] == "0"
    done = pipeline("report", one, "--compare", two, "--to", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert done.returncode == 0 and 'id="compared"' in page and ODD not in page and "&lt;b&gt;name" in page
    done = pipeline("report", one, "--interactive", "--compare", two, "--to", tmp_path / "explore.html")
    page = (tmp_path / "explore.html").read_text("utf-8")
    assert done.returncode == 0 and ODD not in page and "\\u003cb>name" in page
    shown = {block["title"]: block for block in data_of(page)["compared"]["blocks"] if block["kind"] == "table"}
    assert list(shown) == ["Measures", "By language", "Settings that differ"]
    assert ["documents", "documents that were kept", "6", "3", "+3"] in shown["Measures"]["rows"]


def test_what_is_not_there(folder: Path) -> None:
    corpus = Corpus(str(folder / "one/out"))
    with pytest.raises(ConfigError, match="2 runs begin with that"):
        compare_corpora(corpus, "20", 10**9)
    with pytest.raises(CorpusError, match=r"nonsense is not a corpus .*; runs of .* are: "):
        compare_corpora(corpus, "nonsense", 10**9)
