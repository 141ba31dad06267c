"""What `report.expect` says: refused before work where it cannot be meant, measured as pandas does, shown, strict."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from rich.console import Console

from launchers.launch import launch
from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.conditions.expression import parse
from pipeline.config.load import load_config
from pipeline.config.report import MEASURES, Limit, ReportSettings, limit_of
from pipeline.quality.drift import FitSummary
from pipeline.quality.expectations import FEW, Expectation, as_summary, check_expectations, measure_rows, of_summary
from pipeline.quality.measures import StartsOfDocuments
from pipeline.run.options import RunOptions
from pipeline.run.run import Backend, run
from stages.language.settings import LanguageSettings
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.cli import pipeline

HOLDS = {
    "documents": "== 13",
    "sentences": ">= 100",
    "dropped": "== 0",
    "autobleu_mean": ">= 1",
    "autobleu_mean_by_language": "> 0",
    "not_finite": "< 1 %",
    "duplicate_documents": "<= 0.1",
    "url_share_mean": "< 0.5",
    "selected": "> 0.5",
}
FAILS = {"language_mismatch_by_source": "< 0.02", "duplicate_documents": "== 0"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six English documents, six German ones that are stated to be English, and one copy."""
    folder = tmp_path_factory.mktemp("expected")
    english, german = (sample_documents(f"libreoffice-{lang}", 6) for lang in ("eng", "deu"))
    write_jsonl(folder / "in/english.jsonl", [*english, english[0] | {"id": "again"}])
    write_jsonl(folder / "in/wrong.jsonl", [one | {"id": f"w{one['id']}", "lang": "eng_Latn"} for one in german])
    sections = {"language": {}, "noise": {}, "duplicates": {}, "select": "chars >= 3"}
    path = write_config(folder, **sections, autobleu={"sample": 0.5}, report={"expect": HOLDS})
    done = pipeline("run", path, "--strict")
    assert done.returncode == 0, done
    assert done.stdout.count("✓ ") == len(HOLDS) and "✗" not in done.stdout
    return path


@pytest.fixture(scope="module")
def corpus(path: Path) -> Corpus:
    return Corpus(str(path.parent / "out"))


@pytest.fixture(scope="module")
def frame(corpus: Corpus) -> Any:
    return corpus.to_pandas(*(corpus.catalogue.keys() - {"embedding"}))


def check(corpus: Corpus, **expected: str) -> dict[str, Expectation]:
    return {one.measure: one for one in check_expectations(corpus, ReportSettings(expect=expected))}


def test_values_are_those_that_pandas_finds(corpus: Corpus, frame: Any) -> None:
    first = frame[(frame["position"] == 0) & (frame["subdocument"] == 0)]
    letters = frame["text"].map(lambda text: sum(one.isalpha() for one in text))
    judged = frame[frame["lang_detected"].notna() & (letters >= LanguageSettings().min_letters)]
    assert 0 < len(judged) < frame["lang_detected"].notna().sum()
    scored = frame[frame["autobleu"].notna()]
    expected = {
        "autobleu_mean": scored["autobleu"].astype(float).mean(),
        "autobleu_below_20": (scored["autobleu"] < 20).mean(),
        "language_mismatch": judged["lang_differs"].astype(bool).mean(),
        "duplicate_sentences": frame["duplicate_of"].notna().mean(),
        "duplicate_documents": first["doc_duplicate_of"].notna().mean(),
        "digit_share_mean": frame["digit_share"].astype(float).mean(),
        "tokens_mean": frame["tokens"].mean(),
        "truncated": 0.0,
        "documents": 13.0,
        "sentences": float(len(frame)),
        "selected": (frame["chars"] >= 3).mean(),
    }
    found = check(corpus, **dict.fromkeys(expected, ">= 0"))
    assert {name: one.value for name, one in found.items()} == pytest.approx(expected)
    assert all(one.holds for one in found.values())
    assert 0 < expected["duplicate_sentences"] < 1 and expected["duplicate_documents"] == pytest.approx(1 / 13)
    removed = measure_rows(corpus, [("removed_by_fineweb", "all")], 10**9)["removed_by_fineweb", "all"]
    kept = corpus.to_pandas("doc_id", where=MEASURES["removed_by_fineweb"].fails)
    assert not isinstance(removed, str)
    assert removed["all"] == pytest.approx((1 - len(kept) / len(frame), len(frame)))


