"""pipeline ablate: every selection trained and evaluated alike, what it gains over all sentences, bad input."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config.science import ALL, AblationSettings, load_ablation
from pipeline.training.comparison.ablation import gain, to_markdown, to_svg
from pipeline.training.comparison.results import Measurement, Results, SeedResult
from tests.conftest import ROOT
from tests.support.cli import pipeline
from tests.support.runs import run
from tests.support.trainings import TRAIN


def ablation_of(corpus: Path, /, **changes: Any) -> Path:
    shared = {key: TRAIN[key] for key in ("lr", "timeout_seconds")}
    settings: dict[str, Any] = {
        "corpus": "corpus.yaml",
        "output": "ablation",
        "seeds": [0, 1],
        "train": shared
        | {"model": "small.yaml", "steps": 2, "batch_concepts": 16, "micro_concepts": 16, "validation_concepts": 0},
        "split": "validation",
        "sentences": 20,
        "metrics": ["l2", "ca"],
        "selections": {"half": "u < 0.5", "long": {"select": {"where": "chars >= 40", "broken": "drop-sentences"}}},
    }
    path = corpus.parent / "ablation.yaml"
    path.write_text(yaml.safe_dump(settings | changes))
    return path


@pytest.mark.slow
def test_each_selection_is_trained_and_judged_like_all(training_corpus: Path) -> None:
    other = yaml.safe_load(training_corpus.read_text()) | {"output": "other", "segment": {"max_chars": 60}}
    (training_corpus.parent / "other.yaml").write_text(yaml.safe_dump(other))
    run(training_corpus.parent / "other.yaml")
    selections = {"half": "u < 0.5", "shorter": {"corpus": "other.yaml", "train": {"clip_norm": 0.5}}}
    path = ablation_of(training_corpus, selections=selections)
    done = pipeline("ablate", path)
    assert done.returncode == 0, done.stderr
    out = training_corpus.parent / "ablation"
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert {row: list(seeds) for row, seeds in rows.items()} == {row: ["0", "1"] for row in (ALL, "half", "shorter")}
    sentences = {row: seeds["0"]["figures"]["training_sentences"]["mean"] for row, seeds in rows.items()}
    assert 0.3 * sentences[ALL] < sentences["half"] < 0.7 * sentences[ALL] < sentences[ALL] < sentences["shorter"]
    assert {len(seeds["0"]["figures"]["l2"]["documents"]) for seeds in rows.values()} == {
        len(rows[ALL]["0"]["figures"]["l2"]["documents"])
    }  # the same documents judge all
    assert rows[ALL]["0"]["figures"]["l2"] != rows["half"]["0"]["figures"]["l2"]
    assert list((training_corpus.parent / "other/train").glob("ablate-shorter-*-seed-1/model.json"))
    table = (out / "results.md").read_text()
    assert (
        "| trained on | seeds | steps | sentences | epochs | ℓ2 | CA |" in table and "| less all | ℓ2 | CA |" in table
    )
    assert f"| all | 2 | 2 | {sentences[ALL]:,.0f} | {32 / sentences[ALL]:.1f} |" in table
    assert (out / "results.svg").read_text().startswith("<?xml")

    (out / "results.md").unlink()
    (out / "results.svg").write_bytes(b"")
    again = pipeline("ablate", path)
    assert (
        " ".join(again.stdout.split()).count("is evaluated already") == 6 and (out / "results.md").read_text() == table
    )
    assert (out / "results.svg").read_text().startswith("<?xml")
    changed = ablation_of(training_corpus, selections=selections | {"half": "u < 0.4"})
    assert " ".join(pipeline("ablate", changed).stdout.split()).count("is evaluated already") == 4  # another half


@pytest.mark.slow
def test_documents_that_one_row_learned_from_judge_none(training_corpus: Path) -> None:
    folder = training_corpus.parent
    for name, share in (("wide", 0.6), ("narrow", 0.2)):
        text = yaml.safe_load(training_corpus.read_text()) | {"output": name, "split": {"validation": share}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(text))
        run(folder / f"{name}.yaml")
    asked: dict[str, Any] = {"corpus": "wide.yaml", "output": "seen", "seeds": [0], "sentences": 10**4}
    alone = pipeline("ablate", ablation_of(training_corpus, selections={"half": "u < 0.5"}, **asked))
    assert alone.returncode == 0 and "left out" not in alone.stdout, alone.stderr
    first = json.loads((folder / "seen/results.json").read_text())
    path = ablation_of(training_corpus, selections={"half": "u < 0.5", "other": {"corpus": "narrow.yaml"}}, **asked)
    done = pipeline("ablate", path)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "seen/results.json").read_text())
    said = re.search(r"left out: (\d+) documents of the split validation that other learned", found_in(folder / "seen"))
    assert said and int(said[1]) > 0, found_in(folder / "seen")
    assert " ".join(done.stdout.split()).count(f"left out for all rows: {said[1]} documents") == 1
    assert "is evaluated already" not in done.stdout  # what was judged by other documents is judged again
    judged = [len(one["figures"]["l2"]["documents"]) for row in found["rows"].values() for one in row.values()]
    judged += [len(one["figures"]["l2"]["documents"]) for one in found["baselines"].values()]
    before = len(first["rows"][ALL]["0"]["figures"]["l2"]["documents"])
    assert len(set(judged)) == 1 and 0 < judged[0] < before, judged
    assert len({one["judged"] for row in found["rows"].values() for one in row.values()}) == 1
    again = " ".join(pipeline("ablate", path).stdout.split())
    assert again.count("is evaluated already") == 3 and "left out for all rows" in again


def found_in(output: Path) -> str:
    return (output / "results.md").read_text()


def test_only_what_the_same_documents_judge_is_compared_document_by_document() -> None:
    results = measured(all=1.0, other=1.5)
    assert gain(results, "l2", "other") == (0.5, 0.0, "")  # alike in every document
    results.rows["other"]["0"] = results.rows["other"]["0"].model_copy(update={"judged": "by as many others"})
    assert gain(results, "l2", "other") == (0.5, 2 * math.hypot(0.5, 0.5), "")


def measured(**rows: float) -> Results:
    """Figures of ten documents, which move a row's mean alike."""
    one = tuple((-0.01, 0.01)[number % 2] for number in range(10))
    figures = {
        row: {metric: Measurement(mean=value, error=0.5, documents=one) for metric in ("l2", "ca", "par")}
        for row, value in rows.items()
    }
    return Results(rows={row: {"0": SeedResult(asked="x", steps=3, figures=found)} for row, found in figures.items()})


