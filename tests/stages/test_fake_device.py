"""On a GPU that is not there: no operation mixes devices, none waits for a value, and formats are as they should be."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT
from tests.stages.fake_gpu import cases


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `tests.stages.fake_gpu` prints."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("needs a compiler of C++: PyTorch without CUDA knows no guard of its devices")
    folder, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("fake") / "one_gpu.so"
    source = ROOT / "tests/support/one_gpu.cpp"
    options = ["-std=c++20", "-shared", "-fPIC", f"-I{folder}/include", f"-L{folder}/lib", "-lc10", "-o", str(library)]
    subprocess.run([compiler, str(source), *options], check=True)
    command = [sys.executable, "-m", "tests.stages.fake_gpu", str(library)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_what_a_gpu_computes(name: str, shown: str) -> None:
    assert f"passed {name}\n" in shown, shown[shown.index(f"failed {name}") :]
