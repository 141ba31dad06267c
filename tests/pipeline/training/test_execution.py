"""How a training is computed: again in the backward pass, in bfloat16, compiled; and what is logged of it."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path

import pytest
import torch

from pipeline.config.train import TrainSettings
from pipeline.storage.store import Store
from pipeline.training import distributed
from pipeline.training.distributed import is_compiled, parallel
from pipeline.training.status import read_metrics
from pipeline.training.step import Result, Stepper, adamw
from stages.lcm.build import build
from stages.lcm.card import LcmCard
from stages.scaler.robust import RobustScaler
from tests.support.trainings import ALONE, CARD, batch, steps_of, trained


@pytest.fixture(scope="module")
def corpus(training_corpus: Path) -> Path:
    """A corpus.yaml, on which `plain` is trained."""
    trained(training_corpus, "plain")
    return training_corpus


def test_activations_that_are_computed_again_change_nothing(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, too, is the same the second time."""
    calls = []
    plain = distributed.checkpoint
    monkeypatch.setattr(distributed, "checkpoint", lambda *of, **how: calls.append(1) or plain(*of, **how))
    trained(corpus, "again", activation_checkpointing=True)
    assert len(calls) >= 2 * 2 * 6  # blocks, micro-batches, steps
    assert steps_of(corpus, "again") == steps_of(corpus, "plain")


def test_bfloat16_is_close(corpus: Path) -> None:
    trained(corpus, "bfloat16", precision="bfloat16")
    plain, rounded = steps_of(corpus, "plain"), steps_of(corpus, "bfloat16")
    assert plain != rounded
    for mine, theirs in zip(plain, rounded, strict=True):
        assert theirs == pytest.approx(mine, rel=0.03)


@pytest.mark.parametrize(
    ("parameters", "device", "setting", "compiled"),
    [
        (100_000_000, "cuda", "auto", True),
        (99_999_999, "cuda", "auto", False),
        (100_000_000, "cpu", "auto", False),
        (1, "cpu", "always", True),
        (100_000_000, "cuda", "never", False),
    ],
)
def test_large_models_are_compiled_on_gpus(parameters: int, device: str, setting: str, compiled: bool) -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.empty(parameters, device="meta"))
    settings = TrainSettings.model_validate({"compile": setting})
    assert is_compiled(model, settings, torch.device(device)) is compiled


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("again", [False, True])
def test_compiled_blocks_give_the_same(again: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the graphs as PyTorch traced them, and by the C++ that it makes of them."""
    monkeypatch.setattr(
        "pipeline.training.distributed.torch.compile", functools.partial(torch.compile, backend=backend)
    )

    from torch._dynamo.utils import counters  # loads the compiler, for seconds

    def results(**settings: object) -> list[Result]:
        torch.manual_seed(0)
        card = LcmCard.model_validate(CARD | {"dropout": 0.0, "layers": 1})
        model = build(card, RobustScaler(torch.zeros(8), torch.ones(8)))
        chosen = TrainSettings.model_validate(settings)
        losses = parallel(model, chosen, ALONE, torch.float32)
        taken = Stepper(losses, adamw(losses, chosen), chosen, ALONE, torch.float32)
        return [taken.step(step, [(step, batch(5, 3, seed=step))]).result() for step in range(2)]

    torch.compiler.reset()
    counters.clear()
    compiled = results(compile="always", activation_checkpointing=again)
    assert counters["stats"]["unique_graphs"] > 0
    for mine, theirs in zip(results(compile="never"), compiled, strict=True):
        assert (theirs.loss, theirs.norm) == pytest.approx((mine.loss, mine.norm), rel=1e-5)


def test_what_is_logged_of_steps(corpus: Path) -> None:
    lines = [one for one in read_metrics(Store(str(corpus.parent / "out")), "train/plain") if one["kind"] == "train"]
    assert [line["step"] for line in lines] == list(range(1, 7))
    for line in lines:
        assert line["tflops"] > 0 and line["mfu"] is None  # a CPU has no peak
        assert 0 < line["loader_wait"] < 1
        assert line["concepts_per_second"] > 0
    events = list((corpus.parent / "out" / "train" / "plain" / "tensorboard").glob("events.out.tfevents.*"))
    assert events and all(one.stat().st_size > 500 for one in events)
