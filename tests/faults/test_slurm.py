"""Jobs on SLURM killed, requeued and warned of their time limit at seeded moments: the same corpus in the end.

`PIPELINE_KILLS` (`make faults`) says how often; it is 3 otherwise.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.corpus.runs import newest_view
from pipeline.storage.store import Store
from tests.conftest import MakeConfig, data_digests, sample_documents, write_jsonl
from tests.faults.slurm_runs import SLURM, ended, jobs_of, logs, lose_a_node, running
from tests.support.cli import pipeline
from tests.support.kills import KILLS, files

pytestmark = pytest.mark.faults

KINDS = {  # what happens to a job: what SLURM is told
    "its process is killed": ("scancel", "--signal=KILL", "--batch"),
    "all its processes are killed": ("scancel", "--signal=KILL", "--full"),
    "it is preempted": ("scontrol", "requeue"),
    "its time limit is near": ("scancel", "--signal=USR2", "--batch"),
}


def test_jobs_that_are_killed_or_requeued(make_config: MakeConfig, tmp_path: Path, slurm: None) -> None:
    for name in ("libreoffice-eng", "libreoffice-deu", "libreoffice-rus"):
        documents = sample_documents(name, 12 + 6 * KILLS)
        for first in range(0, len(documents), 6):
            write_jsonl(tmp_path / f"in/{name}-{first}.jsonl", documents[first : first + 6])
    path = make_config(launcher=SLURM, segment={"method": "spacy-capped", "max_chars": 16}, scaler={})
    whole = pipeline("run", path, "--launcher", "inline", "--set", f"output={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole
    output = tmp_path / "out"
    moments = random.Random("SLURM")
    assert pipeline("run", path).returncode == 0
    kills = 0
    while kills < KILLS:
        if not jobs_of(output):
            assert not ended(output)["done"], "the run was over before the last kill: use a larger corpus"
            assert pipeline("run", path).returncode == 0  # resumed
        before = files(output / "receipts")
        while jobs_of(output) and files(output / "receipts") < before + moments.randint(1, 6):
            time.sleep(0.05)
        there = running(output)
        if not there:
            continue
        command = KINDS[moments.choice(list(KINDS))]
        done = subprocess.run([*command, moments.choice(there)], capture_output=True, text=True)
        kills += done.returncode == 0  # not if the job had just ended
    for _ in range(3):
        if ended(output)["done"]:
            break
        assert pipeline("run", path).returncode == 0  # resumed
    assert data_digests(output) == data_digests(tmp_path / "whole"), logs(output)
    store = Store(str(output))
    corpus = Corpus(str(output), newest_view(store))
    accounting = compute_accounting(store, corpus.chunks)
    assert accounting.complete and not accounting.problems
    families = {name.partition("/")[0] for name in data_digests(output)}
    assert sum(len(store.find(family)) for family in families) == len(data_digests(output)), (
        "killed attempts left files"
    )
    assert not jobs_of(output)
    assert pipeline("run", path, "--launcher", "inline").returncode == 0, "the lock is still held"


def test_a_node_that_is_lost(make_config: MakeConfig, tmp_path: Path, slurm: None) -> None:
    """Each of two nodes is lost once while it works; its jobs begin again, and the run ends by itself."""
    documents = sample_documents("libreoffice-eng", 60)
    for first in range(0, len(documents), 5):
        write_jsonl(tmp_path / f"in/{first}.jsonl", documents[first : first + 5])
    launcher = SLURM | {"tasks": 4, "partition": "several"}
    path = make_config(launcher=launcher, segment={"method": "spacy-capped", "max_chars": 16}, scaler={})
    whole = pipeline("run", path, "--launcher", "inline", "--set", f"output={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole
    output = tmp_path / "out"
    assert pipeline("run", path).returncode == 0
    for node, least in (("s1", 1), ("s2", files(tmp_path / "whole/receipts") // 2)):
        deadline = time.monotonic() + 600
        while files(output / "receipts") < least or not running(output, node):
            assert time.monotonic() < deadline and jobs_of(output), logs(output)
            time.sleep(0.05)
        lose_a_node(node)
    assert ended(output)["done"], logs(output)
    assert data_digests(output) == data_digests(tmp_path / "whole"), logs(output)


@pytest.mark.parametrize("sign", [signal.SIGTERM, None])
def test_a_run_whose_submission_does_not_end_well_is_closed(
    make_config: MakeConfig, tmp_path: Path, slurm: None, sign: signal.Signals | None
) -> None:
    """Interrupted while SLURM has its first job already, or refused: no job works for it, and another run may begin."""
    bin_, real, then = tmp_path / "bin", shutil.which("sbatch"), "sleep 60" if sign else "exit 3"
    bin_.mkdir()
    tested = f'case "$*" in *test-only*) exec {real} "$@";; esac'
    sent = f'{real} "$@" && touch {tmp_path}/sent;' if sign else ""
    (bin_ / "sbatch").write_text(f"#!/bin/sh\n{tested}\n{sent} {then}\n")
    (bin_ / "sbatch").chmod(0o755)
    path = make_config(launcher=SLURM)
    environment = os.environ | {"PATH": f"{bin_}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "pipeline", "run", str(path)]
    run = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while sign and not (tmp_path / "sent").exists() and run.poll() is None:
        time.sleep(0.05)
    if sign:
        run.send_signal(sign)
    _, said = run.communicate(timeout=600)
    assert run.returncode == (130 if sign else 1), said
    assert sign or "SLURM refuses job gate-1: sbatch: it ended with code 3" in said, said
    (folder,) = (tmp_path / "out").glob("runs/*")
    summary = json.loads((folder / "summary.json").read_text())
    assert not summary["done"] and ("interrupted" in summary if sign else "refuses" in summary["failures"][0])
    shown = pipeline("status", path).stdout
    assert ("was stopped before its end" if sign else "refuses") in shown, shown
    deadline = time.monotonic() + 600
    while jobs_of(tmp_path / "out"):
        assert time.monotonic() < deadline, logs(tmp_path / "out")
        time.sleep(0.2)
    assert pipeline("run", path).returncode == 0
    assert ended(tmp_path / "out")["done"]
