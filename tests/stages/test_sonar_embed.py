"""Sentences of all lengths through `embed`: each gets its own embedding, on every device that is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stages.batching import Tokens
from stages.device import Budget, to_host
from stages.packed import Runs
from stages.sonar.embed import embed
from stages.sonar.networks import SonarTextEncoder

DIM = 64


def encoder() -> SonarTextEncoder:
    torch.manual_seed(0)
    network = SonarTextEncoder(dim=DIM, layers=2, heads=2, ffn_dim=128, vocab_size=300, max_tokens=514)
    return network.eval().requires_grad_(False)


def sentences(count: int, longest: int) -> Tokens:
    rng = np.random.default_rng(0)
    return Tokens.of([rng.integers(4, 300, rng.integers(3, longest)).tolist() for _ in range(count)])


def run(network: SonarTextEncoder, tokens: Tokens, limit: int, device: str) -> tuple[np.ndarray, int]:
    budget = Budget(limit, "batch_tokens", "tokens", "use fewer")
    return embed(network.to(device), tokens, budget, dim=DIM, device=device)


@pytest.mark.parametrize("limit", [1, 64, 4096])
def test_each_sentence_gets_its_own_embedding_to_the_last_bit(limit: int) -> None:
    tokens, network = sentences(80, 20), encoder()
    found, halvings = run(network, tokens, limit, "cpu")
    assert found.shape == (80, DIM) and found.dtype == np.float16 and halvings == 0
    with torch.inference_mode():
        for row in range(80):
            ids = torch.from_numpy(tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]]).long()
            assert (found[row] == network(ids[None])[0].half().numpy()).all()


def test_batches_are_full_whatever_lengths_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    packed = SonarTextEncoder.packed

    def counting(self: SonarTextEncoder, ids: torch.Tensor, runs: Runs) -> torch.Tensor:
        sizes.append(len(ids))
        return packed(self, ids, runs)

    monkeypatch.setattr(SonarTextEncoder, "packed", counting)
    tokens = sentences(200, 40)
    run(encoder(), tokens, 512, "cpu")
    assert sum(sizes) == tokens.offsets[-1] and min(sizes[:-1]) > 512 - 40
    assert len(sizes) < len(set(tokens.lengths.tolist())), "one for each length and more, before"


def test_a_network_that_cannot_mix_lengths_gets_those_of_one() -> None:
    tokens, network = sentences(80, 20), encoder()
    shapes: list[tuple[int, int]] = []

    def other(ids: torch.Tensor) -> torch.Tensor:
        shapes.append((ids.shape[0], ids.shape[1]))
        found: torch.Tensor = network(ids)
        return found

    budget = Budget(64, "batch_tokens", "tokens", "use fewer")
    found, _ = embed(other, tokens, budget, dim=DIM, device="cpu")
    assert np.array_equal(found, run(network, tokens, 4096, "cpu")[0])
    assert {length for _, length in shapes} == set(tokens.lengths.tolist())
    assert max(rows * length for rows, length in shapes) <= 64


def test_no_sentences() -> None:
    found, halvings = run(encoder(), Tokens.of([]), 4096, "cpu")
    assert found.shape == (0, DIM) and halvings == 0


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_gpu_gives_the_embeddings_of_the_cpu(dtype: torch.dtype) -> None:
    tokens = sentences(2000, 90)
    expected, _ = run(encoder(), tokens, 4096, "cpu")
    found, _ = run(encoder().to(dtype), tokens, 4096, "cuda")
    cosines = torch.cosine_similarity(torch.from_numpy(found).double(), torch.from_numpy(expected).double(), dim=1)
    assert cosines.min() > 1 - 1e-5


@needs_gpu
def test_pinned_memory_is_written_when_it_is_returned() -> None:
    big = torch.arange(1 << 24, device="cuda", dtype=torch.int32)
    assert torch.equal(to_host(big), torch.arange(1 << 24, dtype=torch.int32))
