"""What a GPU would compute, on tensors that have a device, a format and a shape, but no values.

    python -m tests.stages.fake_gpu LIBRARY        # of tests/support/one_gpu.cpp; one line a case

Operations on tensors of different devices raise, and so does whatever waits for a value: `.item()`, a mask as an index.
A process of its own, for the library is for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from stages.batching import Tokens
from stages.device import Budget
from stages.fragility.noise import perturbed
from stages.lcm.batch import Batch
from stages.lcm.build import build
from stages.lcm.card import LcmCard, load_lcm_card
from stages.lcm.layers import _Picked
from stages.lcm.model import Sampling
from stages.lcm.packing import _Reorder, layout_of
from stages.lcm.token_lm import TokenLm
from stages.predictor.network import PredictorNetwork
from stages.rvq.codebooks import Codebooks, Nearest
from stages.scaler.robust import RobustScaler
from stages.segment.sat import runner
from stages.segment.sat.networks import SatNetwork
from stages.sonar import embed
from stages.sonar.generate import _Batch, _candidates, _Trellis
from stages.sonar.greedy import ON_GPU, Greedy
from stages.sonar.likelihood import sentence_losses
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder

GPU = "cuda"
NUMBERS = {"dim": 64, "layers": 2, "heads": 2, "ffn_dim": 96, "vocab_size": 80, "max_tokens": 64}
SCALER = RobustScaler(torch.zeros(64), torch.ones(64))
CODEBOOKS = Codebooks(torch.zeros(3, 16, 64, dtype=torch.float16))
KINDS = ("base", "two-tower", "one-tower", "quant-c", "quant-d")
Module = TypeVar("Module", bound=nn.Module)


def _is_gpu(one: object) -> bool:
    return isinstance(one, torch.device) and one.type == GPU


class FakeGpu(FakeTensorMode):
    """Tensors on the GPU have no values; those on the host keep theirs."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if not any(isinstance(one, FakeTensor) or _is_gpu(one) for one in leaves):
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(Tensor, self.from_tensor, (args, kwargs))
        return super().__torch_dispatch__(func, (FakeTensor,), args, kwargs)


@contextlib.contextmanager
def autocast() -> Iterator[None]:
    """`torch.autocast`, which does nothing where there is no GPU."""
    torch.set_autocast_dtype(GPU, torch.bfloat16)
    torch.set_autocast_enabled(GPU, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(GPU, False)
        torch.clear_autocast_cache()


def on_gpu(module: Module, dtype: torch.dtype | None = None, trained: bool = False) -> Module:
    """The same module, its tensors without values on the GPU; `Module.to` would copy values."""
    for part in module.modules():
        for tensors, is_parameter in ((part._parameters, True), (part._buffers, False)):
            for name, one in tensors.items():
                if one is not None:
                    kept = dtype if dtype and one.is_floating_point() else one.dtype
                    moved = torch.empty(one.shape, dtype=kept, device=GPU)
                    tensors[name] = nn.Parameter(moved, requires_grad=trained) if is_parameter else moved
    return module


def given(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=GPU)


def nothing(result: Tensor) -> Tensor:
    """In the place of `to_host`: there are no values to bring home."""
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
    search = Greedy(network, replace(ON_GPU, captured=False))
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
    state.keep(given(18, dtype=torch.int64))


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


def packed_batch() -> Batch:
    lengths = torch.tensor([3, 9, 1, 7])
    codes = torch.zeros(20, 3, dtype=torch.int32)
    return Batch(torch.zeros(20, 64).half(), lengths, torch.ones(20), codes, layout=layout_of(lengths))


def lcm(card: LcmCard) -> Callable[[], None]:
    def train() -> None:
        host = packed_batch()
        model = build(card, SCALER, CODEBOOKS if card.quantised else None)
        with FakeGpu():
            on_gpu(model, trained=True)
            moved = host.to(GPU)
            with autocast():
                losses = model.losses(moved)
            assert (losses.device.type, losses.dtype, losses.shape) == (GPU, torch.float32, (20,))
            assert losses.requires_grad

    return train


def gradients() -> None:
    """Of what has a backward pass of its own; PyTorch's engine does not start without a GPU."""
    index = given(20, dtype=torch.int64)
    found = _Picked.backward(SimpleNamespace(saved_tensors=(index,), entries=8), given(20, 64))[0]
    assert (found.device.type, found.dtype, found.shape) == (GPU, torch.float16, (8, 64))
    assert _Reorder.backward(SimpleNamespace(saved_tensors=(index,)), given(30, 64))[0].shape == (20, 64)


def sampling(card: LcmCard) -> Callable[[], None]:
    def draw() -> None:
        model = on_gpu(build(card, SCALER, CODEBOOKS if card.quantised else None).eval())
        batch, settings = packed_batch().to(GPU), replace(Sampling(), steps=2)
        assert model.predict(batch, settings).device.type == GPU
        assert model.next(batch, settings).shape == (4, 64)

    return draw


def sonar_llm() -> None:
    model = on_gpu(build(load_lcm_card("lcm-sonar-llm-tiny"), SCALER).eval())
    decoder = on_gpu(SonarTextDecoder(**NUMBERS))
    decoder.to = lambda device: decoder  # type: ignore[method-assign, assignment]
    model.use(decoder)
    tokens = Tokens.of([[3, 5, 6, 3]] * 20)
    assert model.losses(replace(packed_batch(), tokens=tokens).to(GPU)).device.type == GPU


def token_lm() -> None:
    model = on_gpu(TokenLm(load_lcm_card("lcm-token-lm-tiny"), SCALER, 80))
    moved = replace(packed_batch(), tokens=Tokens.of([[3, 5, 6, 3]] * 20)).to(GPU)
    assert {model.train(mode).losses(moved).device.type for mode in (True, False)} == {GPU}


def inference(case: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode(), FakeGpu():
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
            assert "aten._local_scalar_dense" in str(error) or "aten.nonzero" in str(error)
        else:
            raise AssertionError("a wait for the device went unnoticed")


def cases() -> dict[str, Callable[[], None]]:
    """Every case by name."""
    networks = (mismatch, encoder, embedding, sat, segmenting, decoder, beams, likelihood, predictor)
    others = (noise, codes, gradients, sonar_llm, token_lm)
    found = {case.__name__: inference(case) for case in (*networks, *others)}
    for card in map(load_lcm_card, (f"lcm-{kind}-tiny" for kind in KINDS)):
        found |= {card.name: lcm(card), f"{card.name}, sampling": inference(sampling(card))}
    return found


def main(library: str) -> None:
    """Print `passed NAME`, or `failed NAME` and why."""
    ctypes.CDLL(library)
    embed.to_host = runner.to_host = nothing  # type: ignore[assignment]
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
    main(sys.argv[1])
