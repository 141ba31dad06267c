"""`evaluate`, and what `generate` reads too, over a real corpus: figures against plain loops, files, errors."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from rich.console import Console

from pipeline import Corpus
from pipeline.base.errors import ConfigError, CorpusError
from pipeline.config.select import SelectSettings
from pipeline.corpus.fingerprint import content_digest
from pipeline.corpus.fits import fitted_scaler
from pipeline.training.data.index import Index, make_index
from pipeline.training.evaluation import evaluate as evaluation
from pipeline.training.evaluation.evaluate import EvaluateOptions, evaluate, pool_of
from pipeline.training.evaluation.held_out import HeldOut, held_out
from pipeline.training.evaluation.measure import MetricValue
from pipeline.training.evaluation.sweep import sweeps_of
from pipeline.training.evaluation.table import ResultRow, show
from pipeline.training.evaluation.text_codec import TextCodec
from pipeline.training.model_file import load_model, save_model
from pipeline.training.record import RECORD
from pipeline.training.status import SCALER
from stages.lcm.model import Sampling
from stages.lcm.text_metrics import rouge_l
from stages.sonar.card import load_card
from stages.sonar.checkpoint import load_decoder
from stages.sonar.ids import END
from stages.sonar.networks import SonarTextDecoder
from stages.sonar.tokenizer import SonarTokenizer
from tests.pipeline.training.evaluation.corpora import CARDS, CONTEXT, make_corpus, write_model
from tests.support.cli import pipeline, said


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A corpus with a scaler, and two models with fresh weights in it."""
    corpus = make_corpus(tmp_path_factory.mktemp("evaluate"), {"validation": 0.3, "test": 0.3})
    for kind, card in CARDS.items():
        write_model(corpus, kind, card)
    return corpus


@pytest.fixture(scope="module")
def index(corpus: Corpus) -> Index:
    return make_index(corpus, SelectSettings())


def test_figures_do_not_depend_on_which_model_comes_first(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, {"validation": 0.1, "test": 0.5})
    for name in ("base", "elsewhere"):
        write_model(corpus, name, CARDS["base"])
    scaler = fitted_scaler(corpus.store, corpus.view)
    assert scaler is not None
    data = replace(scaler, median=scaler.median + 0.2).to_bytes({})  # as of a model that began on another corpus
    model, about = load_model(f"{corpus.url}/train/elsewhere")
    corpus.store.write(f"train/elsewhere/{SCALER}", data)
    save_model(
        corpus.store,
        "train/elsewhere",
        model.state_dict(),
        about.model_copy(update={"scaler": content_digest(data)}),
    )
    one, other = (
        run(corpus, models=order, sentences=50, metrics="l2,ca_cosine")
        for order in (("base", "elsewhere"), ("elsewhere", "base"))
    )
    assert {name: row.figures for name, row in one.items()} == {name: row.figures for name, row in other.items()}
    held = held_out(make_index(corpus, SelectSettings()), "test", max_sentences=CONTEXT, sentences=50)
    same = distances(held, scaler.median.expand(len(held.texts), -1))
    assert other["median vector"].figures["l2"].mean == pytest.approx(sum(same) / len(same), rel=1e-6)


def console() -> Console:
    return Console(file=io.StringIO(), width=200)


def run(corpus: Corpus, **options: Any) -> dict[str, ResultRow]:
    return evaluate(
        console(), corpus, EvaluateOptions(**options), lambda: "cpu", lambda: make_index(corpus, SelectSettings())
    )


def distances(held: HeldOut, predicted: torch.Tensor) -> list[float]:
    return [math.dist(predicted[n].tolist(), held.embeddings[n].tolist()) for n in held.judged.tolist()]


