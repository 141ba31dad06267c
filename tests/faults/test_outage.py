"""A run on SLURM whose store is away for longer than its jobs wait for it, in each phase: nobody has to do anything."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import fsspec
import pytest

from pipeline.corpus.accounting import compute_accounting
from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training.status import read_metrics, training_status
from tests.conftest import MakeConfig, data_digests
from tests.faults.s3_proxy import S3Proxy
from tests.faults.slurm_runs import SLURM, jobs_of
from tests.faults.test_s3 import SMALL_TRAINING
from tests.support.cli import pipeline
from tests.support.trainings import write_card

pytestmark = pytest.mark.faults

PATIENCE, OUTAGE = 6.0, 20.0  # seconds: 1:100 of a patience of 10 minutes and an outage of half an hour
OUTAGES = {  # the request that the store no longer answers: what its process is
    "PUT /corpus/corpus/receipts/segment": "a task of the pilot",
    "PUT /corpus/corpus/fits": "the task that fits",
    "PUT /corpus/corpus/runs/RUN/phase-3/jobs.json": "the scheduler job that has just queued the main pass",
    "PUT /corpus/corpus/runs/RUN/phase-3/claims/00000.done": "a task of the main pass",
    "PUT /corpus/corpus/runs/RUN/summary.json": "the scheduler job that ends the run",
}


def test_an_outage_in_each_phase_ends_in_the_same_corpus(
    make_config: MakeConfig, bucket: str, tmp_path: Path, slurm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"segment": {"method": "spacy-capped", "max_chars": 40}, "autobleu": None}
    folder = tmp_path / "jobs"
    launcher = SLURM | {"storage_patience": PATIENCE, "folder": str(folder)}
    path = make_config(
        **settings, scaler={}, rvq={"codebooks": 2, "units": 16}, output=f"{bucket}/corpus", launcher=launcher
    )
    whole = pipeline("run", path, "--launcher", "inline", "--set", f"output={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole
    with S3Proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        proxy.outages = [(re.compile(request.replace("RUN", "[^/]+")), OUTAGE) for request in OUTAGES]
        with monkeypatch.context() as through:
            through.setenv("AWS_ENDPOINT_URL", proxy.url)
            assert pipeline("run", path).returncode == 0
        fsspec.get_filesystem_class("s3").clear_instance_cache()  # of clients with the proxy's address
        wait_for_jobs(folder)
    assert not proxy.outages, f"never seen: {proxy.outages}\n{logs(folder)}"
    store = Store(f"{bucket}/corpus")
    (summary,) = (one for one in store.find("runs") if one.endswith("summary.json"))
    assert json.loads(store.read(summary))["done"], logs(folder)
    assert data_digests(f"{bucket}/corpus") == data_digests(tmp_path / "whole")
    corpus = Corpus(f"{bucket}/corpus")
    assert not compute_accounting(store, corpus.chunks).problems
    waited = logs(folder, 10**6).count("queued again in")
    assert waited >= len(OUTAGES), logs(folder)
    assert pipeline("run", path, "--launcher", "inline").returncode == 0, "the lock is still held"


def test_a_training_goes_on_after_an_outage(
    make_config: MakeConfig, bucket: str, tmp_path: Path, slurm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "jobs"
    write_card(tmp_path)
    path = make_config(
        segment={"method": "spacy-capped", "max_chars": 40}, autobleu=None, scaler={}, output=f"{bucket}/corpus",
        split={"validation": 0.3}, train=SMALL_TRAINING | {"model": str(tmp_path / "small.yaml")},
        launcher=SLURM | {"storage_patience": PATIENCE, "folder": str(folder)},
    )  # fmt: skip
    assert pipeline("run", path, "--launcher", "inline", "--set", "train=null").returncode == 0
    with S3Proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        proxy.outages = [(re.compile("PUT /corpus/corpus/train/m/checkpoints/step-00000002"), 600.0)]
        with monkeypatch.context() as through:
            through.setenv("AWS_ENDPOINT_URL", proxy.url)
            assert pipeline("train", path).returncode == 0
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        while "queued again in" not in logs(folder, 10**6):  # the process waits first, then the one that started it
            assert jobs_of(folder), logs(folder)
            time.sleep(0.5)
        assert not proxy.outages
        proxy.come_back()
        wait_for_jobs(folder)
    store = Store(f"{bucket}/corpus")
    assert training_status(store, "train/m").finished, logs(folder)
    assert [one["step"] for one in read_metrics(store, "train/m") if one["kind"] == "train"] == [1, 2, 3, 4]


def wait_for_jobs(folder: Path) -> None:
    deadline = time.monotonic() + 1200
    while jobs_of(folder):
        assert time.monotonic() < deadline, logs(folder)
        time.sleep(0.5)


def logs(folder: Path, most: int = 1500) -> str:
    return "\n".join(f"== {log.name}\n{log.read_text()[-most:]}" for log in sorted(folder.glob("*/*.log")))
