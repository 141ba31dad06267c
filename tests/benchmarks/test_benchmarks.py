"""The benchmarks run, at their smallest size, as the README names them, and print their tables."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.support.benchmarks import run


@pytest.mark.slow
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


@pytest.mark.slow
def test_greedy_decoding_agrees_with_hugging_face() -> None:
    out = run("decode_cpu", "--sentences", "40", "--rounds", "1", "--baseline-batches", "40", "--precision", "float32")
    assert re.search(r"ours, batches of the default: \d+ sentences, \d+ tokens per CPU second", out)
    assert re.search(r"[\d.]+ times as fast as generate, batches of 40; 0\.00% of the sentences differ", out)


def test_the_check_of_embeddings_can_fail() -> None:
    from benchmarks.encode_cpu import agreement

    ours = np.random.default_rng(0).normal(size=(6, 16)).astype(np.float16)
    assert agreement(ours, ours.astype(np.float32)) > 0.9999
    assert agreement(ours, np.roll(ours, 1, axis=0).astype(np.float32)) < 0.9999


@pytest.mark.slow
def test_storage_measures_both_layouts(tmp_path: Path) -> None:
    out = run("storage", "--rows", "9000", "--dim", "64", "--rounds", "1", "--folder", str(tmp_path))
    sizes = dict(re.findall(r"│ normal │ ([^│]+?) +│ +\d+ │ +\d+ │ +([\d.]+) │", out))
    assert set(sizes) == {"ours", "ours + digests", "pyarrow's defaults"}
    assert float(sizes["ours"]) <= 0.87 < float(sizes["pyarrow's defaults"])
    assert "│ model  │ ours " in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_index_is_mapped_and_not_held(tmp_path: Path) -> None:
    out = run("index_scale", "--documents", "1100000", "--folder", str(tmp_path))
    numbers = r" +│ +[\d.]+" * 2 + r" +│ +(-?\d+) +│ +(\d+) +│ +([\d,]+) +│ +([\d.]+) +│"
    rows = re.findall(r"│ (files|slow store), from micro-batch ([\d,]+) on" + numbers, out)
    assert "24 MB in 1 files" in " ".join(out.split()) and [rows[0][1], len(rows)] == ["0", 4], out
    assert all(int(own) < 10 for _, _, own, *_ in rows) and int(rows[1][3]) >= 5, out
    assert [requests for *_, requests, _ in rows[:2]] == ["0", "0"] and 0 < float(rows[3][-1]) < 24, out


@pytest.mark.slow
def test_everything_for_a_gpu_in_one_command() -> None:
    few = ["--sentences", "24", "--rounds", "1", "--decode-rows", "16", "--batch-tokens", "512", "--profile"]
    out = run("encode_gpu", "--device", "cpu", "--small", *few)
    figures = r": \d+ sentences/s, \d+ tokens/s, .* of F\.linear"
    for title in (
        "encode, 512 tokens per batch",
        "greedy decode, 16 sentences per batch",
        "beam search, beam 5, 3 sent",
    ):
        assert re.search(title + ".*" + figures, out), out
    assert re.search(r"Hugging Face M2M100 encoder.*" + figures, out) or "transformers is not installed" in out
    assert "greedy decode, by kernel" in out and "aten::addmm" in out
    busy = re.search(r"device busy: ([\d.]+)% of [\d.]+ s from the first part to the last", out)
    assert busy is not None and 0 < float(busy[1]) <= 100
    assert re.search(r": 20 parts, 1200 sentences, 2\d\.\d tokens on average", out), out


@pytest.mark.slow
def test_the_gpu_benchmark_needs_torch_numpy_and_pyarrow_only() -> None:
    """It runs where only those are installed; what needs more is a process of its own, or is left out with a word."""
    code = (
        "import sys, benchmarks.encode_gpu as one\n"
        "only = ['--only', 'encode', 'decode', '--rounds', '1', '--beam', '2']\n"
        "one.main(['--small', '--device', 'cpu', '--format', 'float32', '--sentences', '12', *only])\n"
        "assert not {'ray', 'pydantic', 'sentencepiece', 'safetensors', 'yaml', 'zstandard'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_sentence_lengths_are_those_of_the_goal() -> None:
    from benchmarks.encode_gpu import sentence_lengths

    lengths = sentence_lengths(5000, seed=1)
    assert lengths == sorted(lengths, reverse=True)
    assert 26.5 < np.mean(lengths) < 28.5 and lengths[0] > 80


def test_flops_are_those_that_pytorch_counts() -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from benchmarks.flops import decoder_flops, encoder_flops
    from stages.sonar.generate import greedy
    from stages.sonar.ids import END
    from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder

    numbers = {"dim": 32, "layers": 3, "ffn_dim": 96}
    lengths = [7, 7, 7, 7]
    decoder = SonarTextDecoder(dim=32, layers=3, ffn_dim=96, heads=2, vocab_size=50, max_tokens=64)
    decoder.requires_grad_(False).embedding.weight[END] = 0
    encoder = SonarTextEncoder(dim=32, layers=3, ffn_dim=96, heads=2, vocab_size=50, max_tokens=64)
    with sdpa_kernel(SDPBackend.MATH):  # of others the attention is not counted on CPUs
        with FlopCounterMode(display=False) as counted, torch.inference_mode():
            encoder(torch.randint(4, 50, (4, 7)))
        assert counted.get_total_flops() == encoder_flops(lengths, **numbers)
        with FlopCounterMode(display=False) as counted:
            greedy(decoder, torch.randn(4, 32), torch.tensor([[END, 5]] * 4), torch.tensor(lengths))
        assert counted.get_total_flops() == decoder_flops(lengths, **numbers, vocab_size=50)


@pytest.mark.slow
def test_training_steps() -> None:
    out = run("lcm_gpu", "--device", "cpu", "--small")
    assert "lcm-two-tower-tiny: " in out and "concepts/s" in out and "TFLOP/s" in out, out


@pytest.mark.slow
def test_fragility_at_the_published_size_has_a_smoke_test() -> None:
    out = run("fragility_gpu", "--device", "cpu", "--small", "--rounds", "1", "--levels", "2", "--batch-rows", "16")
    assert "20 sentences of" in out and "2 noise levels" in out
    assert re.search(r"16 a batch: \d+ decodings/s, .* TFLOP/s; \d+ sentences/s; with the external encoder \d+", out), (
        out
    )
    code = "import sys, benchmarks.fragility_gpu; assert not {'ray', 'pydantic', 'sentencepiece'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.slow
def test_the_loader_beside_what_users_have() -> None:
    out = run("loader", "--rows", "800", "--dim", "64", "--rounds", "1", "--threads", "1")
    for line in ("ours", "decoded as by the loader, nothing else", "as the LCM release", "to_pylist"):
        assert re.search(rf"│ {line} +│ +\d+ │ +\d+ │", out), out


@pytest.mark.slow
def test_headless_training_is_measured_against_cross_entropy() -> None:
    out = run("headless", "--quick")
    assert len(re.findall(r"8,006 +2 +(?:cross-entropy|cwt) +[\d,]+ +\d\.\d\d +[789]\.\d{3}", out)) == 2, out


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_decoding_step_beside_others_on_a_core_of_its_own() -> None:
    few = ["--rows", "4", "--steps", "8", "--rounds", "1", "--workers", "1"]
    out = run("beside", "--device", "cpu", "--small", "--apart", *few)
    assert re.search(r"load of the machine [\d.]+, \d+ cores, apart", out)
    assert len(re.findall(r"(?m)^a step (?:alone|beside .*): [\d.]+ ms, [+-]\d+\.\d%$", out)) == 5, out


@pytest.mark.slow
def test_pages_of_the_browser_are_measured(tmp_path: Path) -> None:
    out = run("browse", "--sentences", "100000", "--dim", "16", "--folder", str(tmp_path))
    assert re.search(r"│ the first page +│ [\d.]+ +│ [\d.]+ +│ 50 +│ 100,000 ", out)
    assert re.search(r"│ order: autobleu +│ [\d.]+ +│ [\d.]+ +│ 100,000 ", out) and "its nearest sentences" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_devices_of_a_node_over_a_slow_store(tmp_path: Path) -> None:
    few = ["--devices", "2", "--rate", "500", "--parts", "3", "--rows", "200", "--in-flight", "2", "--latency", "0.02"]
    out = run("node", *few, "--folder", str(tmp_path))
    busy = re.search(r"devices busy: ([\d.]+)% of ([\d.]+) s, the least", out)
    assert busy is not None and 0 < float(busy[1]) <= 100 and float(busy[2]) >= 3 * 200 / 500, out
    requests, cores = re.search(r"([\d.]+) requests a part", out), re.search(r"([\d.]+) for eight of 12 000", out)
    assert requests is not None and float(requests[1]) >= 4, out  # a receipt is read and one made, and two files
    assert cores is not None and float(cores[1]) > 0
    assert not list(tmp_path.iterdir())