def test_baselines_have_the_figures_of_plain_loops(corpus: Corpus, index: Index) -> None:
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=60)
    rows = run(corpus, models=("base",), sentences=60, seed=4)
    assert list(rows) == ["base", "previous sentence", "median vector", "the sentence itself"]
    judged = held.judged.tolist()
    copies = distances(held, torch.cat([held.embeddings[:1], held.embeddings[:-1]]))
    figures = rows["previous sentence"].figures
    assert figures["l2"].mean == pytest.approx(sum(copies) / len(copies)) and figures["l2"].sentences == len(judged)
    assert figures["l2_squared"].mean == pytest.approx(sum(one**2 for one in copies) / len(copies))
    assert figures["par"].mean > 1  # a copy resembles the context more than the sentence does
    scaler = fitted_scaler(corpus.store, corpus.view)
    assert scaler is not None
    same = distances(held, scaler.median.expand(len(held.texts), -1))
    assert rows["median vector"].figures["l2"].mean == pytest.approx(sum(same) / len(same), rel=1e-6)
    truth = rows["the sentence itself"].figures
    assert truth["l2"].mean == 0 and truth["par"].mean == pytest.approx(1) and truth["ca"].mean > 0.98
    assert truth["l2_r"].mean > 0
    again = run(corpus, models=("base", "two-tower"), sentences=60, seed=4, metrics="l2,ca")
    assert again["base"].figures == {name: rows["base"].figures[name] for name in ("l2", "ca")}
    assert pool_of(held, 4).tolist() == sorted(set(range(len(held.texts))))


def test_the_round_trip_is_decoding_and_encoding(corpus: Corpus, index: Index) -> None:
    words = TextCodec.of(corpus, "cpu")
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=10_000)
    langs = [held.lang(int(place)) for place in held.judged]
    texts = words.decode(held.embeddings[held.judged], langs)
    again = words.encode(texts, langs).float()
    expected = [math.dist(a.tolist(), held.embeddings[n].tolist()) for a, n in zip(again, held.judged, strict=True)]
    found = run(corpus, models=("base",), sentences=10_000, metrics="l2_r,rouge_l")["the sentence itself"].figures
    assert found["l2_r"].mean == pytest.approx(sum(expected) / len(expected), abs=2e-3)  # batches differ
    shares = [rouge_l(text, held.texts[n]) for text, n in zip(texts, held.judged.tolist(), strict=True)]
    assert found["rouge_l"].mean == pytest.approx(sum(shares) / len(shares)) and found["rouge_l"].mean > 0.01
    assert torch.equal(words.encode(list(held.texts), [held.lang(n) for n in range(len(held.texts))]), held.embeddings)


def plain_likelihood(
    network: SonarTextDecoder, tokenizer: SonarTokenizer, x: torch.Tensor, text: str, lang: str
) -> tuple[float, int]:
    """−log p of one sentence, token after token, and how many tokens it has."""
    (ids,) = tokenizer.encode([text], lang)
    nats, before = 0.0, [END, ids[0]]
    for token in ids[1:]:
        nats -= float(network(torch.tensor([before]), x[None].float())[0, -1].double().log_softmax(0)[token])
        before.append(token)
    return nats, len(ids) - 1


def test_the_likelihood_of_the_next_sentence_is_that_of_plain_loops(corpus: Corpus, index: Index) -> None:
    card = TextCodec.of(corpus, "cpu").decoder_card
    network, tokenizer = load_decoder(card), SonarTokenizer(card)
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=5)
    rows = run(corpus, sentences=5, metrics="nll,bpc")
    assert list(rows) == ["base", "two-tower", "previous sentence", "median vector", "the sentence itself"]
    previous = torch.cat([held.embeddings[:1], held.embeddings[:-1]])
    for name, predicted in (("the sentence itself", held.embeddings), ("previous sentence", previous)):
        found = [
            plain_likelihood(network, tokenizer, predicted[place], held.texts[place], held.lang(place))
            for place in held.judged.tolist()
        ]
        nats, tokens = sum(one for one, _ in found), sum(count for _, count in found)
        characters = sum(len(held.texts[place]) for place in held.judged.tolist())
        figures = rows[name].figures
        assert figures["nll"].mean == pytest.approx(nats / tokens, rel=1e-6)
        assert figures["bpc"].mean == pytest.approx(nats / math.log(2) / characters, rel=1e-6)
        assert figures["nll"].sentences == len(held.judged) == figures["bpc"].sentences
    assert list(rows["base"].figures) == ["nll", "bpc"]
    assert rows["the sentence itself"].figures["nll"].mean < rows["previous sentence"].figures["nll"].mean


