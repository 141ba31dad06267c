"""A made-up GPU for processes of tests: `environment` makes PyTorch see it there, `device.py` says how it behaves."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def environment(folder: Path) -> dict[str, str]:
    """What a process must have in its environment, where `folder` is for the library. Skips without a C++ compiler."""
    import torch

    compiler = shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("needs a compiler of C++: PyTorch without CUDA has no guard of its devices")
    home, library = Path(torch.__file__).parent, folder / "one_gpu.so"
    options = ["-std=c++20", "-shared", "-fPIC", "-Wl,--no-as-needed", f"-Wl,-rpath,{home}/lib", f"-I{home}/include"]
    source = [str(FOLDER / "library.cpp"), f"-L{home}/lib", "-lc10", "-ltorch_cpu", "-o", str(library)]
    subprocess.run([compiler, *options, *source], check=True)
    path = [str(FOLDER), str(FOLDER.parents[2]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "ONE_GPU_LIBRARY": str(library),
        "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }
