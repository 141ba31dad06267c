"""Benchmarks as the README names them."""

from __future__ import annotations

from tests.conftest import ROOT
from tests.support.processes import start


def run(module: str, *arguments: str) -> str:
    """What `python -m benchmarks.<module>` prints; a process of its own, since benchmarks set threads."""
    process = start(*arguments, module=f"benchmarks.{module}", apart=True, OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out
