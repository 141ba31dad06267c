"""kill -9 at seeded moments, resumed: nothing lost, nothing twice, the same bytes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.books import keep_books
from pipeline.corpus import Corpus
from tests.conftest import MakeConfig, data_digests
from tests.pipeline.test_cli import PIPELINE, pipeline

INLINE_KILLS, LOCAL_KILLS = 8, 2


def files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def kill_after(start: Callable[[], subprocess.Popen[bytes]], folder: Path, new_files: int, delay: float) -> bool:
    """Start, wait until so many files are new, kill the whole process group. False if it was done before."""
    before = files(folder)
    process = start()
    deadline = time.monotonic() + 120
    while files(folder) < before + new_files and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.003)
    time.sleep(delay)
    killed = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return killed


@pytest.mark.parametrize(("launcher", "kills"), [("inline", INLINE_KILLS), ("local", LOCAL_KILLS)])
def test_killed_and_resumed(make_config: MakeConfig, tmp_path: Path, launcher: str, kills: int) -> None:
    path = make_config(segment={"max_chars": 30})  # many small parts
    assert pipeline("run", path, "--set", f"output={tmp_path / 'whole'}").returncode == 0
    expected = data_digests(tmp_path / "whole")

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [PIPELINE, "run", str(path), "--launcher", launcher],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    moments = random.Random(f"kill {launcher}")
    killed = 0
    for _ in range(kills):
        # a run begins with 2 to 7 files of its own; a part brings 9 (5 of data, 3 receipts, 1 mark of its start)
        killed += kill_after(start, tmp_path / "out", moments.randint(4, 12), moments.uniform(0, 0.03))
    assert killed == kills, "the run was over before the last kill: use a larger corpus"
    last = pipeline("run", path, "--launcher", launcher)
    assert last.returncode == 0, last
    assert data_digests(tmp_path / "out") == expected
    corpus = Corpus(str(tmp_path / "out"))
    books = keep_books(corpus.store, corpus.chunks)
    assert books.complete and not books.problems
    data = [
        name
        for family in ("documents", "sentences", "embeddings", "status", "autobleu")
        for name in corpus.store.find(family)
    ]
    assert len(data) == len(expected), "files of killed attempts stayed"