def test_better_is_less_distance_and_more_accuracy() -> None:
    results = measured(all=1.0, less=0.5, more=1.5, same=1.0)
    results.rows["more"]["0"].figures["l2"] = Measurement(mean=1.5, error=0.01, documents=(0.004, -0.004) * 5)
    results.rows["more"]["0"].figures["ca"] = Measurement(mean=1.5, error=0.01, documents=(0.004, -0.004) * 5)
    difference, error, verdict = gain(results, "l2", "more") or (0, 0, "")
    assert (difference, verdict) == (0.5, "worse")
    # influences differ by ±0.014 in each of ten documents: sqrt(10 · 0.014² · 10/9), twice
    assert error == pytest.approx(2 * math.sqrt(10 * 0.014**2 * 10 / 9))
    assert (gain(results, "ca", "more") or ("",))[-1] == "better"
    assert gain(results, "l2", "less") == (-0.5, 0.0, "")  # alike in every document: no error, so no verdict
    assert (gain(results, "par", "more") or ("", "", "x"))[-1] == ""  # best at 1, so neither
    assert gain(results, "l2", "unknown") is None
    settings = AblationSettings(
        corpus="c",
        output="o",
        seeds=(0,),
        metrics=("l2", "ca"),
        selections={"less": {"select": "u < 1"}},  # type: ignore[dict-item]
    ).science()
    shown = to_markdown(settings, results)
    assert "| less | -0.5, of single figures | -0.5, of single figures |" in shown
    assert b"less is better" in to_svg(settings, results)


def test_names_tell_one_selection_from_another(training_corpus: Path) -> None:
    names = [load_ablation(ablation_of(training_corpus, **changes)).names for changes in (
        {}, {"selections": {"half": "u < 0.4"}}, {"seeds": [7]}, {"sentences": 5})]  # fmt: skip
    assert names[0] == names[2] == names[3] and names[0][ALL] == names[1][ALL]
    assert names[0]["half"] != names[1]["half"] and names[0]["half"].startswith("ablate-half-")


