"""What a GPU computes, on the made-up one of `tests/support/one_gpu`; values are compared by the tests marked `gpu`.

    python -m tests.stages.gpu_cases        # one line a case

Operations on tensors of different devices raise, and so does whatever waits for the device: `.item()`, a mask as an
index, a copy to the host that blocks.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from torch import Tensor, nn

from recipes.sonar.batches import TokenSequences, TrainingSet
from recipes.sonar.recipe import SonarRecipe
from recipes.sonar.trainer import Trainer
from stages.batching import Tokens
from stages.device import Budget, to_host
from stages.fragility.noise import perturbed
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import LcmCard, load_lcm_card
from stages.lcm.metrics import gradient_diversity
from stages.lcm.model import Lcm, Sampling
from stages.lcm.packing import layout_of
from stages.lcm.sonar_llm import SonarLlm
from stages.lcm.token_lm import TokenLm
from stages.predictor.fit import fit_predictor
from stages.predictor.network import PredictorNetwork
from stages.predictor.settings import PredictorSettings
from stages.rvq.codebooks import Codebooks, Nearest
from stages.rvq.fit import fit_codebooks
from stages.rvq.settings import RvqSettings
from stages.scaler.robust import RobustScaler
from stages.segment.sat import runner
from stages.segment.sat.networks import SatNetwork
from stages.sonar import embed
from stages.sonar.card import load_card
from stages.sonar.generate import _Batch, _candidates, _Trellis
from stages.sonar.greedy import ON_GPU_MASKED, Greedy
from stages.sonar.likelihood import sentence_losses
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder
from tests.support.one_gpu.device import waits

GPU = "cuda"
NUMBERS: dict[str, Any] = {"dim": 64, "layers": 2, "heads": 2, "ffn_dim": 96, "vocab_size": 80, "max_tokens": 64}
SCALER = RobustScaler(torch.zeros(64), torch.ones(64))
CODEBOOKS = Codebooks(torch.zeros(3, 16, 64, dtype=torch.float16))
KINDS = ("base", "two-tower", "one-tower", "quant-c", "quant-d")
Module = TypeVar("Module", bound=nn.Module)


def on_gpu(module: Module, dtype: torch.dtype | None = None, trained: bool = False) -> Module:
    """The same module on the GPU."""
    return module.to(GPU, dtype).requires_grad_(trained)


def given(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Random values on the GPU; integers are ids of tokens."""
    host = torch.randn(shape) if dtype.is_floating_point else torch.randint(4, 60, shape)
    return host.to(GPU, dtype)


def without_waiting(result: Tensor) -> Tensor:
    """In the place of `to_host`, the one wait that is wanted."""
    assert result.device.type == GPU
    return torch.zeros(result.shape, dtype=result.dtype)


def encoder() -> None:
    network = on_gpu(SonarTextEncoder(**NUMBERS), torch.float16)
    found = network.packed(given(30, dtype=torch.int32), [(2, 10), (1, 7), (1, 3)])
    assert (found.device.type, found.dtype, found.shape) == (GPU, torch.float16, (4, 64))


def sat() -> None:
    network = SatNetwork(vocab_size=80, dim=64, layers=2, heads=2, ffn_dim=96, max_positions=34)
    found = on_gpu(network, torch.float16).packed(given(30, dtype=torch.int64), [(2, 10), (1, 7), (1, 3)])
    assert (found.device.type, found.dtype, found.shape) == (GPU, torch.float32, (30,))


def decoder() -> None:
    network = on_gpu(SonarTextDecoder(**NUMBERS), torch.float16)
    search = Greedy(network, replace(ON_GPU_MASKED, captured=False))
    space = search._roomy(200, 9)
    prefixes = given(200, 2, dtype=torch.int64)
    space.begin(network, search.pace, given(200, 64), prefixes, torch.full((200,), 9))
    assert space.state.rows == 256
    search._step(space)
    space.keep(128)
    search._step(space)
    assert {one.device.type for one in (space.out, space.token, space.open, space.state.cache)} == {GPU}


def beams() -> None:
    network = on_gpu(SonarTextDecoder(**NUMBERS), torch.float16)
    state = network.start(given(6, 64), capacity=9, most=18)
    likely = network.logits(network.step(given(6, dtype=torch.int64), state)).log_softmax(dim=1)
    assert likely.dtype == torch.float32
    batch, trellis = _Batch(given(6, dtype=torch.int64)), _Trellis.empty(8, 6, 3, torch.device(GPU))
    values, parents, tokens = _candidates(network, given(6, 1, 64), given(6, 1, dtype=torch.float32), batch.open, 6)
    ends = (tokens[:, :3] == 3) & batch.open[:, None]
    trellis.end(0, batch.rows, ends, torch.zeros_like(batch.rows), values, parents)
    trellis.grow(0, batch.rows, parents[:, :3], tokens[:, :3])
    state.keep((torch.arange(18) % 6).to(GPU))


