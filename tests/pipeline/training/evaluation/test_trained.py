"""Models that are evaluated: where their tables go."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.base.errors import StorageError
from pipeline.training.evaluation.evaluate import EvaluateOptions, evaluate
from pipeline.training.evaluation.trained import check_can_write, places_of
from pipeline.training.status import EVALUATION
from stages.lcm.card import LcmCard
from tests.pipeline.training.evaluation.corpora import make_corpus, write_model
from tests.support.rights import without_rights_of_root
from tests.support.trainings import CARD


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_computed(tmp_path: Path) -> None:
    def computes() -> Any:
        raise AssertionError

    corpus = make_corpus(tmp_path, {"validation": 0.3, "test": 0.3})
    model = tmp_path / "out/train/m"
    (model / EVALUATION).mkdir(parents=True)
    options = EvaluateOptions(models=(str(model),))
    with without_rights_of_root():
        check_can_write([str(model), str(model.parent / "none"), "s3://bucket/train/m"])
        for folder in (model / EVALUATION, model):  # the model's own, once it has no tables
            folder.chmod(0o500)
            with pytest.raises(StorageError, match=rf"{folder} cannot be written.* evaluate a copy of the corpus"):
                evaluate(Console(file=io.StringIO()), corpus, options, computes, computes)
            folder.chmod(0o700)
            if folder != model:
                folder.rmdir()


def test_models_are_named_as_status_names_them(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path, {"validation": 0.3, "test": 0.3})
    write_model(corpus, "a", LcmCard.model_validate(CARD))
    place = f"{corpus.url}/train/a"
    assert places_of(corpus, ("a", "train/a", "elsewhere/train/a", "./train/b")) == [
        place,
        "elsewhere/train/a",
        "./train/b",
    ]
    assert places_of(corpus, ("train/b",)) == [f"{corpus.url}/train/b"], "which is told as missing there"
    assert places_of(corpus, ()) == [place]
