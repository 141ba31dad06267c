"""`generate`: texts and documents are continued; a model that was trained on answers is held against the real ones."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError
from pipeline.config.select import SelectSettings
from pipeline.config.train import TrainSettings
from pipeline.training.data.index import make_index
from pipeline.training.evaluation import held_out
from pipeline.training.evaluation.generate import GenerateOptions, _show, generate
from pipeline.training.record import PinnedIndex
from stages.lcm import coherence_judge
from stages.lcm.generate import Continuation
from stages.lcm.text_metrics import word_count
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.pipeline.training.evaluation.corpora import CARDS, write_model
from tests.stages.lcm.test_classifier import write_classifier
from tests.support.cli import pipeline, said
from tests.support.runs import run

ANSWER = 300  # code point


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Documents that are answers from a code point on, except the last, which has none."""
    folder = tmp_path_factory.mktemp("answers")
    documents = sample_documents("libreoffice-eng", 5)
    for number, one in enumerate(documents):
        one["answer"] = ANSWER if number < 4 else None
    write_jsonl(folder / "in.jsonl", documents)
    source = {"path": "in.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["answer"]}
    path = write_config(folder, input=[source], scaler={}, autobleu=None)
    run(path)
    corpus = Corpus(str(path.parent / "out"))
    write_model(corpus, "plain", CARDS["base"])
    write_model(corpus, "two-tower", CARDS["two-tower"])
    index = make_index(corpus, SelectSettings(), answers="answer")
    write_model(
        corpus, "answering", CARDS["base"], settings=TrainSettings(steps=7, answers="answer").pinned(),
        indexes=[PinnedIndex(url="", digest=index.digest, weight=1.0)],
    )  # fmt: skip
    return corpus


def test_a_text_is_continued_in_another_language(corpus: Corpus, tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Open the file [bold]now[/]. Then save it under another name. It is not hard.", "utf-8")
    to = tmp_path / "said.txt"
    arguments = ["generate", corpus.url, "--model", "plain", "--sentences", "3"]
    done = pipeline(*arguments, "--prompt", str(prompt), "--lang", "fra_Latn", "--to", str(to))
    assert done.returncode == 0, done.stderr
    assert "Open the file [bold]now[/]." in done.stdout and "stopped:" in done.stdout
    assert "how the documents that the model learned from were cut is no longer known" in done.stdout
    other = pipeline("generate", corpus.url, "--model", "answering", "--sentences", "1", "--prompt", str(prompt))
    assert other.returncode == 0 and "no longer known" not in other.stdout
    assert len(to.read_text("utf-8").splitlines()) == 1
    prompt.write_text(" \n", "utf-8")
    refused = pipeline(*arguments, "--prompt", str(prompt))
    assert refused.returncode == 2 and "the prompt is empty" in refused.stderr
    prompt.write_text("One sentence.", "utf-8")
    refused = pipeline(*arguments, "--prompt", str(prompt), "--lang", "fra_Latin")
    assert refused.returncode == 2 and "--lang fra_Latin" in refused.stderr and "fra_Latn" in refused.stderr


def test_documents_are_continued_and_held_against_the_truth(corpus: Corpus) -> None:
    options = GenerateOptions(model="two-tower", split="train", documents=3, prompt_sentences=4, sentences=3)
    shown = io.StringIO()
    texts = generate(Console(file=shown, width=200), corpus.url, corpus, options, lambda: "cpu")
    told = shown.getvalue()
    again = generate(Console(file=io.StringIO()), corpus.url, corpus, options, lambda: "cpu")
    assert len(texts) == 3 and texts == again
    figures = next(line for line in told.splitlines() if line.startswith("ROUGE-L")).split()
    assert figures[-3:] == ["100.000", "±", "0"]
    assert "REP-4" in told and "seq-rep-4" in told and told.count("stopped:") == 3


def test_embeddings_that_were_changed_are_neither_judged_nor_continued(corpus: Corpus, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(corpus.url, changed, ignore=shutil.ignore_patterns("evaluation"))
    path = max((changed / "embeddings").rglob("*.parquet"))
    table = pq.read_table(path)
    backwards = table.column(0).take(pa.array(range(len(table))[::-1]))
    pq.write_table(table.set_column(0, table.schema[0], backwards), path)
    for command in (("evaluate", changed), ("generate", changed, "--model", "plain")):
        done = pipeline(*command, "--split", "train")
        assert done.returncode == 1 and f"embeddings/{path.name[:2]}/{path.name}" in done.stderr, said(done)
    assert not list(changed.glob("train/*/evaluation/*"))


def test_a_judge_learns_from_the_split_train(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["generate", corpus.url, "--model", "plain", "--judge"]
    refused = pipeline(*arguments, "--split", "train")
    assert refused.returncode == 2 and "--judge: the split train has" in refused.stderr
    (tmp_path / "prompt.txt").write_text("One sentence.", "utf-8")
    refused = pipeline(*arguments, "--prompt", str(tmp_path / "prompt.txt"))
    assert refused.returncode == 2 and "--judge is for --split" in refused.stderr
    monkeypatch.setattr(coherence_judge, "LEAST_PAIRS", 20)
    monkeypatch.setattr(coherence_judge, "HELD_OUT", 4)
    monkeypatch.setattr(coherence_judge, "STEPS", 100)
    monkeypatch.setattr(coherence_judge, "PASSES", 10_000)  # it learns its pairs by heart
    place, shown = tmp_path / "scores.csv", io.StringIO()
    options = GenerateOptions(
        model="plain", split="train", documents=3, prompt_sentences=4, sentences=5, scores=str(place), judge=True
    )
    generate(Console(file=shown, width=200), corpus.url, corpus, options, lambda: "cpu")
    assert "judge: learned from" in shown.getvalue() and "judged coherence" in shown.getvalue()
    rows = list(csv.DictReader(place.read_text("utf-8").splitlines()))
    ours, real = ([float(row["judged coherence"]) for row in rows[first::2]] for first in (0, 1))
    assert len(ours) == len(real) == 3 and all(0 <= one <= 1 for one in ours + real)
    assert sum(real) > sum(ours)  # a model with fresh weights, against documents that the judge knows


def test_a_classifier_judges_what_was_written(corpus: Corpus, tmp_path: Path) -> None:
    card, place = write_classifier(tmp_path), tmp_path / "scores.csv"
    arguments = ["generate", corpus.url, "--model", "plain", "--split", "train", "--documents", "2", "--sentences", "2"]
    done = pipeline(*arguments, "--classifier", str(card), "--scores", str(place))
    assert done.returncode == 0 and "fluent" in done.stdout, done
    rows = list(csv.DictReader(place.read_text("utf-8").splitlines()))
    assert len(rows) == 4 and all(0 < float(row["fluent"]) < 1 for row in rows)
    for given, told in (
        (["--classifier", "kola"], "--classifier: no classifier is called 'kola'; use one of cola"),
        (["--classifier", str(card)] * 2, "--classifier: fluent, fluent: name each once"),
    ):
        refused = pipeline(*arguments, *given)
        assert refused.returncode == 2 and told in " ".join(refused.stderr.split()), refused


def test_thresholds_of_generation_are_options(corpus: Corpus) -> None:
    some = ["generate", corpus.url, "--model", "plain", "--split", "train", "--documents", "2", "--sentences", "4"]
    stopped = {}
    for name, options in (
        ("end", ["--end-cosine", "-1"]),
        ("repeats", ["--previous-cosine", "-1", "--end-cosine", "1"]),
        ("neither", ["--previous-cosine", "1", "--end-cosine", "1"]),
    ):
        done = pipeline(*some, *options)
        assert done.returncode == 0, done.stderr
        stopped[name] = {
            line.split("stopped: ")[1].rstrip("]") for line in done.stdout.splitlines() if "stopped: " in line
        }
    assert stopped == {"end": {"end of text"}, "repeats": {"repeats the previous sentence"}, "neither": {"limit"}}


def generated(corpus: Corpus, **options: Any) -> tuple[list[str], str]:
    shown = io.StringIO()
    chosen = GenerateOptions(model="answering", split="train", **options)
    found = generate(Console(file=shown, width=250), corpus.url, corpus, chosen, lambda: "cpu")
    return found, shown.getvalue()


def test_prompts_are_what_precedes_the_answers(corpus: Corpus, tmp_path: Path) -> None:
    place = tmp_path / "scores.csv"
    texts, shown = generated(corpus, sentences=2, scores=str(place))
    rows = list(csv.DictReader(place.read_text("utf-8").splitlines()))
    assert len(texts) == 4 and len(rows) == 8 and "WR" in shown and "±" in shown
    sentences: dict[str, list[tuple[str, int]]] = {}
    for row in corpus.to_arrow("doc_id", "text", "end").to_pylist():
        sentences.setdefault(row["doc_id"], []).append((row["text"], row["end"]))
    assert {row["doc_id"] for row in rows} < set(sentences) and len(sentences) == 5
    for model, real in zip(rows[::2], rows[1::2], strict=True):
        given = sentences[model["doc_id"]]
        prompt = [text for text, end in given if end <= ANSWER]
        answer = [text for text, end in given if end > ANSWER]
        assert prompt and answer and (model["continuation"], real["continuation"]) == ("model", "real")
        expected = word_count(" ".join(answer)) / word_count(" ".join(prompt))
        assert float(real["WR"]) == pytest.approx(expected, rel=1e-5)
        assert (float(real["ROUGE-L"]), float(real["sentences"])) == (100.0, len(answer))
        assert float(model["sentences"]) <= 2


def test_a_ratio_limits_each_answer_by_its_prompt(corpus: Corpus, tmp_path: Path) -> None:
    free = {"sampling": {"end_cosine": 1.0, "previous_cosine": 1.0}, "scores": str(tmp_path / "scores.csv")}
    _, shown = generated(corpus, ratio=0.5, **free)
    rows = list(csv.DictReader((tmp_path / "scores.csv").read_text("utf-8").splitlines()))
    prompts = {row["doc_id"]: 0 for row in rows}
    for row in corpus.to_arrow("doc_id", "end").to_pylist():
        if row["doc_id"] in prompts:
            prompts[row["doc_id"]] += row["end"] <= ANSWER
    expected = {name: max(1, size // 2) for name, size in prompts.items()}
    assert {row["doc_id"]: float(row["sentences"]) for row in rows[::2]} == expected
    assert len(set(expected.values())) > 1, "the prompts are alike"
    assert {row["stopped"] for row in rows[::2]} == {"limit"} and "left the model's window" not in shown


def test_a_number_of_sentences_is_given_if_asked_for(corpus: Corpus) -> None:
    _, shown = generated(corpus, prompt_sentences=2, sentences=1)
    assert shown.count("[it goes on]") == 5  # the document without an answer, too
    chosen = GenerateOptions(model="plain", split="train", sentences=1)
    assert len(generate(Console(file=io.StringIO()), corpus.url, corpus, chosen, lambda: "cpu")) == 5


def test_options_of_documents_need_a_split(corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Open the file.")
    done = pipeline(
        "generate", corpus.url, "--model", "plain", "--prompt", tmp_path / "prompt.txt", "--scores", tmp_path / "x.csv"
    )
    assert done.returncode == 2 and "--scores is for --split" in said(done)


def test_documents_without_answers_are_counted_or_told(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    _, shown = generated(corpus, documents=5, sentences=1)
    assert "passed over: 1 document without a prompt and an answer" in shown
    monkeypatch.setattr(held_out, "LONGEST", 2)  # no sentence is left for an answer
    with pytest.raises(ConfigError, match="no document of the split train has a prompt and an answer, by its column"):
        generated(corpus, sentences=1)


def test_plans_of_paragraphs_without_a_sentence_are_shown() -> None:
    shown = io.StringIO()
    how = Continuation(torch.zeros(1, 2), "limit of paragraphs", 0, (0, 1, 1), torch.zeros(3, 2))
    _show(Console(file=shown, width=80), ["Given."], ["Said."], how, ["one", "two", "three"])
    lines = [line for line in shown.getvalue().splitlines() if line]
    assert lines[2:6] == ["[plan: one]", "Said.", "[plan: two]", "[plan: three]"]
    assert lines[6] == "[1 sentence; stopped: limit of paragraphs]"
