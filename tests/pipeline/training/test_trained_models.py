"""The section of models in reports: states, curves and evaluations of real trainings; damage is told in its place."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import Corpus
from pipeline.quality.report import write_report
from pipeline.run.report_stamp import report_is_current
from pipeline.run.trained_models import POINTS, trained_models
from pipeline.storage.store import Store
from tests.pipeline.quality.test_explore import data_of
from tests.support.chromium import chromium
from tests.support.cli import pipeline, said
from tests.support.hostile import EVIL
from tests.support.trainings import TRAIN, folder, trained

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


def test_a_run_that_ends_with_a_training_shows_it_in_its_report(corpus: Path) -> None:
    model = json.dumps(TRAIN | {"model": str(corpus.parent / "small.yaml"), "name": "last"})
    report = ("--set", "report={interactive: true}")
    assert pipeline("run", corpus, *report).returncode == 0
    change = (*report, "--set", f"train={model}")
    assert "report/index.html is written" in said(pipeline("plan", corpus, *change))
    done = pipeline("run", corpus, *change)
    assert done.returncode == 0 and "Nothing to do" in said(done), said(done)
    pages = corpus.parent / "out/report"
    page = (pages / "index.html").read_text("utf-8")
    assert models_of(page).count("trained, 6 steps") == 2 and ">last<" in page
    assert (pages / "interactive.html").read_text("utf-8").count("trained, 6 steps") == 2
    assert "report/index.html is up to date" in said(pipeline("plan", corpus, *change))
    assert pipeline("run", corpus, *change).returncode == 0
    assert (pages / "index.html").read_text("utf-8") == page
    shutil.rmtree(folder(corpus, "last"))
    shutil.rmtree(pages)


@pytest.fixture
def damaged(corpus: Path) -> Iterator[Path]:
    """The folder of the corpus, while it also has a training of a hostile name and log, and three damaged ones."""
    out, names = corpus.parent / "out", (EVIL_NAME, "no-log", "no-record", "no-table")
    for name in names:
        shutil.copytree(folder(corpus, "first"), out / "train" / name)
    (out / "train/no-log/metrics.jsonl").write_bytes(b'{"kind": "train", "step": 1, "loss": 2.0}\n{"kind": "tra\n')
    (out / "train/no-record/run.json").unlink()
    (out / "train/no-table/evaluation/validation.json").write_bytes(b'{"models": 7}')
    (out / "train/no-table/run.json").write_bytes(b"[]")
    figures = {"l2": {"mean": "x", "error": None}, "ca": {"mean": 10**400, "error": 0.01}, EVIL: 1, "nll": 3}
    table = {"said": EVIL, "models": {EVIL: {"steps": 3, "metrics": figures}}}
    (out / "train" / EVIL_NAME / "evaluation/test.json").write_text(json.dumps(table))
    steps = [10**400 if step == 400 else step for step in range(LONG)]
    lines = [{"kind": "train", "step": step, "loss": 9.0 / (place + 1)} for place, step in enumerate(steps)]
    (out / "train" / EVIL_NAME / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    yield out
    for name in names:
        shutil.rmtree(out / "train" / name)


def test_damage_and_hostile_names_are_told_and_end_nothing(corpus: Path, damaged: Path) -> None:
    page = page_of(corpus)
    section = models_of(page)
    assert section.count("<tr><td") >= 5 + 4 and "trained, 6 steps" in section
    assert "no-log: line 2 of train/no-log/metrics.jsonl" in section
    assert "no-record: its run.json is missing" in section and str(damaged) not in section
    assert "no-table: train/no-table/run.json" in section and "train/no-table/evaluation/validation.json" in section
    assert "&lt;script&gt;window.hacked" in section and "\\u202egnp.exe" in section
    assert "<script" not in page and "<img" not in page and "\u202e" not in page and "nan" not in section.lower()
    curve = trained_models(Store(str(damaged))).trainings[0].training
    assert len(curve.steps) == len(curve.losses) == POINTS and curve.steps == sorted(curve.steps)
    assert len(section) < 300_000


def explored(out: Path) -> tuple[Path, dict[str, Any]]:
    """The interactive page, compared with the same corpus, and its data."""
    done = pipeline("report", out, "--interactive", "--compare", out)
    assert done.returncode == 0, done
    file = out / "report/interactive.html"
    return file, data_of(file.read_text("utf-8"))


@pytest.mark.slow
def test_the_interactive_page_has_the_same(damaged: Path) -> None:
    _, data = explored(damaged)
    found = trained_models(Store(str(damaged)))
    assert [one["name"] for one in data["models"]["curves"]] == [one.name for one in found.trainings if one.drawable]
    assert [one["name"] for one in data["models"]["curves"][1]["series"]] == ["training", "validation"]
    tables = [one for one in data["models"]["blocks"] if one["kind"] == "table"]
    assert [one["title"] for one in tables] == ["", *(table.title for table in found.evaluations)]
    assert data["compared"]["title"] == "Comparison"


@pytest.mark.slow  # a browser starts
def test_models_and_comparison_in_a_browser(damaged: Path) -> None:
    file, data = explored(damaged)
    with chromium() as browser:
        page = browser.page()
        for width, height in ((1280, 900), (400, 800)):
            page.look(width, height, dark=width < 500)
            page.open(file)
            text = page.js("document.getElementById('models-section').textContent")
            assert "<script>window.hacked=1" in text and "line 2 of train/no-log/metrics.jsonl" in text and "±" in text
            canvases = page.js("document.querySelectorAll('#models-section canvas').length")
            assert canvases == len(data["models"]["curves"])
            assert "at step 6" in page.js("document.querySelectorAll('#models-section figcaption')[1].textContent")
            assert "Measures" in page.js("document.getElementById('compared-section').textContent")
            assert page.js("document.documentElement.scrollWidth <= innerWidth")
            assert page.js("typeof window.hacked") == "undefined"
            assert page.messages == [] and set(page.requests) == {file.resolve().as_uri()}


def test_without_trainings_there_is_no_section(made_corpus: Path, tmp_path: Path) -> None:
    out = Corpus(str(made_corpus.parent / "out"))
    assert trained_models(out.store).stamp == ""
    write_report(out, str(tmp_path / "page.html"), trained=trained_models(out.store))
    page = (tmp_path / "page.html").read_text("utf-8")
    assert 'id="models"' not in page and 'name="trainings"' not in page
