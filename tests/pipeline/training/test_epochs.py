"""`train.epochs`: how many steps they are is decided once, when a training begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.base.errors import ConfigError
from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training.data.index import read_index
from pipeline.training.record import read_started
from tests.support.cli import pipeline, said
from tests.support.trainings import TRAIN, trained


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    """A corpus.yaml."""
    return training_corpus


def test_epochs_decide_on_the_steps_once(corpus: Path) -> None:
    shown = trained(corpus, "epochs", epochs=2.5)
    started = read_started(Store(str(corpus.parent / "out")), "train/epochs")
    index = read_index(Corpus(str(corpus.parent / "out")), started.pinned.indexes[0].digest)
    steps = round(2.5 * index.sentences("train") / TRAIN["batch_concepts"])
    assert started.settings.steps == started.pinned.settings["steps"] == steps > 6
    assert f"{steps} steps" in shown and f"about {steps * 128 / index.sentences('train'):.1f} epochs" in shown
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
