"""kill -9 at seeded moments, Ctrl-C, SIGTERM; resumed: nothing lost, nothing twice, the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.corpus import Corpus
from pipeline.state.books import keep_books
from tests.conftest import MakeConfig, data_digests
from tests.pipeline.test_plan import bring_up_to_date
from tests.support.cli import PIPELINE, pipeline

pytestmark = pytest.mark.faults

KILLS = int(os.environ.get("PIPELINE_KILLS", "5"))  # of each launcher


def files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))


def kill_after(start: Callable[[], subprocess.Popen[bytes]], folder: Path, new_files: int, delay: float) -> bool:
    """Start, wait until so many files are new, kill the whole process group. False if it was done before."""
    before = files(folder)
    process = start()
    deadline = time.monotonic() + 600  # of a busy machine
    while files(folder) < before + new_files and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.003)
    time.sleep(delay)
    killed = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return killed


def check_resumed(path: Path, output: Path, expected: dict[str, str], launcher: str) -> None:
    """The same command again brings everything, and leaves nothing that it does not vouch for."""
    last = pipeline("run", path, "--launcher", launcher)
    assert last.returncode == 0, last
    assert data_digests(output) == expected
    corpus = Corpus(str(output))
    books = keep_books(corpus.store, corpus.chunks)
    assert books.complete and not books.problems
    families = {name.partition("/")[0] for name in expected}
    assert sum(len(corpus.store.find(family)) for family in families) == len(expected), "killed attempts left files"


@pytest.mark.parametrize(("launcher", "kills"), [("inline", KILLS), ("local", KILLS)])
def test_killed_and_resumed(make_config: MakeConfig, tmp_path: Path, launcher: str, kills: int) -> None:
    rvq = {"codebooks": 2, "units": 16, "initialization": "kmeans"}
    path = make_config(segment={"method": "spacy-capped", "max_chars": 12}, scaler={}, rvq=rvq)  # many small parts
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
    check_resumed(path, tmp_path / "out", expected, launcher)


def test_killed_while_fitting(make_config: MakeConfig, tmp_path: Path) -> None:
    """As soon as the scaler, its record, the codebooks, and their record lie on disk."""
    path = make_config(scaler={}, rvq={"codebooks": 2, "units": 16, "initialization": "kmeans"}, autobleu=None)
    assert pipeline("run", path, "--set", f"output={tmp_path / 'whole'}").returncode == 0
    for files_there in range(1, 5):
        fits = tmp_path / "out/fits"
        process = subprocess.Popen(
            [PIPELINE, "run", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + 600  # of a busy machine
        while files(fits) < files_there and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    check_resumed(path, tmp_path / "out", data_digests(tmp_path / "whole"), "inline")


@pytest.mark.parametrize(
    ("launcher", "sign"), [("inline", signal.SIGINT), ("local", signal.SIGINT), ("local", signal.SIGTERM)]
)
def test_interrupted_and_resumed(make_config: MakeConfig, tmp_path: Path, launcher: str, sign: signal.Signals) -> None:
    """Ctrl-C as a terminal sends it, to all processes of the group; SIGTERM as a machine that shuts down sends it."""
    path = make_config(segment={"method": "spacy-capped", "max_chars": 30})
    bring_up_to_date(path, f"output={tmp_path / 'whole'}")
    process = subprocess.Popen(
        [PIPELINE, "run", str(path), "--launcher", launcher],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )
    deadline = time.monotonic() + 600  # of a busy machine
    while not list((tmp_path / "out/receipts").rglob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, sign)
    shown, _ = process.communicate(timeout=600)
    assert process.returncode == 130, shown
    assert "Interrupted. What is finished is kept: run the same command again" in shown and "Traceback" not in shown
    (summary,) = (tmp_path / "out/runs").glob("*/summary.json")
    assert json.loads(summary.read_text())["interrupted"]
    with pytest.raises(ProcessLookupError):  # no process of the group is left
        os.killpg(process.pid, 0)
    check_resumed(path, tmp_path / "out", data_digests(tmp_path / "whole"), "inline")
