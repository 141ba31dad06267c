"""Everything for a GPU in one command, on a machine that has torch and little else; here without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_all import FAILED, ROWS, table
from benchmarks.gpu_all import run as run_row
from benchmarks.marked_tests import run_marked
from benchmarks.worker_gpu import busy
from tests.conftest import ROOT

FEW = """
import sys
from importlib.machinery import PathFinder

BLOCKED = set("ray pydantic pydantic_core spacy wtpsplit zstandard faiss pytest matplotlib submitit fasttext".split())
BLOCKED |= set("MORE".split())


class OnlyWhatIsThere(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyWhatIsThere
"""


@pytest.fixture
def few_packages(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a Python that lacks what a machine with a GPU may lack, and the packages of a parameter."""
    (tmp_path / "few").mkdir()
    (tmp_path / "few/sitecustomize.py").write_text(FEW.replace("MORE", getattr(request, "param", "")))
    return os.environ | {"PYTHONPATH": f"{tmp_path / 'few'}:{ROOT}", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_every_row_has_its_figure_and_the_tests_run(few_packages: dict[str, str], tmp_path: Path) -> None:
    names = [row.name for row in ROWS if not row.name.startswith("lcm-")]  # small, all of those are the same
    command = [sys.executable, "-m", "benchmarks.gpu_all", "--device", "cpu", "--small", "--seconds", "6000",
               "--out", str(tmp_path / "out.md"), "--only", *names]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=few_packages, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (tmp_path / "out.md").read_text()
    assert "everything ran" in shown and done.stdout.endswith(f"{shown}\n")
    for row in ROWS:
        for figure in row.figures if row.name in names else ():
            (line,) = [line for line in shown.splitlines() if line.startswith(f"| {figure.row} |")]
            assert "not measured" not in line and (FAILED not in line or "MFU" in figure.row), line
    assert "| cpu (" in shown
    assert done.stdout.count(" PASSED") == 15 and "test_embeddings_are_those_of_the_cpu[float32-0.99999]" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "few_packages", ["yaml safetensors sentencepiece tokenizers transformers sacrebleu rich"], indirect=True
)
def test_encoding_and_decoding_need_torch_numpy_and_pyarrow_alone(few_packages: dict[str, str]) -> None:
    small = next(row.small for row in ROWS if row.name == "encode").split()[1:]
    command = [sys.executable, "-m", "benchmarks.encode_gpu", *small, "--device", "cpu", "--only", "encode", "baseline",
               "decode", "--decode-rows", "16"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=few_packages, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("encode, 512 tokens", "greedy decode, 16", "transformers is not installed"):
        assert said in done.stdout, done.stdout


def test_figures_are_found_in_what_an_h200_printed() -> None:
    told = {
        "encode": "NVIDIA H200 (cuDNN attention off, sums in float32); torch 2.11.0+cu130, float16\n"
        "encode, 32768 tokens per batch: 16978 sentences/s, 467073 tokens/s, 471.770 TFLOP/s, MFU 47.7%, 77.1% of "
        "F.linear (16947–17031)\n",
        "beside": "a step beside threads: 550.57 ms, +18977.7%\na step beside processes: 2.89 ms, +1.8%\n",
        "lcm": "concepts/s  74,313 (13,282 to 74,728)\nTFLOP/s     463, MFU 46.8% of 989.4\n"
        "loader      steps wait for it 0.38% of the time; 74,419 concepts/s from files\n",
    }
    shown = table(told)
    for figure in (
        "16978 sentences/s",
        "MFU 47.7%, 77.1% of F.linear",
        "1.8 %",
        "18977.7 %",
        "46.8%",
        "74,313",
        "0.38 %",
    ):
        assert f"| {figure} | NVIDIA H200 (" in shown, figure


def test_files_without_marked_tests_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_marked(["tests/stages/test_device.py"], mark="no_such_mark") == 1
    assert "no test is marked no_such_mark" in capsys.readouterr().out


def test_the_page_has_the_goals_of_the_command() -> None:
    page = (ROOT / "benchmarks/GPU.md").read_text()
    goals = [
        found[0] for row in ROWS for one in row.figures if (found := re.match(r"[≥≤] [\d ]+(sentences/s|%)", one.goal))
    ]
    assert len(goals) >= 8 and {"≥ 12 000 sentences/s", "≥ 4 000 sentences/s"} < set(goals)
    assert [goal for goal in goals if goal not in page] == []


def test_a_row_that_fails_or_hangs_is_told_and_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told, well = run_row("encode", [sys.executable, "-c", "print('encode, 1 tokens'); raise SystemExit(3)"], 60)
    assert (told, well) == ("encode, 1 tokens\n", False)
    assert "encode: exit code 3" in capfd.readouterr().out
    nested = (
        "import subprocess, sys; print('here', flush=True); subprocess.run([sys.executable, '-c', 'while True: 1'])"
    )
    told, well = run_row("worker", [sys.executable, "-c", nested], 3)
    assert not well and "worker: exit code -9" in capfd.readouterr().out
    lines = table({"encode": told, "worker": "not measured: no time was left"}).splitlines()
    assert FAILED in lines[2] and "not measured: no time was left" in lines[-1]


def test_kernels_that_overlap_count_once() -> None:
    total, span = busy([(3.0, 4.0), (0.0, 1.0), (0.5, 2.0), (0.6, 0.7)])
    assert (total, span) == (3.0, 4.0)
    assert busy([]) == (0.0, 0.0)