def test_of_a_document_that_was_cut_each_sub_document_counts(tmp_path: Path) -> None:
    """Five documents begin differently and end alike; what a first sentence is does not depend on row groups."""
    same = "".join(f"This is sentence {number} of all of them. " for number in range(10))
    own = ["".join(f"Number {one} begins with sentence {number}. " for number in range(10)) for one in range(5)]
    documents = [{"id": str(one), "lang": "eng_Latn", "title": "", "text": text + same} for one, text in enumerate(own)]
    write_jsonl(tmp_path / "in/a.jsonl", documents)
    segment = {"method": "spacy-capped", "max_chars": 80, "max_document_sentences": 10}
    path = write_config(tmp_path, segment=segment, encode=None, autobleu=None, duplicates={})
    done = pipeline("run", path)
    assert done.returncode == 0 and "4 of 10 documents (40.0%) repeat earlier ones" in done.stdout, done
    corpus = Corpus(str(tmp_path / "out"))
    assert check(corpus, duplicate_documents="< 1 %")["duplicate_documents"].value == pytest.approx(0.4)
    (batch,) = corpus.batches(*StartsOfDocuments.columns)
    whole, begins = StartsOfDocuments(), StartsOfDocuments()
    at_once = whole(batch.table)
    in_pieces = [begins(batch.table.slice(row, 7)) for row in range(0, batch.rows, 7)]
    assert at_once.sum() == 10 and (np.concatenate(in_pieces) == at_once).all()


def test_the_correlation_is_of_the_score_that_weights_follow() -> None:
    numbers = {"pearson_cosine": 0.9, "pearson_bleu": 0.7, "held_out_rows": 40.0}
    assert FitSummary("predictor", 90, 2, numbers, "cccc", "bleu").held_out() == (0.7, 40)
    assert FitSummary("predictor", 90, 2, numbers, "cccc").held_out() == (0.9, 40)


def test_what_is_asked_of_a_report_is_done_though_the_corpus_is_there(tmp_path: Path) -> None:
    """Strictness, the report and its interactive page are those of the file, and not of the run before."""
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 3))
    base = yaml.safe_load(write_config(tmp_path, autobleu=None).read_text("utf-8"))
    path, page = tmp_path / "corpus.yaml", tmp_path / "out/report/index.html"

    def run_with(report: dict[str, Any] | None, *options: str) -> Any:
        path.write_text(yaml.safe_dump(base | ({} if report is None else {"report": report})), "utf-8")
        return pipeline("run", path, *options)

    fails = {"expect": {"chars_mean": ">= 1000"}}
    assert run_with({**fails, "interactive": True}).returncode == 0
    explore = page.with_name("interactive.html")
    assert explore.exists()
    assert run_with({**fails, "max_rows": 10}, "--strict").returncode == 1
    assert not explore.exists()
    old = page.read_text("utf-8")
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-deu", 2))
    assert run_with(None, "--accept-removal").returncode == 0
    assert run_with({}).returncode == 0
    assert page.read_text("utf-8") != old and "deu_Latn" in page.read_text("utf-8")
    assert run_with({"interactive": True}).returncode == 0 and explore.exists()
    before = sorted((tmp_path / "out/runs").iterdir())
    assert "Nothing to do." in run_with({"interactive": True}).stdout
    assert sorted((tmp_path / "out/runs").iterdir()) == before


