"""A small real corpus for trainers: all is fitted, answers are marked, parts have several row groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.storage import layout
from tests.conftest import sample_documents, write_config, write_jsonl
from tests.support.corpora import made_once
from tests.support.runs import run

ROW_GROUP_ROWS = 16  # so that parts of about 100 sentences have several spans
FRAGILITY = {"sample": {"rows": 150}, "noise_levels": [0.9], "length_extra": 1, "length_factor": 1.0}
FITS = {"scaler": {}, "rvq": {"codebooks": 3, "units": 16}, "fragility": FRAGILITY, "predictor": {"epochs": 2}}


def make_corpus(folder: Path, documents: int = 20, **sections: object) -> Corpus:
    """Of so many documents; in every third the answer begins at its 200th code point."""
    some = [*sample_documents("libreoffice-eng", documents // 2), *sample_documents("libreoffice-deu", documents // 2)]
    for number, one in enumerate(some):
        one["answer"] = None if number % 3 else 200
    write_jsonl(folder / "in.jsonl", some)
    source = {"path": "in.jsonl", "id": "id", "lang": {"column": "lang"}, "keep": ["title", "answer"]}
    settings = {"split": {"validation": 0.2, "test": 0.1}, "autobleu": None}
    run(write_config(folder, **({"input": [source]} | settings | sections)))
    return Corpus(str(folder / "out"))


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a corpus with codes and weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        return made_once(tmp_path_factory, "trained", lambda folder: make_corpus(folder, **FITS)) / "out"


@pytest.fixture
def corpus(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """That corpus."""
    monkeypatch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    return Corpus(str(finished))
