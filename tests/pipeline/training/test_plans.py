"""Models with plans: they are trained, continued exactly, evaluated on the same sentences as others, and write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from pipeline.training.model_file import load_model
from tests.pipeline.training.test_training import two_tower
from tests.support.cli import pipeline, said
from tests.support.trainings import folder, take_back_to, trained, write_card

TEXT = "The file was saved. It is on the disk.\n\nOpen it again. Then close it."


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    """With models that were trained with plans, and one without."""
    trained(training_corpus, "plain", steps=3)
    trained(training_corpus, "planned", plans="headline", checkpoint_every=2)
    sampling = {"steps": 4}
    two = two_tower(training_corpus)
    trained(training_corpus, "planned-two", plans="headline", model=two, steps=3, sampling=sampling)
    trained(training_corpus, "planned-words", plans="headline", objective="sonar-llm", steps=2)
    quant = write_card(training_corpus.parent, "quant", kind="quant-d")
    trained(training_corpus, "planned-codes", plans="headline", model=str(quant), steps=3)
    return training_corpus


def test_a_training_with_plans_continues_exactly_and_is_another_than_one_without(corpus: Path) -> None:
    before = load_model(str(folder(corpus, "planned")))[0].state_dict()
    take_back_to(corpus, "planned", 2)
    trained(corpus, "planned", plans="headline", checkpoint_every=2)
    after = load_model(str(folder(corpus, "planned")))[0].state_dict()
    assert all(torch.equal(one, after[name]) for name, one in before.items())
    pinned = [json.loads((folder(corpus, name) / "run.json").read_text())["pinned"] for name in ("plain", "planned")]
    assert "plans" not in pinned[0]["settings"] and pinned[1]["settings"]["plans"] == "headline"
    assert pinned[0]["indexes"][0]["digest"] != pinned[1]["indexes"][0]["digest"]
    refused = pipeline("train", corpus, "--set", "train.name=plain", "--set", f"train.model={corpus.parent}/small.yaml",
                       "--set", "train.plans=headline")  # fmt: skip
    assert refused.returncode == 2 and "plans None → headline" in said(refused)


def test_all_are_evaluated_on_the_same_sentences(corpus: Path) -> None:
    names = ["plain", "planned", "planned-two", "planned-words", "planned-codes"]
    models = [part for name in names for part in ("--model", name)]
    done = pipeline("evaluate", corpus, "--split", "validation", *models)
    assert done.returncode == 0, said(done)
    assert done.stdout.count("since plans and breaks take room in a context") == 1
    counted = ["planned", "planned-two", "planned-codes"]
    assert re.findall(r"^(\S+): \d+ of \d+ ends of paragraphs were predicted", done.stdout, re.M) == counted
    found = json.loads((folder(corpus, "plain") / "evaluation" / "validation.json").read_text())["models"]
    assert len({one["metrics"]["l2"]["sentences"] for name, one in found.items() if name in names}) == 1
    assert [name for name in names if found[name].get("breaks", {}).get("ends", 0) > 3] == counted


@pytest.mark.parametrize("model", ["planned", "planned-two", "planned-words", "planned-codes"])
def test_it_continues_documents_and_texts_with_and_without_its_corpus(corpus: Path, tmp_path: Path, model: str) -> None:
    done = pipeline("generate", corpus, "--model", model, "--split", "validation", "--documents", 2, "--sentences", 3)
    assert done.returncode == 0 and done.stdout.count("stopped:") == 2, said(done)
    (tmp_path / "prompt.txt").write_text(TEXT)
    options = ("--prompt", tmp_path / "prompt.txt", "--sentences", 3, "--seed", 4)
    done = pipeline("generate", corpus, "--model", model, *options)
    assert done.returncode == 0, said(done)
    own = tmp_path / "own"
    exported = pipeline("export-model", corpus, "--model", model, "--to", own, "--licence", "cc0-1.0")
    assert exported.returncode == 0, said(exported)
    alone = pipeline("generate", "--model", own, *options)
    assert alone.returncode == 0 and alone.stdout == done.stdout, said(alone)


def test_a_token_model_has_no_plans(corpus: Path) -> None:
    done = pipeline("plan", corpus, "--set", "train.model=lcm-token-lm-tiny", "--set", "train.plans=headline")
    assert done.returncode == 2 and "train.plans" in said(done) and "plans are concepts" in said(done)
