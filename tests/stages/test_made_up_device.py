"""On a GPU that is not there: no operation mixes devices or waits, and what is computed is what the CPU computes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.stages.gpu_cases import cases
from tests.support.one_gpu import environment

MARKED = (
    "tests/stages/test_networks_gpu.py",
    "tests/stages/test_sonar_greedy.py",
)  # memory that is full is not made up


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which PyTorch sees the made-up GPU."""
    return environment(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def shown(seen: dict[str, str]) -> str:
    """What `tests.stages.gpu_cases` prints."""
    command = [sys.executable, "-m", "tests.stages.gpu_cases"]
    done = subprocess.run(command, cwd=ROOT, env=seen, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", cases())
def test_what_a_gpu_computes(name: str, shown: str) -> None:
    assert f"passed {name}\n" in shown, shown[shown.index(f"failed {name}") :]


def test_what_is_tested_on_gpus_holds_on_the_made_up_one(seen: dict[str, str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *MARKED]
    done = subprocess.run(command, cwd=ROOT, env=seen, capture_output=True, text=True)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout + done.stderr