def test_a_sentence_longer_than_the_decoder_s_room_has_no_likelihood(corpus: Corpus) -> None:
    words = TextCodec.of(corpus, "cpu")
    texts, langs = ["Short.", "word " * 600, ""], ["eng_Latn"] * 3
    nats, tokens = words.likelihood(torch.zeros(3, words.decoder_card.dim), texts, langs)
    assert nats.isnan().tolist() == [False, True, False]
    assert tokens.tolist()[1:] == [words.decoder_card.max_tokens - 1, 1]
    figures = {"nll": MetricValue(1.0, 0.1, 2), "bpc": MetricValue(2.0, math.nan, 1)}
    show(shown := console(), {"base": ResultRow(figures)}, {"said": "", "sentences": 2})
    assert isinstance(shown.file, io.StringIO)
    said = shown.file.getvalue()
    assert "bits/char of 1 sentence: the others are longer than the decoder's limit" in said and "NLL of" not in said


def test_retrieval_and_contrastive_accuracy_by_cosine_are_those_of_plain_loops(corpus: Corpus, index: Index) -> None:
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=40)
    rows = run(corpus, models=("base",), sentences=40, metrics="ca_cosine,top1")
    scaler = fitted_scaler(corpus.store, corpus.view)
    assert scaler is not None
    real = torch.nn.functional.normalize((held.embeddings.double() - scaler.median) / scaler.iqr, dim=1)
    shares = []
    for place in held.judged.tolist():
        ours = real[place - 1]  # the previous sentence, said again
        same = [abs(place - other) <= 1 and held.origin[place] == held.origin[other] for other in range(len(real))]
        others = [float(ours @ real[other]) for other in range(len(real)) if not same[other]]
        shares.append(sum(one < float(ours @ real[place]) - 1e-7 for one in others) / len(others))
    figures = rows["previous sentence"].figures
    assert figures["ca_cosine"].mean == pytest.approx(sum(shares) / len(shares), abs=1e-6)
    assert figures["top1"].mean == pytest.approx(sum(one == 1 for one in shares) / len(shares))
    assert rows["the sentence itself"].figures["top1"].mean > 0.9
    assert rows["median vector"].figures["ca_cosine"].sentences == 0  # it has no direction
    assert "top1" in rows["base"].figures


def test_the_table_lies_beside_every_model(corpus: Corpus) -> None:
    rows = run(corpus, sentences=20, split="validation", metrics="l2,ca")
    assert list(rows)[:2] == ["base", "two-tower"]  # all that the corpus has
    for name in ("base", "two-tower"):
        found = json.loads(corpus.store.read(f"train/{name}/evaluation/validation.json"))
        assert found["split"] == "validation" and found["models"]["base"]["steps"] == 7
        assert found["models"]["two-tower"]["sampling"]["guidance"] == 3.0
        assert found["models"]["two-tower"]["metrics"]["ca"]["mean"] == rows["two-tower"].figures["ca"].mean
        lines = list(csv.reader(io.StringIO(corpus.store.read(f"train/{name}/evaluation/validation.csv").decode())))
        assert lines[0] == ["model", "steps", "l2", "l2_error", "ca", "ca_error"] and len(lines) == 6


def test_a_table_of_fewer_sentences_says_what_it_takes_the_place_of(corpus: Corpus) -> None:
    """Or of fewer metrics."""
    for sentences, metrics in ((20, "l2,ca"), (2, "l2"), (20, "l2"), (20, "par")):
        done = pipeline("evaluate", corpus.url, "--split", "validation", "--sentences", sentences, "--metrics", metrics)
        assert done.returncode == 0, said(done)
        told, _, replaced = done.stdout.partition("This replaces a table ")
        assert bool(replaced) == (sentences == 2 or metrics == "par"), done.stdout
        assert replaced.startswith("that also has ℓ2;" if metrics == "par" else "of " if sentences == 2 else "")
        assert ("contrastive accuracy against" in told) == ("ca" in metrics)


