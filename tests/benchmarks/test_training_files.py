"""Embeddings that benchmarks make up are read by the loader as those of a corpus are."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import training_files
from benchmarks.training_files import made_up_index
from pipeline.training.data.index import TrainingSource
from pipeline.training.data.loader import Loader


def test_the_loader_reads_every_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_files, "PART", 200)
    index = made_up_index(tmp_path, 500, 16, 40, (2, 8))
    loader = Loader([TrainingSource(index)], split="train", max_sentences=40, micro_concepts=100, codes=True, epochs=1)
    batches = [batch for _, batch in loader]
    lengths = [length for batch in batches for length in batch.lengths.tolist()]
    assert len(index.parts) == 3 and sum(lengths) == loader.sentences >= 500
    assert len(lengths) == index.about.splits["train"][0] and min(lengths) >= 20 and max(lengths) <= 40
    for batch in batches:
        assert batch.embeddings.shape == (batch.sentences, 16) and batch.embeddings.any(dim=1).all()
        assert batch.codes is not None and batch.codes.shape == (batch.sentences, 2) and int(batch.codes.max()) < 8
        assert batch.layout is not None and batch.layout.places.is_pinned() is False
