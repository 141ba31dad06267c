"""`train.epochs`: how many steps they are is decided once, when a training begins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.base.errors import ConfigError
from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training.data.index import read_index
from pipeline.training.record import read_started
from pipeline.training.status import Numbers, read_metrics
from tests.support.cli import pipeline, said
from tests.support.trainings import TRAIN, trained


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    """A corpus.yaml."""
    return training_corpus


def logged(corpus: Path, name: str) -> list[Numbers]:
    return read_metrics(Store(str(corpus.parent / "out")), f"train/{name}")


def test_epochs_decide_on_the_steps_once(corpus: Path) -> None:
    shown = trained(corpus, "epochs", epochs=2.5)
    started = read_started(Store(str(corpus.parent / "out")), "train/epochs")
    index = read_index(Corpus(str(corpus.parent / "out")), started.pinned.indexes[0].digest)
    steps = started.settings.steps
    read = sum(
        one["concepts_per_second"] * one["seconds"] for one in logged(corpus, "epochs") if one["kind"] == "train"
    )
    assert started.pinned.settings["steps"] == steps > 6
    assert read / index.sentences("train") == pytest.approx(2.5, rel=0.1)  # documents are packed whole
    assert steps * TRAIN["batch_concepts"] > 1.05 * read
    assert re.search(rf"{steps} steps, about 2\.[456] epochs", shown)
    assert "nothing to do" in trained(corpus, "epochs", epochs=2.5)
    with pytest.raises(ConfigError, match=r"train.epochs 2.5 → 3.0"):
        trained(corpus, "epochs", epochs=3.0)
    with pytest.raises(ConfigError, match="warmup_steps: 500 is more than the"):
        trained(corpus, "warm", epochs=1.0, steps=600, warmup_steps=500)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.epochs=2", "train.steps=3"], "train.epochs and train.steps both say how long it trains"),
        (["train.epochs=2", "train.corpora=[{path: other}]"], "a mix (corpora) is drawn by weights"),
    ],
)
def test_epochs_that_make_no_sense_are_refused(corpus: Path, settings: list[str], words: str) -> None:
    done = pipeline("plan", corpus, *(one for each in ["train={}", *settings] for one in ("--set", each)))
    assert done.returncode == 2 and words in said(done), said(done)
