"""What a GPU computes is what the CPU computes. Without pytest, `benchmarks.gpu_all` runs this."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from stages.batching import Tokens
from stages.device import Budget
from stages.lcm.batch import Batch
from stages.lcm.packing import layout_of
from stages.rvq.codebooks import Codebooks
from stages.sonar.embed import embed
from stages.sonar.generate import greedy
from stages.sonar.ids import END
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder

DEVICE = os.environ.get("PIPELINE_TEST_DEVICE", "cuda")
SIZE = {"dim": 64, "layers": 2, "heads": 4, "ffn_dim": 128, "vocab_size": 1000, "max_tokens": 64}


@pytest.mark.gpu
@pytest.mark.parametrize("precision, least", [("float32", 0.99999), ("float16", 0.9999), ("bfloat16", 0.999)])
def test_embeddings_are_those_of_the_cpu(precision: str, least: float) -> None:
    torch.manual_seed(0)
    encoder = SonarTextEncoder(**SIZE).eval().requires_grad_(False)
    rng = np.random.default_rng(0)
    tokens = Tokens.of([rng.integers(4, 1000, size).tolist() for size in rng.integers(3, 40, 200)])
    budget = Budget(512, "batch_tokens", "tokens", "use fewer")
    expected, _ = embed(encoder, tokens, budget, dim=64, device="cpu")
    there = encoder.to(DEVICE, getattr(torch, precision))
    found, _ = embed(there, tokens, budget, dim=64, device=DEVICE)
    cosine = torch.cosine_similarity(torch.from_numpy(found).float(), torch.from_numpy(expected).float())
    assert float(cosine.min()) > least


@pytest.mark.gpu
def test_greedy_decodings_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    decoder = SonarTextDecoder(**SIZE).eval().requires_grad_(False)
    embeddings, prefixes = torch.randn(100, 64), torch.tensor([[END, 5]] * 100)
    limits = torch.randint(1, 30, (100,))
    expected = greedy(decoder, embeddings, prefixes, limits)
    found = greedy(decoder.to(DEVICE), embeddings.to(DEVICE), prefixes.to(DEVICE), limits)
    same = sum(one == other for one, other in zip(found, expected, strict=True))
    assert same >= 98, f"{100 - same} of 100 differ: sums in another order may tip the balance, but seldom"


@pytest.mark.gpu
def test_batches_for_training_arrive_whole_though_nobody_waits_for_them() -> None:
    lengths = torch.arange(1, 60)
    sums = []
    for number in range(8):  # pinned memory of those before is given to those behind as soon as they are copied
        embeddings = torch.full((int(lengths.sum()), 1024), float(number)).half()
        host = Batch(embeddings, lengths, torch.ones(len(embeddings)), layout=layout_of(lengths))
        moved = (host.pinned() if torch.cuda.is_available() else host).to(DEVICE)
        del host
        sums.append((moved.embeddings.float().mean(), moved.packing.starts.sum()))
    assert [(float(mean), int(starts)) for mean, starts in sums] == [(float(number), 59) for number in range(8)]


@pytest.mark.gpu
def test_codes_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    codebooks = Codebooks(torch.randn(4, 64, 32).half())
    x = torch.randn(1000, 32).half().numpy()
    expected = codebooks.encode(x, "float32")
    found = codebooks.to(DEVICE).encode(x, "float32")
    assert (np.asarray(found) == np.asarray(expected)).mean() > 0.99
