"""The section of models in reports: states, curves and evaluations of real trainings; damage is told in its place."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.quality.report import write_report
from pipeline.run.report_stamp import report_is_current
from pipeline.run.trained_models import POINTS, trained_models
from pipeline.storage.store import Store
from tests.support.cli import pipeline, said
from tests.support.hostile import EVIL
from tests.support.trainings import folder, trained

EVIL_NAME = EVIL.replace("/", "∕")
LONG = 1000


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    """The corpus.yaml of a corpus with a training, that is evaluated."""
    trained(training_corpus, "first", validate_every=2)
    done = pipeline("evaluate", training_corpus, "--split", "validation", "--metrics", "l2,ca")
    assert done.returncode == 0, done
    return training_corpus


def page_of(corpus: Path) -> str:
    done = pipeline("report", corpus.parent / "out")
    assert done.returncode == 0, done
    return (corpus.parent / "out/report/index.html").read_text("utf-8")


def models_of(page: str) -> str:
    (section,) = re.findall(r'<section id="models">.*?</section>', page, re.DOTALL)
    return str(section)


def test_a_training_is_shown_with_its_curve_and_evaluation(corpus: Path) -> None:
    section = models_of(page_of(corpus))
    assert "trained, 6 steps" in section and section.count("<svg") == 1
    assert re.search(r"validation: \d+ sentences of \d+ documents", section)
    table = json.loads((folder(corpus, "first") / "evaluation/validation.json").read_text())["models"]
    for name, one in table.items():
        mean, error = (one["metrics"]["l2"][key] for key in ("mean", "error"))
        assert f"{mean:.2f} ±{2 * error:.2f}" in section and name in section
    found = trained_models(Store(str(corpus.parent / "out"))).trainings
    assert [one.name for one in found] == ["first"] and found[0].training.steps == [1, 2, 3, 4, 5, 6]
    assert found[0].validation.steps == [2, 4, 6] and found[0].validation_loss != "–"


def test_a_run_writes_the_report_again_once_a_model_is_finished_or_evaluated(corpus: Path) -> None:
    out = corpus.parent / "out"
    page = out / "report/index.html"
    change = ("--set", "report={}")
    assert pipeline("run", corpus, *change).returncode == 0
    before = page.read_bytes()
    assert "report/index.html is up to date" in said(pipeline("plan", corpus, *change))
    assert pipeline("run", corpus, *change).returncode == 0 and page.read_bytes() == before
    log = folder(corpus, "first") / "metrics.jsonl"  # of a training under way
    logged = log.read_bytes()
    log.write_bytes(logged[: logged.index(b"\n") + 1])
    assert "report/index.html is up to date" in said(pipeline("plan", corpus, *change))
    log.write_bytes(logged)
    trained(corpus, "second")
    assert "report/index.html is written" in said(pipeline("plan", corpus, *change))
    done = pipeline("run", corpus, *change)
    assert done.returncode == 0 and "Nothing to do" in said(done) and "report:" in said(done), said(done)
    both = page.read_bytes()
    assert models_of(both.decode()).count("trained, 6 steps") == 2 and b">second<" in both
    assert pipeline("run", corpus, *change).returncode == 0 and page.read_bytes() == both
    shutil.rmtree(folder(corpus, "second"))
    assert not report_is_current(Store(str(out)))
    assert pipeline("run", corpus, *change).returncode == 0 and page.read_bytes() == before


def test_damage_and_hostile_names_are_told_and_end_nothing(corpus: Path) -> None:
    out = corpus.parent / "out"
    for name in (EVIL_NAME, "no-log", "no-record", "no-table"):
        shutil.copytree(folder(corpus, "first"), out / "train" / name)
    try:
        (out / "train/no-log/metrics.jsonl").write_bytes(b'{"kind": "train", "step": 1, "loss": 2.0}\n{"kind": "tra\n')
        (out / "train/no-record/run.json").unlink()
        (out / "train/no-table/evaluation/validation.json").write_bytes(b'{"models": 7}')
        (out / "train/no-table/run.json").write_bytes(b"[]")
        figures = {"l2": {"mean": "x", "error": None}, "ca": {"mean": 10**400, "error": 0.01}, EVIL: 1, "nll": 3}
        table = {"said": EVIL, "models": {EVIL: {"steps": 3, "metrics": figures}}}
        (out / "train" / EVIL_NAME / "evaluation/test.json").write_text(json.dumps(table))
        lines = [
            {"kind": "train", "step": 10**step if step == 400 else step, "loss": 9.0 / (step + 1)}
            for step in range(LONG)
        ]
        (out / "train" / EVIL_NAME / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        page = page_of(corpus)
        section = models_of(page)
        assert section.count("<tr><td") >= 5 + 4 and "trained, 6 steps" in section
        assert "no-log: line 2 of train/no-log/metrics.jsonl" in section
        assert "no-record: its run.json is missing" in section and str(out) not in section
        assert "no-table: train/no-table/run.json" in section and "train/no-table/evaluation/validation.json" in section
        assert "&lt;script&gt;window.hacked" in section and "\\u202egnp.exe" in section
        assert "<script" not in page and "<img" not in page and "\u202e" not in page and "nan" not in section.lower()
        curve = trained_models(Store(str(out))).trainings[0].training
        assert len(curve.steps) == len(curve.losses) == POINTS and curve.steps == sorted(curve.steps)
        assert len(section) < 300_000
    finally:
        for name in (EVIL_NAME, "no-log", "no-record", "no-table"):
            shutil.rmtree(out / "train" / name)


def test_without_trainings_there_is_no_section(made_corpus: Path, tmp_path: Path) -> None:
    out = Corpus(str(made_corpus.parent / "out"))
    assert trained_models(out.store).stamp == ""
    write_report(out, str(tmp_path / "page.html"), trained=trained_models(out.store))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert 'id="models"' not in page and 'name="trainings"' not in page