def test_figures_of_each_language_are_those_of_its_documents(corpus: Corpus, index: Index) -> None:
    shown = io.StringIO()
    options = EvaluateOptions(models=("base",), sentences=60, metrics="l2,ca,nll", by="lang")
    rows = evaluate(Console(file=shown, width=200), corpus, options, lambda: "cpu", lambda: index)
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=60)
    figure = rows["previous sentence"].figures["l2"]
    assert set(figure.groups) == set(held.langs) == {"eng_Latn", "deu_Latn"}
    for lang, found in figure.groups.items():
        places = [place for place in held.judged.tolist() if held.lang(place) == lang]
        vectors = held.embeddings.double()
        expected = [float((vectors[place] - vectors[place - 1]).norm()) for place in places]
        assert found.sentences == len(places)
        assert found.mean == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert sum(one.sentences for one in figure.groups.values()) == figure.sentences
    assert "lang" in shown.getvalue() and "eng_Latn" in shown.getvalue() and "deu_Latn" in shown.getvalue()
    lines = list(csv.reader(io.StringIO(corpus.store.read("train/base/evaluation/test-by-lang.csv").decode())))
    assert lines[0] == ["model", "lang", "metric", "mean", "error", "sentences"]
    assert len(lines) == 1 + 2 * sum(len(row.figures) for row in rows.values())
    said = json.loads(corpus.store.read("train/base/evaluation/test.json"))
    assert said["by"] == "lang" and said["models"]["base"]["groups"]["eng_Latn"]["nll"]["sentences"] > 0
    before = corpus.store.read("train/base/evaluation/test-by-lang.csv")
    sampled = replace(options, models=("two-tower",), metrics="l2", sampling={"guidance": 1.0})
    evaluate(Console(file=shown), corpus, sampled, lambda: "cpu", lambda: index)
    assert corpus.store.read("train/base/evaluation/test-by-lang.csv") == before
    assert set(corpus.store.find("train/two-tower/evaluation")) >= {
        f"train/two-tower/evaluation/test-sampled{ending}" for ending in (".json", ".csv", "-by-lang.csv")
    }
    with pytest.raises(ConfigError, match=r"--by titel: documents have no such column; they have doc, doc_id, .*title"):
        evaluate(Console(file=shown), corpus, replace(options, by="titel"), lambda: "cpu", lambda: index)


def test_metrics_of_a_model_trained_on_answers_say_that_prompts_count(corpus: Corpus) -> None:
    text, said = io.StringIO(), []
    about = json.loads(corpus.store.read("train/base/model.json"))
    about.pop("seal", None)  # what it says is changed below
    for answers in (None, "answer"):
        about["pinned"]["settings"]["answers"] = answers
        corpus.store.write("train/base/model.json", json.dumps(about).encode())
        options = EvaluateOptions(models=("base",), sentences=20, metrics="l2")
        find_index = partial(make_index, corpus, SelectSettings())
        evaluate(Console(file=text, width=200), corpus, options, lambda: "cpu", find_index)
        said.append("base: trained on answers" in text.getvalue())
    about["pinned"]["settings"]["answers"] = None
    corpus.store.write("train/base/model.json", json.dumps(about).encode())
    assert said == [False, True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "dev"}, "--split dev: there is no such split; splits are train, validation, test"),
        (
            {"metrics": "l2,bleu"},
            "no metric bleu; metrics are l2, l2_squared, l2_r, par, ca, ca_cosine, top1, mi, nll, bpc, rouge_l",
        ),
        ({"metrics": "mi"}, "--language-model gpt2, smollm2 or a card's file"),
        (
            {"models": ("base",), "sampling": {"temperature": 9}},
            "--temperature: models of the kind base do not read it",
        ),
        ({"sampling": {"top_k": 2}}, "--top-k: models of the kind base, two-tower do not read it"),
        ({"models": ("other",)}, "was trained on embeddings of 1024 dimensions by the encoder .* have "),
    ],
)
def test_what_cannot_be_is_said(corpus: Corpus, options: dict[str, object], message: str) -> None:
    write_model(corpus, "other", CARDS["base"], dim=1024)
    try:
        with pytest.raises(ConfigError, match=message):
            run(corpus, **options)
    finally:
        for path in corpus.store.find("train/other"):
            corpus.store.delete(path)


