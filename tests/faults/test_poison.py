"""A part that kills its worker is set aside after three deaths, and only that one; the rest completes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, MakeConfig, data_digests, sample_documents, write_jsonl
from tests.faults.slurm_runs import SLURM, ended, preempt_a_task
from tests.support.cli import PIPELINE, pipeline

pytestmark = pytest.mark.faults

POISON = os.pathsep.join([str(Path(__file__).parent / "poison"), str(ROOT)])
LAUNCHERS: dict[str, dict[str, Any]] = {
    "local": {"kind": "local", "parts_in_flight": 3},
    "slurm": SLURM | {"tasks": 2},  # the whole task dies, and others are preempted
}


@pytest.mark.parametrize("kind", ["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def test_only_the_poison_is_set_aside(
    make_config: MakeConfig, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "slurm":
        request.getfixturevalue("slurm")
    documents = sample_documents("libreoffice-eng", 12)
    documents[5]["text"] = f"{documents[5]['text']}\n\nThis word is POISON."
    write_jsonl(tmp_path / "in/documents.jsonl", documents)
    path = make_config(autobleu=None, launcher=LAUNCHERS[kind], segment={"method": "spacy-capped", "max_chars": 30})
    whole = pipeline("run", path, "--launcher", "inline", "--set", f"output={tmp_path / 'whole'}")
    assert whole.returncode == 0, whole
    expected = data_digests(tmp_path / "whole")

    poisoned = subprocess.run(
        [PIPELINE, "run", str(path)],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"PYTHONPATH": POISON},
    )
    output = tmp_path / "out"
    if kind == "slurm":
        preempt_a_task(output)
    summary = ended(output) if kind == "slurm" else json.loads(next(output.glob("runs/*/summary.json")).read_text())
    assert not summary["done"]
    failures = list(dict.fromkeys(summary["failures"]))
    assert len(failures) == 1 and "killed its worker 3 times and is set aside" in failures[0], (failures, poisoned)
    missing = {name for name in expected if not list(output.glob(f"{name.replace('/', '/*/')}.*.parquet"))}
    (part,) = {name.partition("/")[2] for name in missing}
    assert part in failures[0] and missing == {f"embeddings/{part}", f"status/{part}"}
    assert poisoned.returncode == (0 if kind == "slurm" else 1), poisoned

    again = pipeline("run", path, "--launcher", "inline")
    assert again.returncode == 0, again
    assert data_digests(output) == expected
