"""Models with plans of a column: trained, continued exactly, the same on two processes, evaluated, and writing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from pipeline.training.model_file import load_model
from tests.pipeline.training.test_training import two_tower
from tests.support.cli import pipeline, said
from tests.support.planned import write_planned
from tests.support.runs import run
from tests.support.trainings import folder, steps_of, take_back_to, trained, write_card


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus.yaml of a corpus with plans, and trainings with them."""
    made = tmp_path_factory.mktemp("given")
    path = write_planned(made, 12, scaler={}, split={"validation": 0.2})
    run(path)
    write_card(made)
    trained(path, "given", plans="column", checkpoint_every=2)
    trained(path, "given-two", plans="column", model=two_tower(path), steps=3, sampling={"steps": 4})
    trained(path, "given-words", plans="column", objective="sonar-llm", steps=2)
    return path


def test_it_says_how_many_have_a_plan_and_continues_exactly(corpus: Path) -> None:
    before = load_model(str(folder(corpus, "given")))[0].state_dict()
    take_back_to(corpus, "given", 2)
    trained(corpus, "given", plans="column", checkpoint_every=2)
    after = load_model(str(folder(corpus, "given")))[0].state_dict()
    assert all(torch.equal(one, after[name]) for name, one in before.items())
    shown = trained(corpus, "headline", plans="headline", steps=2)
    assert "paragraphs have a plan" not in shown
    shown = trained(corpus, "again", plans="column", steps=2)
    assert re.search(r"^\d+ of \d+ paragraphs have a plan$", shown, re.M)
    assert steps_of(corpus, "again") != steps_of(corpus, "headline")


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(corpus: Path) -> None:
    settings = ("plans=column", "steps=3", "batch_concepts=128", "micro_concepts=64", "log_every=1", "warmup_steps=0")
    chosen = (f"model={corpus.parent}/small.yaml", *settings)
    options = [part for one in chosen for part in ("--set", f"train.{one}")]
    for processes in (1, 2):
        done = pipeline("train", corpus, "--set", f"train.name=by-{processes}", "--processes", processes, *options)
        assert done.returncode == 0, said(done)
    one, two = (steps_of(corpus, f"by-{processes}") for processes in (1, 2))
    assert len(one) == 3 and all(a == pytest.approx(b, rel=1e-4) for a, b in zip(one, two, strict=True))


def test_it_is_evaluated_and_writes(corpus: Path) -> None:
    names = ["given", "given-two", "given-words"]
    models = [part for name in names for part in ("--model", name)]
    done = pipeline("evaluate", corpus, "--split", "validation", *models)
    assert done.returncode == 0, said(done)
    counted = re.findall(r"^(\S+): \d+ of \d+ ends of paragraphs were predicted", done.stdout, re.M)
    assert counted == ["given", "given-two"]
    for name in names:
        options = ("--model", name, "--split", "validation", "--documents", 2, "--sentences", 2)
        done = pipeline("generate", corpus, *options)
        assert done.returncode == 0 and done.stdout.count("stopped:") == 2, said(done)
    done = pipeline("index", corpus, "--given-plans")
    assert done.returncode == 0 and "paragraphs have a plan" in done.stdout


def test_changed_plans_are_another_index_and_gc_keeps_what_a_model_learned(corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(corpus.parent, tmp_path / "copy")
    corpus = tmp_path / "copy" / corpus.name
    out = corpus.parent / "out"
    before = set((out / "plan-embeddings").rglob("*.parquet"))
    file = corpus.parent / "in" / "texts.jsonl"
    file.write_text(file.read_text().replace("A window 1", "Another window"))
    run(corpus)
    take_back_to(corpus, "given", 4)
    assert pipeline("gc", corpus, "--delete", "--yes").returncode == 0
    assert before < set((out / "plan-embeddings").rglob("*.parquet"))
    shown = trained(corpus, "given", plans="column", checkpoint_every=2)
    assert "the corpus has changed since train/given began" in shown
