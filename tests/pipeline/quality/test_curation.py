"""Languages by source, noise, published rules and duplicates: as loops over the rows count them, in words, escaped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pipeline import Corpus
from pipeline.quality.curation import ALL, LEVELS, REPEATS, Curation, language_differences, measure_curation
from pipeline.quality.report import curated
from stages.duplicates.hashing import hash_texts
from stages.language.settings import LanguageSettings
from stages.noise.settings import PRESETS
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline

LETTERS = LanguageSettings().min_letters
EVIL = "<script>alert(1)</script> <b>Bold</b> & http://example.org/a?b=c and some further words of English text."


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 5 sources, one has German documents that are stated to be English; one document is there twice, in another
    spelling.
    """
    folder = tmp_path_factory.mktemp("curation")
    english, german = (sample_documents(f"libreoffice-{lang}", 8) for lang in ("eng", "deu"))
    write_jsonl(folder / "in/english.jsonl", english)
    write_jsonl(folder / "in/german.jsonl", german)
    write_jsonl(folder / "in/wrong.jsonl", [one | {"id": f"w{one['id']}", "lang": "eng_Latn"} for one in german])
    write_jsonl(folder / "in/x<i>.jsonl", [{"id": "evil", "lang": "eng_Latn", "title": "x", "text": EVIL}])
    again = str(english[0]["text"]).replace("the ", "THE ")
    write_jsonl(folder / "in/again.jsonl", [english[0] | {"id": "again", "text": again}])
    path = write_config(folder, autobleu=None, language={}, noise={}, duplicates={})
    done = pipeline("run", path)
    assert done.returncode == 0, done
    return path


@pytest.fixture(scope="module")
def corpus(path: Path) -> Corpus:
    return Corpus(str(path.parent / "out"))


@pytest.fixture(scope="module")
def rows(corpus: Corpus) -> list[dict[str, Any]]:
    return corpus.table(*corpus.catalogue.keys() - {"embedding"}).to_pylist()


@pytest.fixture(scope="module")
def found(corpus: Corpus) -> Curation:
    return measure_curation(corpus, 10**9)


def test_languages_of_sources(corpus: Corpus, rows: list[dict[str, Any]], found: Curation) -> None:
    judged = [row for row in rows if row["lang_detected"] and sum(one.isalpha() for one in row["text"]) >= LETTERS]
    expected = Counter((row["source"], row["lang"]) for row in judged)
    assert len(judged) < sum(row["lang_detected"] is not None for row in rows)
    differ = Counter((row["source"], row["lang"]) for row in rows if row["lang_differs"])
    assert {(one.source, one.stated): one.judged for one in found.languages} == expected
    assert {(one.source, one.stated): one.differ for one in found.languages if one.differ} == differ
    (wrong,) = found.suspicious
    assert wrong.source.endswith(":wrong.jsonl") and wrong.share > 0.5 and wrong.detected[0][0] == "deu_Latn"
    assert found.languages[0] == wrong and language_differences(corpus, 10**9) == found.languages
    assert wrong.said().endswith(f"sentences stated as eng_Latn are in another language, mostly {wrong.detected[0][0]}")
    assert 0 < len(found.differing) <= 15 and {stated for stated, _, _ in found.differing} == {"eng_Latn"}


def test_noise_and_rules(rows: list[dict[str, Any]], found: Curation, corpus: Corpus) -> None:
    assert (found.rows, found.documents) == (len(rows), 26)
    for name, counts in found.noisy.items():
        assert counts == [sum(row[name] > np.float32(level) for row in rows) for level in LEVELS]
    assert found.noisy["url_share"][0] == found.noisy["markup_share"][0] == 1
    whole = {one.preset: one for one in found.rules if one.rule == ALL}
    assert whole.keys() == PRESETS.keys()
    for name, text in PRESETS.items():
        batches = corpus.batches("doc_id", "position", where=corpus.condition(text))
        kept = [row for batch in batches for row in batch.table.to_pylist()]
        assert whole[name].sentences == len(rows) - len(kept)
        documents = 26 - sum(row["position"] == 0 for row in kept)
        assert whole[name].documents == (None if name == "c4-lines" else documents)
    short = next(one for one in found.rules if one.rule == "doc_words >= 50")
    assert short.sentences == sum(row["doc_words"] < 50 for row in rows)
    assert short.documents == sum(row["doc_words"] < 50 for row in rows if row["position"] == 0) >= 1


def test_repeated_sentences(rows: list[dict[str, Any]], found: Curation) -> None:
    counts = [row["duplicate_count"] for row in rows]
    assert found.repeats == [sum(low <= one <= (high or one) for one in counts) for low, high in REPEATS]
    most = max(counts)
    shown = list(found.repeated.values())
    assert most > 1 and shown[0][0] == most
    of = {row["text"]: row["duplicate_count"] for row in rows}
    assert all(of[text] == count for count, text in shown)
    assert [count for count, _ in shown] == sorted((count for count, _ in shown), reverse=True)
    spellings = [hash_texts(pa.chunked_array([[text]]), "light")[0] for _, text in shown]
    assert len(set(spellings)) == len(shown)


def test_the_report_and_inspect_tell(path: Path) -> None:
    assert pipeline("report", path).returncode == 0
    page = (path.parent / "out/report/index.html").read_text()
    for anchor in ("languages", "noise", "duplicates"):
        assert f'id="{anchor}"' in page
    assert page.count(":wrong.jsonl: ") == 2  # at the top, and in the section
    assert "<script" not in page and "x<i>" not in page and "x&lt;i&gt;.jsonl" in page
    shown = " ".join(pipeline("inspect", path).stdout.split())
    assert ":wrong.jsonl: " in shown and "mostly deu_Latn: see lang_differs" in shown
    assert "mostly deu_Latn" not in pipeline("inspect", path, "--where", "chars > 5").stdout


def test_a_corpus_without_these_sections_has_nothing_to_show(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 1))
    assert pipeline("run", write_config(tmp_path, autobleu=None)).returncode == 0
    corpus = Corpus(str(tmp_path / "out"))
    empty = measure_curation(corpus, 100)
    assert empty == Curation() and language_differences(corpus, 100) == []
    assert curated.languages(empty) is curated.noise(empty) is curated.duplicates(empty) is None
