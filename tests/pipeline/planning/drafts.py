"""Runs `pipeline init` in the folder of a test, and has texts for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.load import load_config
from pipeline.config.run_config import RunConfig
from tests.support.cli import pipeline, said

ENGLISH = "The market opens at seven, and by nine the best bread is gone. My sister always comes too late for that."


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to the folder of the test; a module whose tests need this imports the fixture."""
    monkeypatch.chdir(tmp_path)


def drafted(*arguments: object) -> RunConfig:
    """The configuration that `pipeline init` writes for these arguments."""
    done = pipeline("init", *arguments)
    assert done.returncode == 0, said(done)
    return load_config("corpus.yaml")