def test_the_worst_group_of_enough_rows(corpus: Corpus, frame: Any) -> None:
    scored = frame[frame["autobleu"].notna()].astype({"autobleu": float})
    by_source = scored.groupby("source")["autobleu"].agg(["mean", "count"])
    assert (by_source["count"] >= FEW).all() and len(by_source) == 2
    found = check(corpus, autobleu_mean_by_source=f"> {by_source['mean'].max() + 1:.3f}")["autobleu_mean_by_source"]
    assert (found.group, found.failing, found.groups, found.holds) == (by_source["mean"].idxmin(), 2, 2, False)
    assert found.value == pytest.approx(by_source["mean"].min())
    found = check(corpus, language_mismatch_by_source="< 0.02")["language_mismatch_by_source"]
    assert found.group.endswith(":wrong.jsonl") and (found.failing, found.holds) == (1, False)
    assert "wrong.jsonl (expected: < 0.02)" in found.said()
    few = measure_rows(corpus, [("duplicate_documents", "source")], 10**9)["duplicate_documents", "source"]
    assert not isinstance(few, str) and sorted(rows for _, rows in few.values()) == [6, 7]
    said = check(corpus, duplicate_documents_by_source="== 0")["duplicate_documents_by_source"]
    assert not said.holds and said.value is None and str(FEW) in said.why  # too few documents to judge


def test_what_is_not_there_does_not_hold(corpus: Corpus) -> None:
    found = check(corpus, fragility_cosine_mean=">= -1", rvq_relative_error="< 1", drifted="== 0")
    assert [one.value for one in found.values()] == [None, None, 0]
    assert [one.holds for one in found.values()] == [False, False, True]
    assert "no column of fragility" in found["fragility_cosine_mean"].said()


@pytest.mark.parametrize("name", [name for name, one in MEASURES.items() if one.of_rows])
def test_definitions_are_conditions(name: str) -> None:
    """On columns of those names; `parse` refuses a word that is none."""
    one = MEASURES[name]
    words = set(re.findall(r"[a-z_0-9]+", f"{one.share} {one.fails} {one.of} {one.mean}"))
    texts = {"lang", "duplicate_of", "doc_duplicate_of", "near_duplicate_of", "semantic_duplicate_of", "lang_detected"}
    types = {word: pa.string() if word in texts | {"text"} else pa.float32() for word in words}
    types |= {"lang_differs": pa.bool_()}
    for text in filter(None, (one.share, one.fails, one.of)):
        assert parse(text, types).columns


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [
        ("autobleu_maen", ">= 40", "autobleu_maen is not a measure; did you mean autobleu_mean"),
        ("documents_by_language", ">= 40", "documents is one number of the whole corpus; write documents"),
        ("autobleu_mean", 40, "autobleu_mean is 40; allowed: one of <= >= == < > and a number, in quotes"),
        ("autobleu_mean", "=> 40", "autobleu_mean is '=> 40'; allowed"),
        ("autobleu_mean", ">= forty", "allowed"),
        ("autobleu_mean", ">= 40 %", "it is not a share, so leave out the %"),
        ("language_mismatch", "< 2", 'it is a share between 0 and 1: for instance "< 0.02"'),
        ("documents", ">= -1", "never negative"),
        ("autobleu_mean", ">= 1e999", "autobleu_mean is '>= 1e999'; give a finite number"),
    ],
)
def test_mistakes_are_told_before_any_work(tmp_path: Path, name: str, limit: object, expected: str) -> None:
    path = write_config(tmp_path, language={}, report={"expect": {name: limit}})
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert expected in str(error.value) and "corpus.yaml:" in str(error.value)


