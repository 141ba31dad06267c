"""Greedy decoding as a GPU is driven: each step is a fixed amount of work of the device, and gives the same sentences.

Without a GPU the very step that is captured there runs uncaptured, and once on tensors that have no values.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from stages.sonar import greedy
from stages.sonar.greedy import ON_CPU, Greedy, StepMode, likeliest
from stages.sonar.ids import END, PAD
from stages.sonar.networks import SonarTextDecoder, _aligned_logits
from tests.stages.small_decoder import DIM, VOCAB, batch, decoder, plain_greedy, rows

AS_ON_A_GPU = StepMode(check=2, doubling=True, masked=True, captured=False)
WITH_ITS_KERNELS = replace(AS_ON_A_GPU, masked=False)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> None:
    """Numbers of rows and tokens at which something changes, within the tests' few rows."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BLOCK", 3), ("ROOM", 4), ("LEAST_ROWS", 2)):
            patch.setattr(greedy, name, value)
        yield


@pytest.mark.parametrize("mode", [AS_ON_A_GPU, WITH_ITS_KERNELS])
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 5), st.lists(rows, min_size=1, max_size=3))
def test_blocks_of_rows_and_tokens_give_the_plain_sentences(
    mode: StepMode, seed: int, batches: list[list[tuple[int, int]]]
) -> None:
    search = Greedy(decoder(seed), mode)
    for chosen in batches:  # memory that an earlier batch used, larger or smaller, leaves no trace
        assert search(*batch(chosen)) == [plain_greedy(decoder(seed), number, limit) for number, limit in chosen]


def test_steps_have_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[int, int]] = []
    step = SonarTextDecoder.step

    def counting(self: SonarTextDecoder, ids: torch.Tensor, state: greedy.DecoderState, seen: int) -> torch.Tensor:
        shapes.append((len(ids), seen))
        return step(self, ids, state, seen)

    monkeypatch.setattr(SonarTextDecoder, "step", counting)
    Greedy(decoder(0), AS_ON_A_GPU)(*batch([(number, 1 + number % 9) for number in range(13)]))
    assert {count for count, _ in shapes} <= {16, 8, 4, 2} and len({count for count, _ in shapes}) > 1
    assert {seen for _, seen in shapes} <= {3, 6, 9, 12}


@pytest.mark.parametrize("vocab", [5, 8, 77, 80])
def test_logits_into_aligned_rows_are_the_logits(vocab: int) -> None:
    hidden, weight = torch.randn(6, 16), torch.randn(vocab, 16)
    out = torch.full((9, 128), -torch.inf)
    found = _aligned_logits(hidden, weight, out)
    torch.testing.assert_close(found[:, :vocab], hidden @ weight.T)
    assert bool((found[:, vocab:] == -torch.inf).all()) and int(likeliest(found).max()) < vocab


def test_values_of_a_batch_that_were_no_numbers_do_not_reach_the_next() -> None:
    search, (embeddings, prefixes, limits) = Greedy(decoder(0), AS_ON_A_GPU), batch([(0, 9), (1, 9), (2, 9), (3, 9)])
    expected = search(embeddings, prefixes, limits)
    search(torch.full_like(embeddings, torch.nan), prefixes, limits)
    assert search(embeddings, prefixes, limits) == expected


def test_memory_is_kept_from_batch_to_batch_and_given_back_when_a_batch_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Greedy(decoder(0), ON_CPU)
    expected = search(*batch([(0, 9), (1, 9), (2, 9)]))
    kept = search._space
    assert search(*batch([(1, 9)])) == expected[1:2]
    assert kept is not None and search._space is kept
    with monkeypatch.context() as patch:
        patch.setattr(greedy, "likeliest", lambda logits: torch.empty(-1))
        with pytest.raises(RuntimeError):
            search(*batch([(0, 9)]))
    assert search._space is None
    assert search(*batch([(0, 9), (1, 9), (2, 9)])) == expected


