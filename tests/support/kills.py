"""How often tests kill, and what holds for a corpus whose run was killed and resumed."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from tests.conftest import data_digests
from tests.support.cli import pipeline

USUAL = 3
KILLS = int(os.environ.get("PIPELINE_KILLS", USUAL))  # of each launcher


def files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def check_resumed(path: Path, output: Path, expected: dict[str, str], launcher: str) -> None:
    """The same command again brings everything, and leaves nothing that it does not vouch for."""
    last = pipeline("run", path, "--launcher", launcher, "--set", f"output={output}")
    assert last.returncode == 0, last
    assert data_digests(output) == expected
    corpus = Corpus(str(output))
    accounting = compute_accounting(corpus.store, corpus.chunks)
    assert accounting.complete and not accounting.problems
    families = {name.partition("/")[0] for name in expected}
    assert sum(len(corpus.store.find(family)) for family in families) == len(expected), "killed attempts left files"