def likelihood() -> None:
    network = on_gpu(SonarTextDecoder(**NUMBERS))
    tokens = Tokens.of([[3, 5, 6, 7, 3], [3, 5, 3], [3, 5, 6, 3]])
    assert sentence_losses(network, given(3, 64, dtype=torch.float32), tokens).device.type == GPU


def noise() -> None:
    found = perturbed(given(5, 64), given(5, 64, dtype=torch.float32), given(5, dtype=torch.float64), SCALER)
    assert (found.device.type, found.dtype) == (GPU, torch.float32)


def predictor() -> None:
    network = on_gpu(PredictorNetwork(64, 32))
    assert network(SCALER.normalize(given(5, 64))).device.type == GPU


def codes() -> None:
    nearest = Nearest(torch.zeros(16, 64), torch.float16)  # its scale is a number that the host asks for
    nearest.transposed, nearest.offset = given(64, 16), given(16)
    residual, centroids = given(9, 64, dtype=torch.float32), given(16, 64)
    found = nearest(residual)
    assert found.dtype == torch.int64
    assert (residual - centroids[found].float()).square().sum(dim=1).device.type == GPU


def fits() -> None:
    """Codebooks and a predictor fitted on the GPU are those of the CPU."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((600, 64)).astype(np.float16)
    settings = RvqSettings(codebooks=2, units=16, precision="float32", backend="torch")
    one, other = (fit_codebooks(x.copy(), settings, device, lambda *_: None)[0] for device in ("cpu", GPU))
    torch.testing.assert_close(other.centroids, one.centroids, rtol=1e-2, atol=1e-2)
    targets = (x[:, :2].astype(np.float32) + 0.1 * generator.standard_normal((600, 2))).astype(np.float32)
    plain = PredictorSettings(epochs=3, dropout=0.0)  # what is dropped differs from device to device
    (ours, seen), (theirs, _) = (fit_predictor(x, targets, plain, SCALER, device) for device in (GPU, "cpu"))
    assert seen["pearson_bleu"] > 0.1
    np.testing.assert_allclose(ours.predict(x, GPU), theirs.predict(x, "cpu"), atol=1e-3)


def packed_batch() -> Batch:
    lengths = torch.tensor([3, 9, 1, 7])
    generator = torch.Generator().manual_seed(1)
    embeddings, codes = torch.randn((20, 64), generator=generator).half(), torch.zeros(20, 3, dtype=torch.int32)
    tokens = Tokens.of([[3, 5, 6, 3]] * 20)
    return Batch(embeddings, lengths, torch.ones(20), codes, tokens=tokens, layout=layout_of(lengths))


def trained(make: Callable[[], Lcm]) -> Callable[[], None]:
    """Losses, gradients and a step of the optimizer are those of the CPU; and no step in bfloat16 waits."""

    def step(device: str, *, is_mixed: bool) -> tuple[Tensor, dict[str, Tensor], Lcm]:
        torch.manual_seed(0)
        model = make().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=device == GPU)
        moved = packed_batch().to(device)
        with torch.autocast(device, torch.bfloat16, enabled=is_mixed):
            losses = model.losses(moved)
        losses.mean().backward()
        gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
        optimizer.step()
        return losses.detach(), gradients, model

    def run() -> None:
        expected, gradients, _ = step("cpu", is_mixed=False)
        with waits.none():
            step(GPU, is_mixed=True)
            found, ours, _ = step(GPU, is_mixed=False)
        assert (found.device.type, found.dtype, found.shape) == (GPU, torch.float32, (20,))
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        assert ours.keys() == gradients.keys()
        for name, one in ours.items():
            torch.testing.assert_close(one.cpu(), gradients[name], rtol=1e-3, atol=1e-5, msg=name)

    return run


def small_sonar() -> None:
    """Steps of the recipe for small SONAR models change the weights as on the CPU, and wait for nothing."""
    rng = np.random.default_rng(0)
    sequences = [[79, *rng.integers(4, 70, size).tolist()] for size in rng.integers(1, 12, 60)]
    tokens = TokenSequences.pack(sequences)
    data = TrainingSet(tokens, np.arange(40), np.zeros(40, np.int64), np.arange(40, 60).reshape(10, 2))
    recipe = SonarRecipe(("random",), dim=64, heads=2, ffn_dim=96, batch_tokens=128, learning_rate=1e-3, curriculum=())
    card = load_card("sonar-tiny").model_copy(update={"vocab_size": 80})

    def weights(device: str) -> dict[str, nn.Parameter]:
        trainer = Trainer(recipe, card, data, Path("nowhere"), device=device)
        plan = trainer.batches.plan(0, 512, recipe.batch_tokens)[:4]
        assert any(trainer.batches.batch(pairs).kept is not None for pairs in plan)
        for pairs in plan:
            trainer.step(trainer.batches.batch(pairs), 1.0)
        return dict(trainer.encoder.named_parameters()) | dict(trainer.decoder.named_parameters())

    expected = weights("cpu")
    with waits.none():
        found = weights(GPU)
    for name, one in found.items():
        torch.testing.assert_close(one.detach().cpu(), expected[name].detach(), rtol=1e-2, atol=1e-4, msg=name)


def lcm(card: LcmCard) -> Lcm:
    return build(card, SCALER, CODEBOOKS if card.quantised else None)


def sonar_llm() -> Lcm:
    model = build(load_lcm_card("lcm-sonar-llm-tiny"), SCALER)
    assert isinstance(model, SonarLlm)
    model.use(SonarTextDecoder(**NUMBERS).requires_grad_(False))
    return model


def token_lm() -> Lcm:
    return TokenLm(load_lcm_card("lcm-token-lm-tiny"), SCALER, 80)


def diversity(make: Callable[[], Lcm]) -> Callable[[], None]:
    """Gradient diversity of a batch that was moved is that of the CPU."""

    def measured(device: str) -> float:
        torch.manual_seed(0)
        return gradient_diversity(make().to(device), packed_batch().to(device))

    def run() -> None:
        found, expected = measured(GPU), measured("cpu")
        assert 0 < expected < 1 and abs(found - expected) < 1e-3 * expected

    return run


def sampling(card: LcmCard) -> Callable[[], None]:
    def draw() -> None:
        model = on_gpu(build(card, SCALER, CODEBOOKS if card.quantised else None).eval())
        batch, settings = packed_batch().to(GPU), replace(Sampling(), steps=2)
        assert model.predict(batch, settings).device.type == GPU
        assert model.next(batch, settings).shape == (4, 64)

    return draw


def inference(case: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode(), waits.none():
            case()

    return run


def embedding() -> None:
    network = on_gpu(SonarTextEncoder(**NUMBERS), torch.float16)
    tokens = Tokens.of([[3] * size for size in (5, 9, 2, 5, 30, 4)])
    found, _ = embed.embed(network, tokens, Budget(16, "batch_tokens", "tokens", "use fewer"), dim=64, device=GPU)
    assert found.shape == (6, 64)


def segmenting() -> None:
    network = SatNetwork(vocab_size=80, dim=64, layers=2, heads=2, ffn_dim=96, max_positions=34)
    on_gpu(network, torch.float16)
    call = runner.SatRunner(network, Tokenizer(Unigram()), stride=20, batch_tokens=50, device=GPU)
    assert len(call.averaged(torch.full((60,), 7), np.array([40, 3, 0, 17]))) == 60


def mismatch() -> None:
    """What is found at all."""
    try:
        on_gpu(SonarTextEncoder(**NUMBERS)).packed(torch.zeros(30, dtype=torch.int64), [(3, 10)])
    except RuntimeError as error:
        assert "same device" in str(error)
    else:
        raise AssertionError("ids on the host went unnoticed")
    for wait in (lambda x: int(x.sum()), lambda x: x[x > 0]):
        try:
            wait(given(5))
        except Exception as error:
            assert "makes the host wait" in str(error)
        else:
            raise AssertionError("a wait for the device went unnoticed")


def cases() -> dict[str, Callable[[], None]]:
    """Every case by name."""
    networks = (mismatch, encoder, embedding, sat, segmenting, decoder, beams, likelihood, predictor)
    others = (noise, codes)
    found = {case.__name__: inference(case) for case in (*networks, *others)}
    found |= {case.__name__: case for case in (fits, small_sonar)}
    of_words = (sonar_llm, token_lm)
    found |= {make.__name__: trained(make) for make in of_words}
    found |= {f"{make.__name__}, gradient diversity": diversity(make) for make in of_words}
    for card in map(load_lcm_card, (f"lcm-{kind}-tiny" for kind in KINDS)):
        found |= {
            card.name: trained(functools.partial(lcm, card)),
            f"{card.name}, sampling": inference(sampling(card)),
        }
    return found


def main() -> None:
    """Print `passed NAME`, or `failed NAME` and why."""
    for module in (embed, runner):
        setattr(module, to_host.__name__, without_waiting)
    for name, case in cases().items():
        try:
            case()
        except Exception:
            lines = [line for line in traceback.format_exc().splitlines() if line.strip()]
            ours = [line for line in lines if "stages/" in line]
            print(f"failed {name}: {lines[-1]}\n" + "\n".join(ours), flush=True)
        else:
            print(f"passed {name}", flush=True)


if __name__ == "__main__":
    main()
