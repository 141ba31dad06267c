"""One optimizer step: micro-batches add up to the batch, and what is not finite is named."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from pipeline.storage.store import Store
from pipeline.training import not_finite
from pipeline.training.distributed import Processes
from pipeline.training.loop import Interval
from pipeline.training.not_finite import NotFiniteError
from stages.lcm.batch import Batch
from tests.support.trainings import ALONE, OneOfTwo, batch, stepper


def named(pieces: Sequence[int]) -> list[str]:
    return [f"piece {piece}" for piece in pieces]


def joined(one: Batch, two: Batch) -> Batch:
    parts = ((one.embeddings, two.embeddings), (one.lengths, two.lengths), (one.weights, two.weights))
    return Batch(*map(torch.cat, parts))


@pytest.mark.parametrize("clip", [10.0, 1e-3])
def test_micro_batches_add_up_to_the_batch(clip: float) -> None:
    one, two = batch(5, 3, seed=1), batch(7, seed=2)
    apart, together = stepper(clip_norm=clip), stepper(clip_norm=clip)
    results = []
    for step in range(3):
        results.append(
            (apart.step(step, [(0, one), (1, two)]).result(), together.step(step, [(0, joined(one, two))]).result())
        )
    for first, second in results:
        assert first.loss == pytest.approx(second.loss, rel=1e-6)
        assert first.norm == pytest.approx(second.norm, rel=1e-5)
        assert (first.sentences, first.weight) == (15, pytest.approx(second.weight))
    for mine, theirs in zip(apart.losses.parameters(), together.losses.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_the_gradient_is_that_of_the_weighted_mean() -> None:
    one, taken = batch(5, 3, seed=1), stepper(clip_norm=1e9)
    losses = taken.losses
    each = losses(one)
    expected = (one.weights * each).sum() / one.weights.sum()
    expected.backward()
    norm = torch.stack([p.grad.norm() for p in losses.parameters() if p.grad is not None]).norm()
    taken.optimizer.zero_grad()
    result = taken.step(0, [(0, one)]).result()
    assert result.loss == pytest.approx(float(expected.detach()), rel=1e-6)
    assert result.norm == pytest.approx(float(norm), rel=1e-5)


@pytest.mark.parametrize("world", [1, 8])
def test_a_step_of_prompts_alone_changes_nothing(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Processes, "add_up", lambda self, numbers: None)  # what eight have is what one has
    taken, prompts = stepper(weight_decay=0.0), batch(5, 3, seed=1)
    taken.processes = Processes(0, world, torch.device("cpu"))
    prompts.weights.zero_()
    before = [one.detach().clone() for one in taken.losses.parameters()]
    result = taken.step(0, [(0, prompts)]).result()
    assert result.finite and (result.loss, result.norm, result.weight) == (0, 0, 0)
    assert all(torch.equal(old, new) for old, new in zip(before, taken.losses.parameters(), strict=True))


def test_how_long_each_process_waited_is_known_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_up(self: Processes, numbers: torch.Tensor) -> None:
        numbers[-3:] += torch.tensor([0.5, 0.0, 2.0])  # of the others

    monkeypatch.setattr(Processes, "add_up", add_up)
    taken = stepper()
    taken.processes = Processes(1, 3, torch.device("cpu"))
    steps = [taken.step(at, [(at, batch(5, seed=1))], waited=0.25).result() for at in range(2)]
    assert [one.waited for one in steps] == [(0.5, 0.25, 2.0)] * 2
    interval = Interval()
    for one in steps:
        interval.add(one)
    assert interval.waited == (1.0, 0.5, 4.0)


def test_clipping_cuts_the_gradient() -> None:
    taken = stepper(clip_norm=0.01, weight_decay=0.0)
    cut: list[float] = []
    taken.optimizer.register_step_pre_hook(
        lambda optimizer, *of: cut.append(
            float(torch.stack([p.grad.norm() for g in optimizer.param_groups for p in g["params"]]).norm())
        )
    )
    assert taken.step(0, [(0, batch(5, seed=1))]).result().norm > 0.01
    assert cut == [pytest.approx(0.01, rel=1e-3)]


def test_documents_that_are_not_finite_are_named_and_saved(tmp_path: Path) -> None:
    good, bad = batch(5, 3, seed=1), batch(2, 4, 3, seed=2)
    bad.embeddings[3, 0] = float("nan")
    pending = stepper().step(4, [(8, good), (9, bad)])
    result = pending.result()
    assert not result.finite
    store = Store(str(tmp_path))
    with pytest.raises(NotFiniteError, match=r"in step 4 the loss is nan.*\nembeddings .*: piece 21; the batch is sav"):
        not_finite.stop(store, "train/x", pending, result, ALONE, named)
    (path,) = tmp_path.glob("train/x/not-finite/*")
    assert path.name == "step-00000004-micro-000000009.safetensors"
    with safe_open(path, "pt") as file:
        torch.testing.assert_close(file.get_tensor("embeddings"), bad.embeddings, equal_nan=True)
        assert json.loads(file.metadata()["documents"]) == named(file.get_tensor("pieces").tolist())


def test_a_process_without_fault_blames_nobody_while_another_has_one(tmp_path: Path) -> None:
    """Only where no process has one, gradients are suspected."""
    taken = stepper()
    pending = taken.step(4, [(8, batch(5, 3, seed=1)), (10, batch(2, seed=2))])
    result, store = replace(pending.result(), loss=math.nan), Store(str(tmp_path))
    theirs = "losses that are not finite: piece 7; the batch is saved as x"
    blaming = OneOfTwo(1, other=["losses that are not finite", theirs])
    with pytest.raises(NotFiniteError, match=r"norm [\d.]+\nlosses that are not finite: piece 7; .* x\nLeave"):
        not_finite.stop(store, "train/x", pending, result, blaming, named)
    assert store.find("train/x") == []
    with pytest.raises(NotFiniteError, match=r"\nits gradient: piece 10, piece 11; .*\nits gradient: piece 20; "):
        not_finite.stop(store, "train/x", pending, result, OneOfTwo(1), named)
    assert len(store.find("train/x")) == 2