@pytest.mark.parametrize("rows", [1, 3, 4, 17, 64])
def test_logits_in_memory_that_is_kept_are_the_same_bits(rows: int) -> None:
    network = decoder(0)
    vocabulary, dim = network.embedding.weight.shape
    kept, hidden = network.room_for_logits(64), torch.randn(rows, dim, generator=torch.Generator().manual_seed(0))
    assert kept is not None and kept.shape[1] % 64 == 0 and kept.shape[1] > vocabulary
    with torch.inference_mode():
        found = network.logits(hidden, kept)
        assert torch.equal(found[:, :vocabulary], network.logits(hidden))
    assert not found[:, vocabulary:].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_the_likeliest_is_what_argmax_finds(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(64, 500).to(dtype)
    logits[:8] = logits[:8].round()  # ties
    logits[8:16] = -logits[8:16].abs() - 1
    logits[16] = torch.nan
    logits[17] = -torch.nan
    logits[18, 7] = torch.inf
    logits[19] = -torch.inf
    logits[20] = 0
    logits[21] = -logits[20]
    logits[22, 3::2] = logits[22].max()
    logits[:, PAD] = -torch.inf
    assert torch.equal(likeliest(logits), logits.argmax(dim=1))


@torch.inference_mode()
def test_a_step_is_work_of_the_device_alone() -> None:
    """Of tensors that have no values it is an error to ask for one, as it is where a step is captured."""
    with torch.device("meta"):
        network = SonarTextDecoder(dim=64, layers=2, heads=2, ffn_dim=96, vocab_size=80, max_tokens=64)
        search = Greedy(network, AS_ON_A_GPU)
        space = search._roomy(13, 9)
        embeddings, limits = torch.empty(13, 64), torch.empty(13, dtype=torch.int64)
        space.begin(network, search.pace, embeddings, torch.empty(13, 2, dtype=torch.int64), limits)
        assert space.state.rows == 16
        space.step(network, 3)
        space.keep(8)
        space.step(network, 6)
        assert space.state.rows == 8
        with pytest.raises(RuntimeError, match="meta"):
            int(space.open.sum())


@torch.inference_mode()
def test_what_only_gpus_compute_has_the_right_shapes() -> None:
    with torch.device("meta"):
        network = SonarTextDecoder(dim=64, layers=1, heads=2, ffn_dim=96, vocab_size=80, max_tokens=64)
    with FakeTensorMode():
        inner_proj = network._layers[0].ffn.inner_proj
        for module, name in ((network.embedding, "weight"), (inner_proj, "weight"), (inner_proj, "bias")):
            on_gpu = torch.empty(getattr(module, name).shape, dtype=torch.float16, device="cuda")
            setattr(module, name, torch.nn.Parameter(on_gpu, requires_grad=False))
        hidden = torch.empty(5, 3, 64, dtype=torch.float16, device="cuda")
        logits, inner = network.logits(hidden), network._layers[0].ffn._inner(hidden)
        assert (logits.shape, logits.dtype) == ((5, 3, 80), torch.float32)
        assert (inner.shape, inner.dtype) == ((5, 3, 96), torch.float16)


@torch.inference_mode()
def test_the_activation_in_the_matmul_is_relu() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(9, 32), torch.randn(48, 32), torch.randn(48)
    expected = torch.nn.functional.linear(x, weight, bias).relu()
    assert torch.allclose(torch._addmm_activation(bias, x, weight.t()), expected, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_captured_steps_are_the_steps(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(greedy, "LEAST_ROWS", 8)
    monkeypatch.setattr(greedy, "BLOCK", 16)
    monkeypatch.setattr(greedy, "ROOM", 32)
    torch.manual_seed(0)
    with torch.device("cuda"):
        network = SonarTextDecoder(dim=256, layers=3, heads=4, ffn_dim=512, vocab_size=200, max_tokens=200).to(dtype)
        network = network.eval().requires_grad_(False)
        embeddings = torch.randn(70, 256, dtype=dtype)
        prefixes = torch.tensor([[END, 5]] * 70)
    limits = 1 + torch.arange(70) % 45
    search = Greedy(network)
    expected = Greedy(network, replace(search.pace, captured=False))(embeddings, prefixes, limits)
    for _ in range(3):
        assert search(embeddings, prefixes, limits) == expected
    assert any(search._captured._graphs.values())
    assert search(embeddings[:20], prefixes[:20], limits[:20]) == expected[:20]
    assert DIM < 64 and VOCAB < 80  # the other tests' networks are smaller
