"""A request to stop that comes when a training is nearly done: it is finished, and the command goes no further."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.training.worker import _Work
from tests.support.trainings import trained


def test_a_request_in_the_last_step_ends_the_command_behind_the_training(
    made_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Path(shutil.copytree(made_corpus.parent, tmp_path / "copy")) / made_corpus.name
    write = _Work._write_model

    def asked_to_stop(self: _Work, *arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        write(self, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_Work, "_write_model", asked_to_stop)
        trained(corpus, "asked", steps=2)
    assert "is trained: nothing to do" in trained(corpus, "asked", steps=2)
