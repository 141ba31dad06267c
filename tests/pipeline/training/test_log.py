"""The log of a training: what is said if it cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipeline.base.errors import StorageError
from pipeline.storage.store import Store
from tests.support.trainings import folder, make_corpus, trained


def test_a_full_disk_is_told_by_the_file_that_could_not_be_written_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard's own error names no file, and the record of the failure cannot be written either."""
    corpus = make_corpus(tmp_path)

    def full(*of: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def nor_that(store: Store, run: str, why: str) -> None:
        raise StorageError(f"cannot write {run}/failed.txt")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", full)
    with pytest.raises(StorageError, match=r"train/full/tensorboard: No space left on device; make space on that disk"):
        trained(corpus, "full", steps=2, trackers=["tensorboard"])
    assert "No space left" in (folder(corpus, "full") / "failed.txt").read_text()
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.flush", full)
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.close", full)
    monkeypatch.setattr("pipeline.training.worker.record_failure", nor_that)
    with pytest.raises(StorageError, match="TensorBoard's files"):
        trained(corpus, "full", steps=2, trackers=["tensorboard"])
