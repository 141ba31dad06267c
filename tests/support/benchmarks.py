"""Benchmarks as the README names them."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def run(module: str, *arguments: str) -> str:
    """What `python -m benchmarks.<module>` prints; a process of its own, since benchmarks set threads."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