def test_a_decoder_of_another_dimension_is_refused(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TextCodec, "decoder_card", load_card("sonar"))
    for metrics in ("nll", "l2_r"):
        with pytest.raises(ConfigError, match=r"sonar, the decoder of .*, takes embeddings of 1024 dimensions; those"):
            run(corpus, models=("base",), sentences=10, metrics=metrics)


def test_one_that_cannot_be_evaluated_does_not_hinder_the_others(corpus: Corpus) -> None:
    text = io.StringIO()
    find_index = partial(make_index, corpus, SelectSettings())
    write_model(corpus, "other", CARDS["base"], dim=1024)
    write_model(corpus, "broken", CARDS["base"])
    model, about = load_model(f"{corpus.url}/train/broken")
    weights = {name: torch.full_like(one, torch.nan) for name, one in model.state_dict().items()}
    save_model(corpus.store, "train/broken", weights, about)
    write_model(corpus, "begun", CARDS["base"])
    corpus.store.delete("train/begun/model.json")
    write_model(corpus, "lost", CARDS["base"])
    corpus.store.delete("train/lost/run.json")
    options = EvaluateOptions(sentences=10, metrics="l2")
    try:
        with pytest.raises(CorpusError, match=r"2 models of this corpus could not be evaluated: broken, lost; "):
            evaluate(Console(file=text, width=200), corpus, options, lambda: "cpu", find_index)
        with pytest.raises(CorpusError, match=r"broken: .* predictions are not finite"):
            run(corpus, models=("broken",), sentences=10, metrics="l2")
        with pytest.raises(
            CorpusError, match=r"no trained model; those of this corpus: .*train/base, .*train/two-tower;"
        ):
            run(corpus, models=("begun",), sentences=10, metrics="l2")
    finally:
        for name in ("other", "broken", "begun", "lost"):
            for path in corpus.store.find(f"train/{name}"):
                corpus.store.delete(path)
    said = text.getvalue()
    rows = json.loads(corpus.store.read("train/base/evaluation/test.json"))["models"]
    assert list(rows) == ["base", "two-tower", "previous sentence", "median vector", "the sentence itself"]
    assert "left out: train/begun has no checkpoint yet" in said
    assert "left out: broken: " in said and "by the encoder" in said and said.count("left out: ") == 4
    assert "train/lost/run.json is missing, and with it the settings" in said
    assert "train/broken/evaluation" not in said and "train/base/evaluation/test.json written" in said


def test_only_a_finished_split_has_documents(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, {"validation": 0.0, "test": 0.0})
    with pytest.raises(ConfigError, match=r"nothing is selected in the split test .*the section split"):
        run(corpus)


EVERY = {
    "steps": 7, "guidance": 1.5, "rescale": 0.2, "initial_noise": 0.9, "epsilon_scaling": 1.01, "eta": 0.5, "clip": 2.5,
}  # fmt: skip


def flags(options: dict[str, float]) -> list[str]:
    return [one for name, value in options.items() for one in (f"--{name.replace('_', '-')}", str(value))]


def test_every_option_of_sampling_is_read_from_the_command_line(corpus: Corpus) -> None:
    few = ["--sentences", "5", "--metrics", "l2", "--model", "two-tower"]
    for options in ({}, EVERY):
        done = pipeline("evaluate", corpus.url, *few, *flags(options))
        assert done.returncode == 0, done.stderr
        file = f"train/two-tower/evaluation/test{'-sampled' if options else ''}.json"
        found = json.loads(corpus.store.read(file))["models"]["two-tower"]
        assert found["sampling"] == asdict(Sampling(**options))