def test_a_row_may_be_a_section_select(training_corpus: Path) -> None:
    section = {"preset": ["gopher-quality"], "where": "chars > 5", "min_sentences": 2}
    bare, whole = (
        load_ablation(ablation_of(training_corpus, selections={"x": row})) for row in (section, {"select": section})
    )
    assert bare.trained_on["x"].select == whole.trained_on["x"].select and bare.names == whole.names


def test_the_example_fits_the_sample() -> None:
    science = load_ablation(ROOT / "conf/ablation.yaml")
    assert science.settings.trained[0] == ALL and science.config(ALL, 0).select is None
    half = science.config("half-at-random", 0)
    assert half.select and half.select.where == "u < 0.5" and half.train and half.train.steps == 300
    assert science.corpus.select is None  # evaluated on every sentence, whatever the corpus.yaml selects


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selections": {"all": "u < 1"}}, "selections.all: that is the row without a selection"),
        ({"selections": {"x": {}}}, "selections.x: nothing differs from 'all': give select, corpus or train"),
        ({"selections": {"x": {"train": {"steps": 5}}}}, "train.steps: all rows are trained alike"),
        ({"selections": {"x": "charz > 5"}}, "selections.x: select: there is no column charz; did you mean chars"),
        ({"selections": {"x": "chars >"}}, "selections.x: select"),
        ({"selections": {"x": {"train": {"weights": "fragility"}}}}, "selections.x: "),
        ({"selections": {"x": {"train": {"lr": -1}}}}, "ablation.yaml:12: lr is -1; allowed: greater than 0"),
        ({"train": {"bach_concepts": 3}}, "unknown key bach_concepts; did you mean batch_concepts?"),
        ({"selections": {5: {"where": 3}}}, "selections.5.where is 3; allowed: string"),
        ({"selections": {"x": {"corpus": "none.yaml"}}}, "none.yaml"),
        (
            {"selections": {"x": {"preset": "gopher-quality", "train": {"lr": 0.1}}}},
            "selections.x: unknown key preset; allowed here: select, corpus, train; or, without these, the keys of a",
        ),
        (
            {"selections": {"x": {"where": "u < 1", "wher": 1}}},
            "unknown key selections.x.wher; did you mean where?",
        ),
        ({"selections": {"a b": "u < 1"}}, 'selections.a b is "a b"; allowed: string should match pattern'),
        (
            {"selections": {}},
            "selections is {}; allowed: keys and values, 1 or more. About selections: ",
        ),
        ({"selections": {"x": "chars > 99999"}}, "the selection keeps no sentence"),
        ({"selections": {"x": "split = 'validation'"}}, "selections.x: {url} has no documents of the split train"),
        (
            {"selections": {"x": {"select": "split = 'train'", "train": {"validation_concepts": 100}}}},
            "selections.x: {url} has no documents of the split validation",
        ),
        ({"train": {"name": "mine"}}, "train.name: comparisons name trainings by their rows and seeds; leave it out"),
        ({"metrics": ["l3"]}, "there is no metric l3"),
        ({"held_out": "charz > 5"}, "held_out: there is no column charz"),
        ({"minutes": 3}, "ablation.yaml:5: unknown key minutes; did you mean sentences? allowed here: corpus, output"),
        ({"seeds": [1, 1]}, "seeds are [1, 1]"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(
    training_corpus: Path, changes: dict[str, Any], message: str
) -> None:
    refused = pipeline("ablate", ablation_of(training_corpus, output="never", **changes))
    message = message.replace("{url}", str(training_corpus.parent / "out"))
    assert refused.returncode in (1, 2) and message in " ".join(refused.stderr.split()), refused.stderr
    assert not (training_corpus.parent / "never").exists()


def test_another_encoder_is_refused(training_corpus: Path) -> None:
    there = training_corpus.parent / "other-encoder.yaml"
    other = yaml.safe_load(training_corpus.read_text()) | {"output": "encoded", "encode": {"model": "sonar-tiny"}}
    there.write_text(yaml.safe_dump(other))
    run(there)
    refused = pipeline("ablate", ablation_of(training_corpus, selections={"x": {"corpus": there.name}}))
    assert refused.returncode == 2 and "selections.x: " in refused.stderr, refused.stderr
    assert "what is trained on the one cannot be evaluated on the other" in " ".join(refused.stderr.split())
