"""A finished corpus for exports."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import Corpus
from pipeline.storage import layout
from tests.support.corpora import ROW_GROUP_ROWS, made_once, make_corpus


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with several row groups a part; exports have small row groups too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
        return made_once(tmp_path_factory, "export", make_corpus) / "out"


@pytest.fixture
def corpus(finished: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setattr(layout, "ROW_GROUP_ROWS", ROW_GROUP_ROWS)
    return Corpus(str(finished))
