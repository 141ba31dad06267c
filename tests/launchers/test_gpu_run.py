"""A whole run on the made-up GPU of `tests/support/one_gpu`: every stage, fit and training that would use a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.corpus.reader import Corpus
from pipeline.storage.store import Store
from pipeline.training.status import read_metrics
from tests.conftest import MakeConfig, sample_documents, write_jsonl
from tests.support.one_gpu import environment
from tests.support.runs import run
from tests.support.trainings import CARD, TRAIN

FLOAT32 = {"precision": "float32"}
SECTIONS: dict[str, Any] = {
    "split": {"validation": 0.3, "test": 0.1},
    "segment": {"method": "sat-capped", "sat_only": True, "max_chars": 80, **FLOAT32},
    "autobleu": {"length_extra": 1, "length_factor": 1.0, **FLOAT32},
    "fragility": {"sample": 0.9, "noise_levels": [0.5], "length_extra": 1, "length_factor": 1.0, **FLOAT32},
    "predictor": {"epochs": 2},
    "scaler": {},
    "rvq": {"codebooks": 2, "units": 8, **FLOAT32},
    "fit": {"rows": 200},
}


@pytest.mark.slow
def test_a_run_and_a_training_on_a_gpu_are_those_of_the_cpu(make_config: MakeConfig, tmp_path: Path) -> None:
    for name, count in (("libreoffice-eng", 4), ("libreoffice-deu", 2)):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", sample_documents(name, count))
    path = make_config(**SECTIONS)
    sections = yaml.safe_load(path.read_text())
    sections["encode"] |= FLOAT32
    card = tmp_path / "small.yaml"
    card.write_text(yaml.safe_dump(CARD))
    sections["train"] = TRAIN | {"model": str(card), "precision": "float32", "compile": "never"}
    path.write_text(yaml.safe_dump(sections))
    run(path)
    environ = environment(tmp_path)
    command = [sys.executable, "-m", "pipeline.cli", "run", str(path), "--set", "output=gpu"]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr

    assert "a made-up GPU" in _devices(tmp_path / "gpu")
    cpu, gpu = (Corpus(str(tmp_path / name)).to_arrow().to_pydict() for name in ("out", "gpu"))
    assert gpu["text"] == cpu["text"]
    one, other = (np.array(each["embedding"], np.float32) for each in (cpu, gpu))
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    assert ((one * other).sum(axis=1) / norms).min() > 0.9999
    for column, least in (("decoded", 0.97), ("codes", 0.95)):  # near ties may fall to the other side
        assert np.mean([a == b for a, b in zip(cpu[column], gpu[column], strict=True)]) >= least, column
    for column in ("autobleu", "fragility_bleu", "fragility_cosine"):
        theirs, ours = (np.array(each[column], np.float64) for each in (cpu, gpu))
        assert np.array_equal(np.isnan(theirs), np.isnan(ours)), column
        assert abs(np.nanmean(theirs) - np.nanmean(ours)) < 0.02, column
    assert 0 < min(gpu["weight"]) <= max(gpu["weight"]) <= 1  # the predictor learns from rows drawn by their last bits
    losses = [
        [line["loss"] for line in read_metrics(Store(str(tmp_path / name)), "train/small") if line["kind"] == "train"]
        for name in ("out", "gpu")
    ]
    assert len(losses[0]) == TRAIN["steps"]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.05)


def _devices(output: Path) -> str:
    """What receipts say of the device that computed."""
    return "".join(path.read_text() for path in output.rglob("*.json"))
