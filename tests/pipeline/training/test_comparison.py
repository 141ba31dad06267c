"""pipeline compare-objectives: trained, judged, written, gone on with; means over seeds; claims; bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.base.errors import ConfigError
from pipeline.config.science import Claim, Objective, load_science
from pipeline.training.comparison.results import Found, Measurement, Results, to_markdown, to_svg
from tests.conftest import ROOT
from tests.docs.documents import blocks
from tests.support.cli import pipeline
from tests.support.trainings import CARD, TRAIN, folder, write_card


def science_of(corpus: Path, **changes: Any) -> dict[str, Any]:
    words = write_card(corpus.parent, "words", kind="token-lm", context=8, context_tokens=514, layers=1)
    shared = {key: TRAIN[key] for key in ("batch_concepts", "micro_concepts", "lr", "timeout_seconds")}
    base = {"model": str(corpus.parent / "small.yaml"), "ngram": {"n": 2, "wdr": True}}
    settings: dict[str, Any] = {
        "corpus": "corpus.yaml",
        "output": "science",
        "seeds": [0, 1],
        "split": "validation",
        "sentences": 20,
        "metrics": ["l2", "nll"],
        "train": shared | {"steps": 1, "batch_concepts": 16, "micro_concepts": 16, "validation_concepts": 0},
        "objectives": {
            "base": {"train": base},
            "ensemble": {"of": "base", "sampling": {"ensemble": 0.5}},
            "words": {"train": {"model": str(words)}},
        },
        "claims": ["nll(words) < nll(base)", "l2(the sentence itself) < l2(base)"],
    }
    return settings | changes


def written(corpus: Path, settings: dict[str, Any]) -> Path:
    path = corpus.parent / "science.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def test_rows_are_trained_and_judged_once(training_corpus: Path) -> None:
    path = written(training_corpus, science_of(training_corpus))
    done = pipeline("compare-objectives", path)
    assert done.returncode == 0, done.stderr
    out = training_corpus.parent / "science"
    results = json.loads((out / "results.json").read_text())
    assert {row: list(seeds) for row, seeds in results["rows"].items()} == {
        row: ["0", "1"] for row in ("base", "ensemble", "words")
    }
    base, words = results["rows"]["base"]["0"]["figures"], results["rows"]["words"]["0"]["figures"]
    assert {"l2", "nll", "parameters", "flops_per_step"} <= base.keys() and "l2" not in words
    assert base["gradient_diversity"]["mean"] > 0 and words["gradient_diversity"]["mean"] > 0
    assert base["l2"] != results["rows"]["ensemble"]["0"]["figures"]["l2"]
    assert results["baselines"]["the sentence itself"]["figures"]["l2"]["mean"] == 0
    table = (out / "results.md").read_text()
    assert "| base | 2 | 1 |" in table and "| `nll(words) < nll(base)` | " in table
    assert "| `l2(the sentence itself) < l2(base)` | confirmed |" in table
    assert (out / "results.svg").read_text().startswith("<?xml")
    del results["rows"]["words"]["1"]
    (out / "results.json").write_text(json.dumps(results))
    again = " ".join(pipeline("compare-objectives", path).stdout.split())
    assert again.count("is judged already") == 5 and again.count("is trained: nothing to do") == 6
    assert json.loads((out / "results.json").read_text())["rows"]["words"].keys() == {"0", "1"}
    assert (out / "results.md").read_text() == table


def test_steps_follow_from_minutes(training_corpus: Path) -> None:
    words = science_of(training_corpus)["objectives"]["words"]
    settings = science_of(
        training_corpus, objectives={"brief": words}, claims=[], seeds=[3], minutes=1e-5, calibration_steps=2,
        output="brief", metrics=["bpc"],
    )  # fmt: skip
    done = pipeline("compare-objectives", written(training_corpus, settings))
    assert done.returncode == 0, done.stderr
    results = json.loads((training_corpus.parent / "brief/results.json").read_text())
    assert results["steps"] == {"brief": 1} and results["rows"]["brief"]["3"]["steps"] == 1
    assert (folder(training_corpus, "brief-calibration") / "model.json").exists()


def found(**figures: float) -> Found:
    return Found(
        asked="x", steps=5, figures={name: Measurement(mean=value, error=0.3) for name, value in figures.items()}
    )


def test_means_and_claims() -> None:
    results = Results(rows={"a": {"0": found(nll=1.0), "1": found(nll=3.0)}, "b": {"0": found(nll=9.0)}})
    mean = results.figure("nll", "a")
    assert mean is not None and mean.mean == 2.0
    assert mean.error == pytest.approx(math.hypot(0.3, math.sqrt(2) / math.sqrt(2)))  # deviation √2 of two seeds
    assert results.verdict(Claim.of("nll(a) < nll(b)")) == ("confirmed", "+7 ± 2.2")
    assert results.verdict(Claim.of("nll(a) > nll(b)"))[0] == "refuted"
    results.rows["b"]["0"] = found(nll=2.5)
    assert results.verdict(Claim.of("nll(a) < nll(b)"))[0] == "undecided"
    assert results.verdict(Claim.of("nll(a) < ca(b)")) == ("not measured", "–")


def test_the_file_that_ships_can_be_read() -> None:
    science = load_science(ROOT / "conf/science.yaml")
    assert len(science.settings.trained) == 12 and isinstance(science.settings.objectives["base"], Objective)
    assert "| row | seeds |" in to_markdown(science.settings, Results())
    assert to_svg(science.settings, Results()).startswith(b"<?xml")


def test_the_file_of_the_documentation_can_be_read(tmp_path: Path) -> None:
    (block,) = (one for one in blocks(ROOT / "docs/science.md") if one.info == "yaml")
    (tmp_path / "science.yaml").write_text(block.text)
    (tmp_path / "sample-full.yaml").write_text((ROOT / "conf/sample-full.yaml").read_text())
    assert load_science(tmp_path / "science.yaml").settings.trained == ["base", "words", "words-wdr"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": []}, "seeds: Tuple should have at least 1 item"),
        ({"seeds": [1, 1]}, "seeds are [1, 1]; each stands for a training of its own"),
        ({"claims": ["base beats words"]}, "the claim 'base beats words' is not of the form"),
        ({"claims": ["nll(base) < nll(other)"]}, "is about other; rows are base, ensemble, words, previous sentence"),
        ({"claims": ["ca(base) < ca(words)"]}, "is about ca; the metrics here are l2, nll"),
        ({"metrics": ["l3"]}, "there is no metric l3"),
        ({"split": "tset"}, "split is tset; splits are"),
        ({"minuets": 3}, "minuets: Extra inputs are not permitted"),
        ({"objectives": {"a": {"train": {}, "of": "b"}}}, "a is of b, which is not a row that is trained"),
        ({"objectives": {"base": {"train": {"steps": 0}}}}, "objectives.base.train: steps: Input should be greater"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(
    training_corpus: Path, changes: dict[str, Any], message: str
) -> None:
    settings = science_of(training_corpus, output="never") | (
        {"claims": []} if {"objectives", "metrics"} & changes.keys() else {}
    )
    refused = pipeline("compare-objectives", written(training_corpus, settings | changes))
    assert refused.returncode == 2 and message in " ".join(refused.stderr.split()), refused.stderr
    assert not (training_corpus.parent / "never").exists()


def test_sampling_that_a_model_does_not_read(training_corpus: Path) -> None:
    settings = science_of(training_corpus)
    settings["objectives"]["ensemble"]["sampling"] = {"guidance": 2.0}
    with pytest.raises(ConfigError, match=r"objectives\.ensemble: train\.sampling\.guidance: models of the kind base"):
        load_science(written(training_corpus, settings))
    assert CARD["kind"] == "base"
