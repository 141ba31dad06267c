"""The benchmarks of fits run, at their smallest size; the one for GPUs with torch and numpy alone."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.support.benchmarks import run

SMALL = ["--rows", "600", "--dim", "32", "--units", "32", "--codebooks", "2", "--rounds", "1", "--test-rows", "100"]


@pytest.mark.slow
def test_scaler_agrees_with_numpy() -> None:
    out = run("fit_scaler", "--rows", "10000", "--dim", "40")  # fails where a bit differs
    assert re.search(r"│ ours +│ +[\d.]+ +│ +[\d.]+ +│ 0 ", out), out
    assert "│ scikit-learn │" in out


@pytest.mark.slow
def test_rvq_by_both_backends() -> None:
    out = run("fit_rvq", *SMALL, "--device", "cpu", "--precision", "float32")
    errors = {
        name: float(error) for name, error in re.findall(r"fit by (\w+): .*, relative error ([\d.]+) on 100", out)
    }
    assert set(errors) == {"faiss", "torch"}
    assert abs(errors["torch"] / errors["faiss"] - 1) < 0.1
    same = re.search(r"with the same centroids: ours ([\d.]+), faiss ([\d.]+)", out)
    assert same is not None
    assert same[1] == same[2]
    assert "projection for 15000000 rows" in out


@pytest.mark.slow
def test_rvq_with_torch_and_numpy_alone() -> None:
    missing = (
        "import sys; sys.modules.update(dict.fromkeys(['pydantic', 'ray', 'faiss', 'pyarrow', 'safetensors', 'rich']))"
    )
    code = f"{missing}; from benchmarks.fit_rvq import main; main({[*SMALL, '--device', 'cpu', '--backends', 'torch']})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "encode by ours" in done.stdout