def test_sampling_of_the_section_train_counts_where_the_command_says_nothing(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ["--sentences", "5", "--metrics", "l2", "--model", "two-tower"]
    record = corpus.store.read(f"train/two-tower/{RECORD}")
    started = json.loads(record)
    started["settings"]["sampling"] = {"guidance": 1.0, "eta": 1.0}
    file = tmp_path / "corpus.yaml"
    config = Path(corpus.url).parent.joinpath("corpus.yaml").read_text("utf-8")
    section = {"model": "lcm-two-tower-tiny", "name": "two-tower", "sampling": {"guidance": 2.0, "clip": 3.0}}
    said = []
    try:
        corpus.store.write(f"train/two-tower/{RECORD}", json.dumps(started).encode())
        for name in ("two-tower", "another"):
            text = yaml.safe_dump(yaml.safe_load(config) | {"output": corpus.url, "train": section | {"name": name}})
            file.write_text(text, "utf-8")
            done = pipeline("evaluate", str(file), *few, "--steps", "5")
            assert done.returncode == 0, done.stderr
            found = json.loads(corpus.store.read("train/two-tower/evaluation/test-sampled.json"))["models"]["two-tower"]
            said.append({name: found["sampling"][name] for name in ("steps", "guidance", "clip", "eta")})
    finally:
        corpus.store.write(f"train/two-tower/{RECORD}", record)
    assert said == [
        {"steps": 5, "guidance": 2.0, "clip": 3.0, "eta": 0.0},  # of the file, which names this training
        {"steps": 5, "guidance": 1.0, "clip": None, "eta": 1.0},  # of its own record
    ]


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("evaluate", {"eta": 1.5}, "--eta"),
        ("evaluate", {"eta": math.nan}, "--eta"),
        ("evaluate", {"guidance": math.inf}, "--guidance inf: Input should be a finite number"),
        ("evaluate", {"clip": 0.0}, "--clip 0.0: Input should be greater than 0"),
        ("evaluate", {"epsilon_scaling": -1.0}, "--epsilon-scaling -1.0: Input should be greater than 0"),
        ("evaluate", {"eta": 0.5}, "--eta: models of the kind base do not read it"),
        ("generate", {"end_cosine": 1.5}, "--end-cosine"),
        ("generate", {"initial_noise": 0.5}, "--initial-noise: models of the kind base do not read it"),
    ],
)
def test_sampling_that_cannot_be_is_refused(
    corpus: Corpus, command: str, options: dict[str, float], message: str
) -> None:
    more = ["--split", "test"] if command == "generate" else []
    refused = pipeline(command, corpus.url, "--model", "base", *more, *flags(options))
    assert refused.returncode == 2 and message in re.sub(r"\s+", " ", refused.stderr)


@pytest.mark.parametrize(
    ("model", "sampling", "message"),
    [
        ("lcm-base-tiny", "{eta: 0.5}", "train.sampling.eta: models of the kind base do not read it; leave it out"),
        ("lcm-quant-c-tiny", "{clip: 1}", "train.sampling.clip: models of the kind quant-c do not read it"),
        ("lcm-two-tower-tiny", "{rescale: 2}", "train.sampling.rescale is 2; allowed: less than or equal to 1"),
    ],
)
def test_sampling_that_a_model_does_not_read_is_refused(
    corpus: Corpus, model: str, sampling: str, message: str
) -> None:
    file = str(Path(corpus.url).parent / "corpus.yaml")
    chosen = ["--set", f"train={{model: {model}, sampling: {sampling}}}", "--set", "rvq={}"]
    refused = pipeline("plan", file, *chosen)
    assert refused.returncode == 2 and message in re.sub(r"\s+", " ", refused.stderr)


