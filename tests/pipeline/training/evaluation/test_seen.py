"""Held-out documents that a model was trained on are left out."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.config.select import SelectSettings
from pipeline.config.train import TrainSettings
from pipeline.storage import retry
from pipeline.storage.remote import AwayError
from pipeline.training.data.index import make_index
from pipeline.training.evaluation.evaluate import EvaluateOptions, evaluate
from pipeline.training.evaluation.held_out import held_out
from pipeline.training.evaluation.seen import _index_at
from pipeline.training.record import PinnedIndex
from tests.pipeline.training.evaluation.corpora import CARDS, CONTEXT, make_corpus, write_model


def beginning_with(place: str) -> dict[str, object]:
    return TrainSettings(steps=7).pinned() | {"init_from": place}


def test_documents_that_a_model_was_trained_on_are_left_out(tmp_path: Path) -> None:
    """The split has changed since, so that some of them are in the split test now."""
    corpus = make_corpus(tmp_path, {"validation": 0.1, "test": 0.2})
    began = make_index(corpus, SelectSettings())
    pinned = [PinnedIndex(url="", digest=began.digest, weight=1.0)]
    write_model(corpus, "of-then", CARDS["base"], indexes=pinned)
    write_model(corpus, "of-nobody", CARDS["base"])
    first = f"{corpus.url}/train/of-then"
    write_model(corpus, "tuned", CARDS["base"], settings=beginning_with(first))
    write_model(corpus, "of-itself", CARDS["base"], settings=beginning_with(f"{corpus.url}/train/of-itself"))
    write_model(corpus, "of-a-lost-one", CARDS["base"], settings=beginning_with(f"{corpus.url}/train/lost"))
    shutil.copytree(Path(corpus.url) / "train/of-then", tmp_path / "models/exported")
    trained_on = set(held_out(began, "train", max_sentences=CONTEXT, sentences=10**6).ids)
    corpus = make_corpus(tmp_path, {"validation": 0.1, "test": 0.7})
    index = make_index(corpus, SelectSettings())
    held = held_out(index, "test", max_sentences=CONTEXT, sentences=10**6)
    seen = trained_on & set(held.ids)
    assert seen and set(held.ids) - seen

    def evaluated(name: str) -> tuple[str, int]:
        told = io.StringIO()
        options = EvaluateOptions(models=(name,), split="test", sentences=10**6, metrics="l2")
        rows = evaluate(Console(file=told, width=500), corpus, options, lambda: "cpu", lambda: index)
        return told.getvalue(), rows[name.rpartition("/")[2]].figures["l2"].sentences

    shown = {name: evaluated(name) for name in ("of-then", "of-nobody")}
    assert f"left out: {len(seen)} documents of the split test on which of-then was trained" in shown["of-then"][0]
    assert "left out" not in shown["of-nobody"][0]
    for name in ("tuned", str(tmp_path / "models/exported")):  # by its initial weights; by an index that is here
        assert f"left out: {len(seen)} documents" in evaluated(name)[0], name
    assert "left out" not in evaluated("of-itself")[0] and "not all here" not in evaluated("of-itself")[0]
    assert "of-a-lost-one: what it was trained on is not all here" in evaluated("of-a-lost-one")[0]
    fewer = held.without([one in seen for one in held.ids])
    assert set(fewer.ids) == set(held.ids) - seen and len(fewer.texts) == len(fewer.embeddings) == fewer.lengths.sum()
    assert [shown[name][1] for name in ("of-then", "of-nobody")] == [len(fewer.judged), len(held.judged)]
    for path in began.parts["documents"].to_pylist():
        corpus.store.delete(path)
    assert "of-then: what it was trained on is not all here" in evaluated("of-then")[0]


def test_a_store_that_is_away_is_not_taken_for_an_index_that_is_gone(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _index_at(f"{bucket}/nowhere", "0" * 32) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    retry.filesystem(bucket)[0].clear_instance_cache()  # of the client with the good address
    monkeypatch.setattr(retry, "current", retry.RetryPolicy(0.5))
    with pytest.raises(AwayError, match="EndpointConnectionError"):
        _index_at(f"{bucket}/nowhere", "0" * 32)