def test_columns_that_nothing_makes_are_told(tmp_path: Path) -> None:
    expected = {
        "near_duplicate_documents": "== 0",
        "selected": "> 0.5",
        "drifted": "== 0",
        "language_mismatch": "< 1 %",
    }
    path = write_config(tmp_path, duplicates={}, report={"expect": expected})
    with pytest.raises(ConfigError) as error:
        load_config(path)
    near = "needs what duplicates.near makes: add `duplicates: {near: {}}`, or leave the measure out"
    for said in (near, "needs what select makes: add a section `select`, or", "is about fits", "what language makes"):
        assert said in str(error.value)
    assert load_config(write_config(tmp_path, report={"expect": {"documents": "> 0"}})).report


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("< 2 %", Limit("<", 0.02, "< 2 %")),
        ("<2%", Limit("<", 0.02, "< 2 %")),
        (">= 0.5", Limit(">=", 0.5, ">= 0.5")),
        ("== 1", Limit("==", 1.0, "== 1")),
    ],
)
def test_limits(text: str, expected: Limit) -> None:
    found = limit_of("language_mismatch", text)
    assert found == expected and not found.holds(np.nan)
    assert limit_of("documents", ">= 1_000 000").value == 1_000_000


def test_the_report_and_status_show_them_and_strict_fails(path: Path, corpus: Corpus) -> None:
    page = Path(corpus.url, "report/index.html").read_text("utf-8")
    assert f"All {len(HOLDS)} expectations hold." in page and 'id="expectations"' in page
    shown = pipeline("status", corpus.url)
    assert shown.returncode == 0 and shown.stdout.count("✓ ") == len(HOLDS)
    other = path.with_name("other.yaml")
    other.write_text(yaml.safe_dump(yaml.safe_load(path.read_text("utf-8")) | {"report": {"expect": FAILS}}), "utf-8")
    done = pipeline("report", other, "--strict", "--to", path.parent / "strict.html")
    assert done.returncode == 1 and "2 of 2 expectations (report.expect) do not hold" in done.stderr
    assert "✗ duplicate_documents is 7.69 % (expected: == 0)" in done.stdout
    page = (path.parent / "strict.html").read_text("utf-8")
    assert "duplicate_documents is 7.69 % (expected: == 0)" in page and "expectations hold" not in page
    # a run that has nothing else to do checks what is new, keeps it for status, and --strict fails
    done = pipeline("run", other, "--strict")
    assert done.returncode == 1 and "Nothing to do." in done.stdout and "do not hold" in done.stderr, done
    kept = json.loads(pipeline("status", corpus.url, "--json").stdout)["run"]["expectations"]
    assert [(one["measure"], one["holds"]) for one in kept] == [(name, False) for name in sorted(FAILS)]


def test_a_training_does_not_begin(path: Path, corpus: Corpus, tmp_path: Path) -> None:
    copied = shutil.copytree(path.parent, tmp_path / "copied") / path.name  # other tests look at the last run
    settings = ["report={expect: {documents: '> 1000'}}", "scaler={}", "train={model: lcm-base-tiny}"]
    config = load_config(copied, settings)
    began: list[object] = []
    backend = Backend(launch, lambda: "cpu", lambda console, config: began.append(config))
    out = Console(file=io.StringIO())
    with pytest.raises(CorpusError, match=r"1 of 1 expectation \(report.expect\) does not hold"):
        run(out, config, RunOptions(strict=True), backend)
    assert not began and "✗ documents is 13 (expected: > 1000)" in out.file.getvalue()  # type: ignore[attr-defined]
    run(out, config, RunOptions(), backend)
    assert began == [config]


def test_summaries_of_others_are_not_trusted() -> None:
    one = Expectation("documents", "> 1", 3.0, True)
    assert of_summary(as_summary([one])) == [one]
    kept = as_summary([one])[0]
    unusable: list[object] = [None, "x", [1], [kept | {"measure": "unheard_of"}], [kept | {"value": "much"}], [{}]]
    for wrong in unusable:
        assert of_summary(wrong) == []


def test_strict_needs_something_to_check(tmp_path: Path, path: Path) -> None:
    write_jsonl(tmp_path / "in/a.jsonl", sample_documents("libreoffice-eng", 1))
    done = pipeline("run", write_config(tmp_path, report={}), "--strict")
    assert done.returncode == 2 and "expects nothing" in done.stderr
    done = pipeline("run", path, "--strict", "--until", "encode")
    assert done.returncode == 2 and "leave out --only and --until" in done.stderr