def test_a_sweep_evaluates_each_value_of_one_option_after_the_other(corpus: Corpus) -> None:
    sweeps = sweeps_of(["guidance=1,2", "initial-noise=0.5"])
    assert sweeps == {"guidance": (1, 2), "initial_noise": (0.5,)}
    store, run_folder = corpus.store, "train/two-tower"
    model, about = load_model(f"{store.url}/{run_folder}")
    fresh = model.state_dict()  # these predict the same whatever guides them, because AdaLN begins with zeros
    torch.manual_seed(0)
    drawn = {name: one if one.any() else torch.randn_like(one) / 10 for name, one in fresh.items()}
    save_model(store, run_folder, drawn, about)
    try:
        check_sweep(corpus, sweeps)
    finally:
        save_model(store, run_folder, fresh, about)


def check_sweep(corpus: Corpus, sweeps: dict[str, tuple[float, ...]]) -> None:
    rows = run(corpus, sentences=10, metrics="l2,ca", sampling={"steps": 2}, sweeps=sweeps)
    swept = ["two-tower, guidance 1", "two-tower, guidance 2", "two-tower, initial_noise 0.5"]
    assert [name for name, row in rows.items() if row.swept] == swept and "base" not in rows
    alone = run(corpus, models=("two-tower",), sentences=10, metrics="l2,ca", sampling={"steps": 2, "guidance": 2.0})
    assert rows[swept[1]].figures == alone["two-tower"].figures != rows[swept[0]].figures
    assert rows[swept[2]].sampling == {**(rows[swept[0]].sampling or {}), "guidance": 3.0, "initial_noise": 0.5}
    lines = list(csv.DictReader(io.StringIO(corpus.store.read("train/two-tower/evaluation/test-sweep.csv").decode())))
    assert [(one["option"], one["value"], one["metric"]) for one in lines] == [
        (option, value, metric)
        for option, value in (("guidance", "1"), ("guidance", "2"), ("initial_noise", "0.5"))
        for metric in ("l2", "ca")
    ]
    assert float(lines[2]["mean"]) == pytest.approx(rows[swept[1]].figures["l2"].mean, rel=1e-5)
    plot = corpus.store.read("train/two-tower/evaluation/test-sweep.svg").decode()
    assert "guidance" in plot and "initial_noise" in plot
    of_table = json.loads(corpus.store.read("train/two-tower/evaluation/test-sampled.json"))
    assert next(iter(of_table["models"])) == "two-tower"  # that of the last one without a sweep


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (["guidance=-1"], r"--sweep guidance=-1: guidance -1: Input should be greater than or equal to 0"),
        (["eta=0,2"], r"--sweep eta=0,2: eta 2: Input should be less than or equal to 1"),
        (["steps=1.5"], r"--sweep steps=1.5: steps 1.5: Input should be a valid integer"),
        (["guidance=one"], r"'one' is not a number; give numbers, with commas between them"),
        (["guidance=1,,2"], r"'' is not a number"),
        (["guidance"], r"--sweep guidance: write an option and its values, such as guidance=1,2,3"),
        (["end_cosine=0.9"], r"options are steps, guidance, rescale"),
        (["eta=0", "eta=1"], r"eta has a sweep already; give all of its values in one"),
        (["top_k=" + ",".join(map(str, range(1, 60)))], r"59 values, each an evaluation; give 50 at most"),
        (["clip=3"], r"--clip gives one value for all; leave one out"),
    ],
)
def test_sweeps_that_cannot_be_are_refused(sweep: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweeps_of(sweep, {"clip": 2.0})


def test_a_sweep_that_no_model_reads_is_refused(corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="--sweep guidance: no model that is evaluated reads it"):
        run(corpus, models=("base",), sentences=10, sweeps={"guidance": (1.0,)})


def test_the_pool_is_the_same_for_all_and_bounded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "POOL", 5)
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=40)
    pool = pool_of(held, 1)
    assert len(pool) == 5 and pool.tolist() == sorted(pool.tolist()) == pool_of(held, 1).tolist()
    assert pool.tolist() != pool_of(held, 2).tolist()
