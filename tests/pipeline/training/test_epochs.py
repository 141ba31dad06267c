"""`train.epochs`: how many steps they are is decided once, when a training begins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.errors import ConfigError
from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from pipeline.config.select import SelectSettings
from pipeline.corpus.reader import Corpus
from pipeline.planning.section_checks import training_problems
from pipeline.storage.store import Store
from pipeline.training.data.index import make_index, read_index
from pipeline.training.data.order import MEASURED, MEASURED_SENTENCES, MicroBatch, ShuffleBuffer, mean_sentences, pack
from pipeline.training.data.sequences import Sequences
from pipeline.training.record import read_started
from pipeline.training.status import Numbers, read_metrics
from tests.support.cli import pipeline, said
from tests.support.trainings import TRAIN, take_back_to, trained


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
        trained(corpus, "warm", epochs=1.0, warmup_steps=500)


def test_a_training_keeps_the_steps_that_its_epochs_were_when_it_began(corpus: Path) -> None:
    """Also where they would be others now, as of one that began when micro-batches were taken for full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.training.run.mean_sentences", lambda *rest: float(TRAIN["micro_concepts"]))
        trained(corpus, "begun", epochs=2.0, checkpoint_every=2)
    store = Store(str(corpus.parent / "out"))
    before = read_started(store, "train/begun")
    take_back_to(corpus, "begun", before.settings.steps - 2)
    shown = trained(corpus, "begun", epochs=2.0, checkpoint_every=2)
    assert f"resuming from step {before.settings.steps - 2} of {before.settings.steps}" in shown
    after = read_started(store, "train/begun")
    assert after.settings.steps == before.settings.steps and after.pinned.digest == before.pinned.digest
    trained(corpus, "begins-now", epochs=2.0)
    assert read_started(store, "train/begins-now").settings.steps > before.settings.steps


@pytest.mark.parametrize("micro_concepts", [16, 2_000, 200_000])
def test_it_takes_few_sentences_to_tell_how_full_micro_batches_are(corpus: Path, micro_concepts: int) -> None:
    """A small corpus is read thousands of times for a large one."""
    index = make_index(Corpus(str(corpus.parent / "out")), SelectSettings())
    packed: list[int] = []

    def counted(buffers: Iterator[ShuffleBuffer], most: int) -> Iterator[MicroBatch]:
        for plan in pack(buffers, most):
            packed.append(sum(part.count for part in plan))
            yield plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.training.data.order.pack", counted)
        mean = mean_sentences(Sequences.of(index, "train"), 16, micro_concepts, 0)
    assert mean == sum(packed) / len(packed) and micro_concepts - 16 < mean <= micro_concepts
    assert len(packed) <= MEASURED and sum(packed) <= MEASURED_SENTENCES


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.epochs=2", "train.steps=3"], "train.epochs and train.steps both say how long it trains"),
        (["train.epochs=2", "train.corpora=[{path: other}]"], "a mix (corpora) is drawn by weights"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "train"])
def test_epochs_that_make_no_sense_are_refused(corpus: Path, command: str, settings: list[str], words: str) -> None:
    done = pipeline(command, corpus, *(one for each in ["train={}", *settings] for one in ("--set", each)))
    assert done.returncode == 2 and words in said(done), said(done)


def test_epochs_take_the_place_of_steps_that_a_file_gives(corpus: Path) -> None:
    """And a configuration that a run recorded, which names the default of steps, too, is not refused."""
    config = load_config(corpus, ["train.steps=3", "train.epochs=2", "train.steps=null"])
    assert config.train and "steps" not in config.train.model_fields_set and not list(training_problems(config))
    assert list(training_problems(load_config(corpus, ["train.steps=3", "train.epochs=2"])))
    recorded = RunConfig.model_validate_json(config.model_dump_json())
    assert not list(training_problems(recorded))
