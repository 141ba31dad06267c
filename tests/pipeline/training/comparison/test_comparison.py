"""pipeline compare-objectives: trained, judged, written, gone on with; means over seeds; claims; bad input."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.console import Console

from pipeline.base.errors import ConfigError
from pipeline.config.science import Claim, Objective, ScalingLaw, load_science
from pipeline.storage.records import sealed
from pipeline.training.comparison.clock import seconds_of_step
from pipeline.training.comparison.compare import _Comparison
from pipeline.training.comparison.results import Measurement, Results, SeedResult, to_markdown, to_svg
from pipeline.training.comparison.scaling import Point, alphas, fitted
from stages.lcm.metrics import influences, mean_of
from stages.sonar.card import ModelCard
from tests.conftest import ROOT
from tests.docs.documents import blocks
from tests.support.cli import pipeline, said
from tests.support.language_models import write_language_model
from tests.support.runs import run
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


@pytest.mark.slow
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
    assert {"l2", "nll", "parameters", "flops_per_step", "cpu_seconds"} <= base.keys() and "l2" not in words
    assert base["gradient_diversity"]["mean"] > 0 and words["gradient_diversity"]["mean"] > 0
    assert base["l2"] != results["rows"]["ensemble"]["0"]["figures"]["l2"]
    assert results["baselines"]["the sentence itself"]["figures"]["l2"]["mean"] == 0
    table = (out / "results.md").read_text()
    assert "| base | 2 | 1 |" in table and "| `nll(words) < nll(base)` | " in table
    assert "| `l2(the sentence itself) < l2(base)` | confirmed |" in table
    assert (out / "results.svg").read_text().startswith("<?xml")
    del results["rows"]["words"]["1"], results["seal"]
    (out / "results.json").write_text(json.dumps(results))
    again = " ".join(pipeline("compare-objectives", path).stdout.split())
    assert again.count("is evaluated already") == 5 and again.count("is trained: nothing to do") == 6
    assert json.loads((out / "results.json").read_text())["rows"]["words"].keys() == {"0", "1"}
    assert (out / "results.md").read_text() == table


def test_only_what_is_judged_alike_is_compared(training_corpus: Path, tmp_path: Path) -> None:
    corpus = Path(shutil.copytree(training_corpus.parent, tmp_path / "corpus")) / training_corpus.name
    base = science_of(corpus)["objectives"]["base"]
    settings = science_of(corpus, objectives={"base": base}, claims=[], metrics=["l2", "nll"])
    path, out = written(corpus, settings), corpus.parent / "science"
    assert (done := pipeline("compare-objectives", path)).returncode == 0, done.stderr
    assert "| base | 2 | 1 |" in (out / "results.md").read_text()
    fewer = written(corpus, settings | {"seeds": [0], "sentences": 4})
    assert (done := pipeline("compare-objectives", fewer)).returncode == 0, done.stderr
    results = json.loads((out / "results.json").read_text())
    mean = results["rows"]["base"]["0"]["figures"]["l2"]["mean"]
    table = (out / "results.md").read_text()
    assert f"| base | 1 | 1 | {mean:.4g}" in table, table  # not the mean with a seed that other sentences judged
    judged = re.search(r"sentences judged: (\d+) of", table)
    assert judged and judged[1] == results["about"]["sentences judged"].split()[0] and int(judged[1]) < 20
    text = yaml.safe_load(corpus.read_text())
    corpus.write_text(yaml.safe_dump(text | {"split": {"validation": 0.5, "test": 0.2}}))
    run(corpus)
    refused = pipeline("compare-objectives", fewer)
    assert refused.returncode == 2 and "the corpus has changed since these were trained" in said(refused), refused
    assert "train/base-seed-0;" in said(refused)


def test_another_decoder_makes_what_it_decoded_stale(training_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged_by(*metrics: str) -> str:
        path = written(training_corpus, science_of(training_corpus, metrics=metrics, claims=[]))
        return _Comparison(Console(), load_science(path), lambda: "cpu", to_markdown, to_svg)._asked_of_baselines

    before = {metrics: judged_by(*metrics) for metrics in (("l2",), ("l2", "nll"), ("l2_r",))}
    monkeypatch.setattr(ModelCard, "decoder_digest", "of another decoder")
    changed = [metrics for metrics, digest in before.items() if judged_by(*metrics) != digest]
    assert changed == [("l2", "nll"), ("l2_r",)]


def test_steps_follow_from_minutes(training_corpus: Path) -> None:
    words = science_of(training_corpus)["objectives"]["words"]
    settings = science_of(
        training_corpus, objectives={"same": words | {"steps_of": "brief"}, "brief": words}, claims=[], seeds=[3],
        minutes=1e-5, calibration_steps=2, clock="cpu", output="brief", metrics=["bpc"],
    )  # fmt: skip
    done = pipeline("compare-objectives", written(training_corpus, settings))
    assert done.returncode == 0, done.stderr
    results = json.loads((training_corpus.parent / "brief/results.json").read_text())
    assert results["steps"] == {"brief": 1} and results["rows"]["brief"]["3"]["steps"] == 1
    assert results["rows"]["same"]["3"]["steps"] == 1 and not folder(training_corpus, "same-calibration").exists()
    assert (folder(training_corpus, "brief-calibration") / "model.json").exists()
    lines = (folder(training_corpus, "brief-calibration") / "metrics.jsonl").read_text().splitlines()
    each = [json.loads(line) for line in lines]
    assert [one["step"] for one in each] == [1, 2] and all(one["cpu_seconds"] > 0 < one["seconds"] for one in each)
    (training_corpus.parent / "brief/results.json").unlink()
    log = folder(training_corpus, "brief-calibration") / "metrics.jsonl"
    for text, why in (
        (lines[0], "does not have the cpu_seconds of 2 steps, by which 1e-05 minutes become steps of brief"),
        (lines[0].replace('"seconds_left": ', '"seconds_left": NaN, "more": '), "line 1 of"),
    ):
        log.write_text(text)
        done = pipeline("compare-objectives", written(training_corpus, settings))
        assert done.returncode == 1 and why in " ".join(done.stderr.split()), done


def test_steps_are_measured_again_when_what_they_follow_from_has_changed(training_corpus: Path) -> None:
    words = science_of(training_corpus)["objectives"]["words"]
    settings = science_of(
        training_corpus, objectives={"timed": words, "as-long": words | {"steps_of": "timed"}}, claims=[], seeds=[4],
        minutes=1e-5, calibration_steps=2, output="timed", metrics=["bpc"],
    )  # fmt: skip
    results = training_corpus.parent / "timed/results.json"

    def comparison(**changes: Any) -> _Comparison:
        science = load_science(written(training_corpus, settings | changes))
        found = _Comparison(Console(file=io.StringIO(), width=500), science, lambda: "cpu", to_markdown, to_svg)
        found.check()
        return found

    first = comparison(calibration_steps=3)
    assert first.results.steps == {}
    as_long = first._config("as-long", 4).train
    assert first.results.steps == {"timed": 1} and as_long and as_long.steps == 1
    assert comparison(calibration_steps=3).results.steps == {"timed": 1}
    slower = [{"train": settings["train"] | {"micro_concepts": 8}}, {"clock": "cpu"}, {"minutes": 1e-4}, {}]
    assert [comparison(**one).results.steps for one in slower] == [{}] * 4
    found = json.loads(results.read_text())
    del found["timed"], found["seal"]
    results.write_text(json.dumps(found))
    assert comparison(calibration_steps=3).results.steps == {}  # of an earlier version
    done = pipeline("compare-objectives", written(training_corpus, settings))  # calibrated again, with 2 steps
    assert done.returncode == 0, done.stderr
    assert json.loads(results.read_text())["timed"]["timed"]["calibration_steps"] == 2
    assert comparison().results.steps == {"timed": 1}
    for changes, why in (
        ({"minutes": 2.0}, "minutes 1e-05 → 2.0"),
        ({"clock": "cpu"}, "clock wall → cpu"),
        (slower[0], "train.micro_concepts 16 → 8"),
    ):
        refused = pipeline("compare-objectives", written(training_corpus, settings | changes))
        assert refused.returncode == 2 and f"{why}. Restore them" in said(refused), refused
        assert "objectives." in said(refused) and "fresh" not in said(refused), refused
    shutil.rmtree(folder(training_corpus, "timed-seed-4"))
    with pytest.raises(ConfigError, match=r"as-long-seed-4: begun with other settings.*minutes 1e-05 → 2\.0"):
        comparison(minutes=2.0)  # its steps are those of the other
    found = json.loads(results.read_text())
    del found["timed"], found["seal"]
    results.write_text(json.dumps(found))
    earlier = comparison(minutes=2.0)
    assert earlier.results.steps == {"timed": 1}
    assert isinstance(earlier.console.file, io.StringIO)
    told = earlier.console.file.getvalue()
    assert "as-long" not in told and "timed: its number of steps, 1, was measured by an earlier version" in told
    shutil.rmtree(folder(training_corpus, "as-long-seed-4"))
    assert comparison(minutes=2.0).results.steps == {}


def test_trainings_of_another_file_are_told_before_anything_is_trained(training_corpus: Path) -> None:
    base = science_of(training_corpus)["objectives"]["base"]
    words = science_of(training_corpus)["objectives"]["words"]
    shared: dict[str, Any] = {"claims": [], "seeds": [6], "metrics": ["nll"]}
    one = science_of(training_corpus, objectives={"theirs": words}, output="one", **shared)
    assert (done := pipeline("compare-objectives", written(training_corpus, one))).returncode == 0, done.stderr
    more = words | {"train": words["train"] | {"clip_norm": 0.5}}
    other = science_of(training_corpus, objectives={"first": base, "theirs": more}, output="another", **shared)
    refused = pipeline("compare-objectives", path := written(training_corpus, other))
    text = said(refused)
    assert refused.returncode == 2 and "objectives.theirs: " in text and "train.clip_norm " in text, refused
    assert "delete this folder" in text and "fresh" not in text and "train.name" not in text
    assert not folder(training_corpus, "first-seed-6").exists()
    shutil.rmtree(arm := folder(training_corpus, "theirs-seed-6"))
    assert (done := pipeline("compare-objectives", path)).returncode == 0, done.stderr
    (arm / "model.safetensors").write_bytes(b"")
    text = " ".join(said(pipeline("compare-objectives", path)).split())
    assert "theirs-seed-6/model.safetensors is not what model.json says" in text and "pipeline train" not in text
    assert f"delete the folder {arm}, and run the comparison again" in text


def test_damaged_results_and_logs_are_told_before_anything_is_trained(training_corpus: Path) -> None:
    words = science_of(training_corpus)["objectives"]["words"]
    settings = science_of(
        training_corpus, objectives={"brief": words}, claims=[], seeds=[3], minutes=1e-5, calibration_steps=2,
        output="told", metrics=["bpc"], train=TRAIN,
    )  # fmt: skip
    path, out = written(training_corpus, settings), training_corpus.parent / "told/results.json"
    row = {"asked": "x", "steps": 1, "figures": {"bpc": {"mean": 1.5}}}
    whole = sealed(json.dumps({"rows": {"brief": {"3": row}}}))
    for damaged, why in (
        (whole.replace(b"1.5", b"1.4"), "it is not the text that its seal was made of"),
        (whole[:-30], "Invalid JSON"),
        *((json.dumps({"rows": {"brief": {"3": row | {"figures": {"bpc": {"mean": mean}}}}}}).encode(), why)
          for mean, why in ((math.nan, "rows.brief.3.figures.bpc.mean: "), (1e300, "mean: Input should be less"))),
        (b'{"steps": {"brief": 0}}', "steps.brief: Input should be greater than or equal to 1"),
    ):  # fmt: skip
        out.parent.mkdir(exist_ok=True)
        out.write_bytes(damaged)
        done = pipeline("compare-objectives", path)
        assert done.returncode == 1 and why in (text := " ".join(done.stderr.split())), done
        assert "told/results.json is damaged" in text and "delete it, or give another output" in text


def test_steps_are_timed_by_the_clock_that_is_asked_for() -> None:
    lines = [{"seconds": 2.0 * one, "cpu_seconds": one} for one in (9.0, 1.0, 1.0, 1.0, 3.0)]
    assert seconds_of_step(lines, "cpu", 0.0) == 1.0 and seconds_of_step(lines, "wall", 0.0) == 2.0
    assert seconds_of_step(lines, "cpu", 0.02) == pytest.approx(0.98 * 1.0 + 0.02 * 3.0)  # the last step fits a head
    assert seconds_of_step(lines[:1], "cpu", 0.0) == 9.0 and seconds_of_step(lines, "cpu", 1.0) == 1.0


def found(**figures: float) -> SeedResult:
    return SeedResult(
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
    figures = [{"nll": Measurement(mean=mean)} for mean in (1.0, 2.0)]
    single = Results(
        rows={row: {"0": SeedResult(asked="x", steps=1, figures=figures[at])} for at, row in enumerate("ab")}
    )
    assert single.verdict(Claim.of("nll(a) < nll(b)")) == ("undecided", "+1, of single figures")
    assert results.verdict(Claim.of("nll(a) < 5 nll(b)"))[1].startswith("+10.5 ±")
    assert results.verdict(Claim.of("5 nll(b) > nll(a)")) == results.verdict(Claim.of("nll(a) < 5 nll(b)"))


def test_differences_are_judged_document_by_document() -> None:
    """Documents that are hard for one row are hard for the other: their difference has a smaller error than either."""
    generator = torch.Generator().manual_seed(1)
    hard = torch.randn(30, generator=generator).repeat_interleave(4)
    document = torch.arange(30).repeat_interleave(4)
    values = [hard + 0.1 * torch.randn(120, generator=generator) + shift for shift in (0.0, 0.2)]
    rows = {}
    for name, each in zip("ab", values, strict=True):
        mean, error, _ = mean_of(each, document)
        moved = (*influences(each, document)[1].tolist(), 0.0, 0.0)  # of the last two no sentence was judged
        rows[name] = {
            "0": SeedResult(asked="x", steps=1, figures={"nll": Measurement(mean=mean, error=error, documents=moved)})
        }
    results = Results.model_validate_json(Results(rows=rows).model_dump_json())
    _, error, _ = mean_of(values[1] - values[0], document)
    verdict, said = results.verdict(Claim.of("nll(a) < nll(b)"))
    assert verdict == "confirmed" and said.endswith(f" ± {2 * error:.2g}")
    assert 4 * 2 * error < math.hypot(*(2 * mean_of(each, document)[1] for each in values))


def test_a_power_law_is_found() -> None:
    sizes = np.array([3e5, 1.6e6, 6e6, 2e7])
    law = fitted(sizes, 40 * sizes**-0.3 + 2)
    assert (law.a, law.alpha, law.b) == pytest.approx((40, 0.3, 2), rel=1e-4)
    assert fitted(sizes, sizes**0.1).a == 0  # it rises
    with pytest.raises(ValueError, match="needs three sizes"):
        fitted(np.array([1.0, 1.0, 2.0]), np.arange(3.0))
    points = [Point(one, 40 * one**-0.3 + 2, 0.0, (0.3, -0.3)) for one in sizes]
    assert alphas(points) == pytest.approx((0.3, 0.3), rel=0.02)  # what moves all alike is b
    low, high = alphas([replace(one, spread=0.05) for one in points])
    assert low < 0.29 and high > 0.31
    rest = [replace(one, documents=(*one.documents, *[0.0] * 9)) for one in points]  # without a judged sentence
    assert alphas([replace(one, documents=rest[0].documents) for one in points]) == alphas(points)


def test_scaling_is_in_the_table() -> None:
    rows = {
        row: {"0": found(nll=40 * size**-0.3 + 2, parameters=size)}
        for row, size in (("a", 1e5), ("b", 1e6), ("c", 1e7))
    }
    settings = load_science(ROOT / "conf/science.yaml").settings.model_copy(
        update={"claims": (), "scaling": (ScalingLaw(metric="nll", rows=("a", "b", "c")),)}
    )
    assert "| nll of a, b, c | 0.10 M, 3.265; 1.00 M, 2.634; 10.00 M, 2.318 | 40 | 0.3 | " in to_markdown(
        settings, Results(rows=rows)
    )
    few = rows | {"b": {seed: found(nll=3.0, parameters=1e6) for seed in ("0", "1")}}
    nll = few["b"]["1"].figures["nll"].model_copy(update={"documents": (1e-3,) * 3})
    few["b"]["1"] = few["b"]["1"].model_copy(update={"figures": few["b"]["1"].figures | {"nll": nll}})
    assert "| nll of a, b, c | not measured on the same documents |" in to_markdown(settings, Results(rows=few))
    del rows["b"]
    assert "| nll of a, b, c | not measured |" in to_markdown(settings, Results(rows=rows))


def test_the_file_that_ships_can_be_read() -> None:
    science = load_science(ROOT / "conf/science.yaml")
    assert len(science.settings.trained) == 17 and isinstance(science.settings.objectives["base"], Objective)
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
        ({"seeds": []}, "seeds is []; allowed: a list of 1 or more. About seeds: each row is trained with each"),
        ({"seeds": [1, 1]}, "seeds are [1, 1]; each stands for a training of its own"),
        ({"claims": ["base beats words"]}, "the claim 'base beats words' is not of the form"),
        ({"claims": ["nll(base) < nll(other)"]}, "is about other; rows are base, ensemble, words, previous sentence"),
        ({"claims": ["ca(base) < ca(words)"]}, "is about ca; the metrics here are l2, nll"),
        ({"metrics": ["l3"]}, "there is no metric l3"),
        ({"metrics": ["mi"]}, "metrics has mi, which needs language_model: gpt2, smollm2 or a card's file"),
        ({"language_model": "gpt5"}, "no language model is called 'gpt5'"),
        ({"split": "tset"}, "split is tset; splits are"),
        ({"minuets": 3}, "unknown key minuets; did you mean minutes? allowed here: corpus"),
        ({"objectives": {"a": {"train": {}, "of": "b"}}}, "a is of b, which is not a row that is trained"),
        ({"objectives": {"a": {"of": "a", "minutes": 1}}}, "give either train, minutes and steps_of, or the row"),
        ({"objectives": {"a": {"minutes": 1, "train": {"steps": 2}}}}, "give one of minutes, steps_of and train.steps"),
        ({"objectives": {"a": {"steps_of": "b"}}}, "a has steps_of b, which is not a row with steps of its own"),
        ({"clock": "sun"}, "clock is \"sun\"; allowed: 'wall' or 'cpu'. About clock: what minutes measure"),
        (
            {"scaling": [{"metric": "nll", "rows": ["base", "words", "ensemble"]}]},
            "scaling is about ensemble, which is",
        ),
        ({"scaling": [{"metric": "nll", "rows": ["base", "words", "base"]}]}, "base, words, base: name each once"),
        ({"scaling": [{"metric": "ca", "rows": ["base", "words", "base"]}]}, "scaling is about ca; the metrics here"),
        ({"train": {"name": "mine"}}, "train.name: comparisons name trainings by their rows and seeds; leave it out"),
        ({"objectives": {"a": {"train": {"name": "mine"}}}}, "objectives.a: train.name: comparisons name trainings by"),
        ({"objectives": {"base": {"train": {"steps": 0}}}}, ": steps is 0; allowed: greater"),
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


def test_mutual_information_is_measured_by_the_language_model_of_the_file(training_corpus: Path) -> None:
    (beside := training_corpus.parent / "language").mkdir()
    write_language_model(beside, ["It rained all night.", "In the morning the river had risen by a metre."])
    rows = {"base": science_of(training_corpus)["objectives"]["base"]}
    settings = science_of(training_corpus, objectives=rows, claims=[], seeds=[0], metrics=["mi"], output="informed")
    done = pipeline("compare-objectives", written(training_corpus, settings | {"language_model": "language/tiny.yaml"}))
    assert done.returncode == 0, done.stderr
    table = (training_corpus.parent / "informed" / "results.md").read_text()
    assert re.search(r"\| base \| 1 \| 1 \| -?\d", table) and "| MI |" in table, table


def test_sampling_that_a_model_does_not_read(training_corpus: Path) -> None:
    settings = science_of(training_corpus)
    settings["objectives"]["ensemble"]["sampling"] = {"guidance": 2.0}
    with pytest.raises(ConfigError, match=r"objectives\.ensemble: train\.sampling\.guidance: models of the kind base"):
        load_science(written(training_corpus, settings))
    assert CARD["kind"] == "base"


def test_the_schedules_of_the_paper_differ_in_the_card_alone() -> None:
    science = load_science(ROOT / "conf/science/schedules.yaml")
    configs = {row: science.config(row, 0, 10).train for row in science.settings.trained}
    assert len(configs) == 10 and len({one.card.diffusion for one in configs.values() if one}) == 9  # and weights
    wide, weighted = configs["sigmoid-wide"], configs["fragility"]
    assert wide and weighted and wide.card.diffusion and weighted.weights == "fragility"
    assert (wide.card.diffusion.scale, wide.card.diffusion.shift) == (3.5, 0.0)
    assert "diffusion" not in wide.pinned() and wide.card.recorded() != weighted.card.recorded()


def test_a_model_without_noise_has_no_schedule(training_corpus: Path) -> None:
    settings = science_of(training_corpus)
    settings["objectives"]["base"]["train"] |= {"diffusion": {"schedule": "cosine"}}
    with pytest.raises(ConfigError, match=r"objectives\.base: small: kind base has no diffusion"):
        load_science(written(training_corpus, settings))


def test_rows_with_plans_are_judged_by_the_documents_of_the_others(training_corpus: Path) -> None:
    base = {"model": str(training_corpus.parent / "small.yaml")}
    rows = {"bare": {"train": base}, "planned": {"train": base | {"plans": "headline"}}}
    settings = science_of(
        training_corpus, objectives=rows, claims=[], seeds=[0], metrics=["l2"], output="planned", sentences=90
    )
    done = pipeline("compare-objectives", written(training_corpus, settings))
    assert done.returncode == 0, done.stderr
    found = json.loads((training_corpus.parent / "planned/results.json").read_text())["rows"]
    l2 = [found[row]["0"]["figures"]["l2"] for row in rows]
    assert len(l2[0]["documents"]) == len(l2[1]["documents"]) > 1 and l2[0]["mean"] != l2[1]["mean"]


def test_the_plans_of_the_paper_are_the_only_difference() -> None:
    science = load_science(ROOT / "conf/science/plans.yaml")
    found = [science.config(row, 0, 10).train for row in ("one-tower", "one-tower-plans")]
    pinned = [one.pinned() for one in found if one]
    assert pinned[1] == pinned[0] | {"plans": "headline"}


def test_comparisons_do_not_count_epochs(training_corpus: Path) -> None:
    settings = science_of(training_corpus, train={"epochs": 2})
    with pytest.raises(ConfigError, match=r"train\.epochs: comparisons count steps"):
        load_science(written(training_corpus, settings))
