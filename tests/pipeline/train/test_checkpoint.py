"""Checkpoints on a real S3 endpoint: whole ones come back bit for bit, half ones are none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.errors import CorpusError
from pipeline.storage.store import Store
from pipeline.train import checkpoint
from tests.pipeline.train.test_step import ALONE, batch, stepper

RUN = "train/x"


def test_on_an_object_store(bucket: str) -> None:
    store, first = Store(f"{bucket}/it"), stepper()
    for step in range(3):
        first.step(step, [(step, batch(5, 3, seed=step))])
        checkpoint.save(store, RUN, step + 1, "pinned", first.losses, first.optimizer, ALONE, keep=2)
    assert [marker.step for marker in checkpoint.markers(store, RUN)] == [2, 3]
    newest = checkpoint.markers(store, RUN)[-1]
    assert {path.rpartition("/")[0] for path in store.find(f"{RUN}/checkpoints") if not path.endswith(".json")} == {
        marker.folder for marker in checkpoint.markers(store, RUN)
    }
    second = stepper()
    checkpoint.load(store, newest, second.losses, second.optimizer, one=True)
    results = [one.step(3, [(3, batch(5, 3, seed=9))]).result() for one in (first, second)]
    assert results[0] == results[1]
    for mine, theirs in zip(first.losses.parameters(), second.losses.parameters(), strict=True):
        assert torch.equal(mine, theirs)

    store.delete(f"{RUN}/checkpoints/step-00000003.json")
    assert checkpoint.interrupted(store, RUN) == [newest.folder]
    with pytest.raises(CorpusError, match="is there already: another training goes on with train/x"):
        checkpoint.save(store, RUN, 2, "pinned", first.losses, first.optimizer, ALONE, keep=2)
    checkpoint.forget(store, RUN)
    assert store.find(RUN) == []


def test_a_checkpoint_that_lost_a_share(tmp_path: Path) -> None:
    store, taken = Store(str(tmp_path)), stepper()
    checkpoint.save(store, RUN, 1, "pinned", taken.losses, taken.optimizer, ALONE, keep=2)
    (marker,) = checkpoint.markers(store, RUN)
    next(tmp_path.rglob("*.distcp")).unlink()
    with pytest.raises(CorpusError, match=r"cannot be read .*delete step-00000001.json .* or train anew with --fresh"):
        checkpoint.load(store, marker, taken.losses, taken.optimizer, one=True)
