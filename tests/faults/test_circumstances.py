"""Real commands in unusual circumstances: thousands of small files, two commands at once, a clock that is put back."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training.checkpoint_markers import markers
from pipeline.training.status import read_metrics
from tests.conftest import data_digests, sample_documents, write_config, write_jsonl
from tests.support.cli import PIPELINE, pipeline, said
from tests.support.clocks import following, set_clock
from tests.support.kills import KILLS, USUAL
from tests.support.processes import start
from tests.support.trainings import make_corpus, write_card

pytestmark = pytest.mark.faults

FILES = 10_000 if KILLS > USUAL else 3_000
WRONG = r"-\d+ (s|min|h)\b|\b\d+ h \d\d min|\b([3-9]\d{3}|\d{5,}) s\b"  # durations that jumps of a clock made
TRAIN = {
    "model": "small.yaml", "name": "m", "steps": 60, "batch_concepts": 64, "micro_concepts": 64, "log_every": 1,
    "validate_every": 0, "validation_concepts": 20, "evaluate_sentences": 0, "checkpoint_every": 5,
    "keep_checkpoints": 1,
}  # fmt: skip


def done(*arguments: object) -> str:
    ended = pipeline(*arguments)
    assert ended.returncode == 0, said(ended)
    return " ".join(said(ended).split())


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 600  # of a busy machine
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_thousands_of_small_files(tmp_path: Path) -> None:
    """A run is killed, and later a file comes, one goes, and all are touched: as if it had been so from the start."""
    texts = itertools.cycle(one["text"][:500] for one in sample_documents("libreoffice-eng", 40))
    for number, text in zip(range(FILES), texts, strict=False):
        path = tmp_path / f"in/{number % 100:02d}/{number:05d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}. {text}\n", "utf-8")
    only_sentences = {"autobleu": None, "encode": None, "part_sentences": 5_000, "chunk_bytes": 70_000}
    sources = [{"path": "in", "lang": "eng_Latn"}]
    path = write_config(tmp_path, input=sources, **only_sentences)
    process = start("run", path, die_before=(25, tmp_path / "out"))
    receipts = tmp_path / "out/chunks"
    assert process.wait() == -signal.SIGKILL, process.communicate()
    assert list(receipts.rglob("*.json")), "killed before anything was done"
    done("run", path)
    done("verify", path)
    chunks = len(list(receipts.rglob("*.json")))
    assert len(Corpus(str(tmp_path / "out")).table("doc_id")["doc_id"].unique()) == FILES
    (tmp_path / "in/07/new.txt").write_text("This one is new. It has two sentences.\n")
    (tmp_path / "in/42/00142.txt").unlink()
    plan = json.loads(pipeline("plan", path, "--json").stdout)
    assert 0 < plan["chunks_to_segment"] <= 6 and plan["chunks_to_segment"] < chunks / 3, plan["chunks_to_segment"]
    done("run", path, "--accept-removal")
    for one in (tmp_path / "in").rglob("*.txt"):
        os.utime(one, (1e9, 1e9))
    before = set(receipts.rglob("*.json"))
    assert f"{FILES:,} files have another".replace(",", " ") in done("run", path)
    assert set(receipts.rglob("*.json")) == before, "touched files were segmented again"
    done("run", path, "--set", "output=fresh")
    assert data_digests(tmp_path / "out") == data_digests(tmp_path / "fresh")
    done("verify", path)


def trained_corpus(folder: Path) -> Path:
    path = make_corpus(folder)
    write_card(folder)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"train": TRAIN}))
    return path


def weights(folder: Path) -> bytes:
    return (folder / "out/train/m/model.safetensors").read_bytes()


def test_run_and_train_at_once(tmp_path: Path) -> None:
    """A training keeps the rows with which it began, whatever a run adds, removes or writes again meanwhile."""
    alone = trained_corpus(tmp_path / "alone")
    done("train", alone)
    both = trained_corpus(tmp_path / "both")
    training = start("train", both)
    store = Store(str(tmp_path / "both/out"))
    wait_until(lambda: markers(store, "train/m") or training.poll() is not None)
    assert training.poll() is None, "it was over before: use more steps"
    for number, change in enumerate(((), (), ("--refit", "rvq"))):
        write_jsonl(tmp_path / f"both/in/{number}.jsonl", sample_documents("postgresql-eng", 2 + number))
        done("run", both, "--until", "rvq", *change)
        done("gc", both, "--delete", "--yes")
    other = pipeline("train", both)
    assert training.poll() is not None or "is being trained" in " ".join(said(other).split()), said(other)
    assert training.wait() == 0, training.communicate()[0]
    assert weights(tmp_path / "both") == weights(tmp_path / "alone")
    assert [one["step"] for one in read_metrics(store, "train/m") if one["kind"] == "train"] == list(range(1, 61))
    done("verify", both)


def test_a_clock_that_is_put_back_and_forward(tmp_path: Path) -> None:
    """By hours, again and again, in a run and its training: neither ends, waits or computes anything else."""
    alone = trained_corpus(tmp_path / "alone")
    write_jsonl(tmp_path / "alone/in/more.jsonl", sample_documents("libreoffice-deu", 30))
    done("run", alone)
    jumping = trained_corpus(tmp_path / "jumping")
    write_jsonl(tmp_path / "jumping/in/more.jsonl", sample_documents("libreoffice-deu", 30))
    offset = tmp_path / "offset"
    set_clock(offset, 0)
    store = Store(str(tmp_path / "jumping/out"))
    begun = set(store.folders("runs"))
    process = subprocess.Popen(
        [PIPELINE, "run", str(jumping)], env=following(offset), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    offsets = (3600 * number * (-1) ** number for number in itertools.count(1))  # never the same: no duration is right
    while process.poll() is None:
        if begun < set(store.folders("runs")):  # under way
            set_clock(offset, next(offsets))
        time.sleep(0.25)
    shown = process.communicate()[0]
    assert process.returncode == 0, shown
    (run,) = set(store.folders("runs")) - begun
    lines = [json.loads(line) for path in store.find(f"runs/{run}/events") for line in store.read(path).splitlines()]
    times = [datetime.fromisoformat(line["time"]).timestamp() for line in lines]
    assert any(after - before > 3000 for before, after in itertools.pairwise(times)), "its clock did not jump"
    assert any(after - before < -3000 for before, after in itertools.pairwise(times)), "its clock did not jump back"
    assert "Traceback" not in shown and not re.search(WRONG, shown), shown
    assert data_digests(tmp_path / "jumping/out") == data_digests(tmp_path / "alone/out")
    assert weights(tmp_path / "jumping") == weights(tmp_path / "alone")
    assert "nothing to do" in done("run", jumping).lower()
    for command in ("status", "verify"):
        done(command, jumping)
