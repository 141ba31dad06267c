"""The corpora that the page is tried on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.storage import layout
from tests.support.corpora import ROW_GROUP_ROWS, made_once, make_corpus


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        return made_once(tmp_path_factory, "export", make_corpus) / "out"  # that of the exports


@pytest.fixture
def corpus(grouped: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    """A corpus of several parts, each of several row groups; half of the rows has a score, some documents a title."""
    monkeypatch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    corpus = Corpus(str(grouped))
    assert len(corpus.parts) > 2 and corpus.rows > 6 * ROW_GROUP_ROWS
    return corpus
