"""The benchmarks run, at their smallest size, as the README names them, and print their tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent


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


def test_encode_on_cpu_agrees_with_the_official_way() -> None:
    small = ["--sentences", "40", "--rounds", "1", "--dim", "64", "--layers", "1", "--heads", "2", "--batches", "5"]
    out = run("encode_cpu", *small, "--official", "/no/such/python")
    assert "/no/such/python gives no official package" in out
    assert "reference: rebuilt" in out
    cosines = re.search(r"lowest cosine of a sentence ([\d.]+) \(of two different sentences ([\d.]+)\)", out)
    assert cosines is not None
    assert float(cosines[1]) > 0.9999 > float(cosines[2])
    for line in ("rebuilt, default", "ours", "a layer", "GFLOP/s (goal: 60 %"):
        assert line in out
    assert len(re.findall(r"│ (?:arrival|characters) +│ 5 +│ (?:float32|bfloat16)", out)) == 4


def test_the_check_of_embeddings_can_fail() -> None:
    from benchmarks.encode_cpu import agreement

    ours = np.random.default_rng(0).normal(size=(6, 16)).astype(np.float16)
    assert agreement(ours, ours.astype(np.float32)) > 0.9999
    assert agreement(ours, np.roll(ours, 1, axis=0).astype(np.float32)) < 0.9999


def test_storage_measures_both_layouts(tmp_path: Path) -> None:
    out = run("storage", "--rows", "9000", "--dim", "64", "--rounds", "1", "--folder", str(tmp_path))
    sizes = dict(re.findall(r"│ normal │ ([^│]+?) +│ +\d+ │ +\d+ │ +([\d.]+) │", out))
    assert set(sizes) == {"ours", "ours + digests", "pyarrow's defaults"}
    assert float(sizes["ours"]) <= 0.87 < float(sizes["pyarrow's defaults"])
    assert "│ model  │ ours " in out
    assert not list(tmp_path.iterdir())


def test_encode_on_a_gpu_needs_nothing_but_torch() -> None:
    code = (
        "import sys, benchmarks.encode_gpu as one\n"
        "one.main(['--tiny', '--device', 'cpu', '--format', 'float32', '--sentences', '40'])\n"
        "assert not {'ray', 'pydantic', 'pyarrow', 'sentencepiece'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"(?:encode|greedy decode): \d+ sentences/s, \d+ tokens/s, .* MFU", done.stdout)) == 2


@pytest.mark.parametrize(("tokens", "rows"), [(16_384, 1 << 30), (50, 1 << 30), (1, 7), (16_384, 7)])
def test_batches_of_equal_length_hold_every_sentence(tokens: int, rows: int) -> None:
    from benchmarks.encode_gpu import equal_batches, sentence_lengths

    lengths = sentence_lengths(500, seed=1)
    assert 24 < np.mean(lengths) < 30
    batches = equal_batches(lengths, tokens, rows)
    assert sorted((length for length, size in batches for _ in range(size)), reverse=True) == lengths
    assert all(size <= rows and (length * size <= tokens or size == 1) for length, size in batches)
