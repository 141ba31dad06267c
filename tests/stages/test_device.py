"""Batches that do not fit into the device's memory are halved; what was computed stays; what cannot fit is an error.

There is no GPU where these tests must run, so a network refuses batches over a limit with the exception that PyTorch
raises when a GPU's memory is full. All the rest is real.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.arrow import embedding_matrix
from stages.autobleu import scorer
from stages.autobleu.scorer import Autobleu
from stages.autobleu.settings import AutobleuSettings
from stages.device import Budget, DeviceMemoryError, halving
from stages.encode import encoder
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.sonar.networks import SonarTextDecoder, SonarTextEncoder
from stages.stage import Computed
from tests.conftest import TINY_CARD, sample_documents

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of 79 GiB"


def budget(limit: int) -> Budget:
    return Budget(limit, "batch_tokens", "tokens", "buy a larger one")


@given(st.lists(st.integers(1, 20), max_size=60), st.integers(1, 200), st.integers(20, 200))
def test_every_row_is_computed_once_in_batches_that_fit(lengths: list[int], limit: int, memory: int) -> None:
    costs = np.sort(np.asarray(lengths, dtype=np.int64))[::-1]
    done: list[int] = []
    failed: list[int] = []

    def compute(start: int, stop: int) -> None:
        assert len(set(costs[start:stop])) == 1
        cost = int(costs[start:stop].sum())
        if cost > memory:
            failed.append(cost)
            raise torch.OutOfMemoryError(FULL)
        assert stop - start == 1 or cost <= ours.limit
        done.extend(range(start, stop))

    ours = budget(limit)
    assert halving(costs, ours, compute) == len(failed)
    assert done == list(range(len(lengths)))
    assert ours.limit == (failed[-1] // 2 if failed else limit)
    assert all(after <= before // 2 for before, after in itertools.pairwise(failed))


def test_a_row_that_does_not_fit_alone_is_an_error_that_says_what_to_do() -> None:
    def compute(start: int, stop: int) -> None:
        raise torch.OutOfMemoryError(FULL)

    with pytest.raises(DeviceMemoryError) as error:
        halving(np.asarray([7, 7, 7]), budget(100), compute)
    for words in ("one sentence alone (7 tokens)", "Tried to allocate 2.00 GiB.)", "or buy a larger one"):
        assert words in str(error.value)


def test_other_errors_are_not_taken_for_a_full_device() -> None:
    def compute(start: int, stop: int) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    ours = budget(100)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        halving(np.asarray([7, 7, 7]), ours, compute)
    assert ours.limit == 100


def test_a_batch_that_failed_holds_no_memory_while_its_halves_are_computed() -> None:
    class Tensor:
        pass

    held: list[weakref.ref[Tensor]] = []

    def compute(start: int, stop: int) -> None:
        assert all(one() is None for one in held)
        big = Tensor()
        held.append(weakref.ref(big))
        if stop - start > 1:
            raise torch.OutOfMemoryError(FULL)

    gc.disable()
    try:
        assert halving(np.full(4, 1), budget(4), compute) == 2
    finally:
        gc.enable()


def small_encoder(load: Callable[..., SonarTextEncoder], tokens: int, seen: list[int]) -> Callable[..., Any]:
    """`load_encoder` of a device that holds `tokens` tokens. seen: tokens of each batch that it was given."""

    def loading(*arguments: Any) -> SonarTextEncoder:
        network = load(*arguments)

        def hook(_: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
            seen.append(inputs[0].numel())
            if seen[-1] > tokens:
                raise torch.OutOfMemoryError(FULL)

        network.register_forward_pre_hook(hook)
        return network

    return loading


def small_decoder(rows: int, seen: list[int]) -> Callable[..., Any]:
    """`SonarTextDecoder.step` of a device that holds `rows` hypotheses. seen: rows of each step."""
    step = SonarTextDecoder.step

    def stepping(self: SonarTextDecoder, ids: torch.Tensor, state: Any) -> torch.Tensor:
        seen.append(len(ids))
        if len(ids) > rows:
            raise torch.OutOfMemoryError(FULL)
        return step(self, ids, state)

    return stepping


@pytest.fixture(scope="module")
def part() -> pa.Table:
    texts = [line for document in sample_documents("libreoffice-eng", 4) for line in document["text"].split("\n")]
    texts = [text[:80] for text in texts if text.strip()][:90]
    numbers = np.linspace(0, 0.99, len(texts))
    return pa.table({"sentences.text": texts, "sentences.lang": ["eng_Latn"] * len(texts), "sentences.u": numbers})


def run(stage: Any, table: pa.Table) -> Computed:
    result: Computed = stage.finish(stage.compute(stage.prepare(table)))
    return result


def encode_stage() -> Encode:
    stage = Encode(EncodeSettings(model=str(TINY_CARD), batch_tokens=4096))
    stage.setup("cpu")
    return stage


def test_encode_gives_the_same_bits_on_a_small_device(part: pa.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(encode_stage(), part)
    assert expected.counts["out_of_memory"] == 0 and "least.batch_tokens" not in expected.counts
    seen: list[int] = []
    monkeypatch.setattr(encoder, "load_encoder", small_encoder(encoder.load_encoder, 100, seen))
    stage = encode_stage()
    found = run(stage, part)
    for family, table in expected.families.items():
        assert found.families[family].equals(table)
    failed = [tokens for tokens in seen if tokens > 100]
    assert found.counts["out_of_memory"] == len(failed) > 0
    assert found.counts["least.batch_tokens"] == failed[-1] // 2 <= 100
    assert sum(seen) - sum(failed) == found.counts["tokens"]  # nothing twice but what failed
    again = run(stage, part)
    assert again.counts["out_of_memory"] == 0  # the next part starts with what worked
    assert embedding_matrix(again.families["embeddings"]["embedding"]).any()


@pytest.mark.parametrize("beam", [1, 3])
def test_autobleu_gives_the_same_on_a_small_device(part: pa.Table, monkeypatch: pytest.MonkeyPatch, beam: int) -> None:
    table = part
    for family, columns in run(encode_stage(), part).families.items():
        for name in columns.column_names:
            table = table.append_column(f"{family}.{name}", columns[name])

    def stage() -> Autobleu:
        one = Autobleu(AutobleuSettings(model=str(TINY_CARD), beam=beam, length_factor=1.0, length_extra=1))
        one.setup("cpu")
        return one

    expected = run(stage(), table)
    seen: list[int] = []
    monkeypatch.setattr(scorer.SonarTextDecoder, "step", small_decoder(20, seen))
    found = run(stage(), table)
    assert found.families["autobleu"].equals(expected.families["autobleu"])
    halvings, least = found.counts.pop("out_of_memory"), found.counts.pop("least.batch_rows")
    assert halvings == len([rows for rows in seen if rows > 20]) > 0
    assert least <= 20
    assert expected.counts.pop("out_of_memory") == 0
    assert found.counts == expected.counts
