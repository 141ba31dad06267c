"""Batches that do not fit into the device's memory are tried again, then halved; what cannot fit is an error.

One test fills a real GPU. The others must run without one: there a limit on the bytes of each tensor raises what
PyTorch raises when a GPU's memory is full.
"""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stages.arrow import embedding_matrix
from stages.autobleu.scorer import Autobleu
from stages.autobleu.settings import AutobleuSettings
from stages.device import (
    CALM_PARTS,
    LEAST_TOKENS,
    Budget,
    DeviceMemoryError,
    batch_limit,
    describe,
    in_batches,
    with_room,
)
from stages.encode.encoder import Encode
from stages.encode.settings import EncodeSettings
from stages.sonar.card import load_card
from stages.sonar.decode import rows_that_fit
from stages.stage import Computed
from tests.conftest import TINY_CARD, sample_documents

FULL = "CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has a total capacity of 79 GiB"


def budget(limit: int) -> Budget:
    return Budget(limit, "batch_tokens", "tokens", "buy a larger one")


@settings(deadline=None)
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
    assert in_batches(costs, ours, compute) == len(failed)
    assert done == list(range(len(lengths)))
    assert failed[::2] == failed[1::2]  # each was tried twice
    assert ours.limit == max(1, limit >> len(failed) // 2)
    assert all(after <= before // 2 for before, after in itertools.pairwise(failed[::2]))


def test_batches_on_cpus_are_small_enough_for_the_cache() -> None:
    assert batch_limit(16_384, "cuda:0", 1024) == 16_384
    assert batch_limit(16_384, "cpu", 1024) == 2048
    assert batch_limit(600, "cpu", 1024) == 600
    assert batch_limit(16_384, "cpu", 8192) == LEAST_TOKENS  # the weights of a wide network are read for more tokens


def test_a_passing_failure_of_a_small_batch_changes_nothing() -> None:
    ours, asked = budget(16_384), []

    def compute(start: int, stop: int) -> None:
        asked.append(stop - start)
        if len(asked) == 1:
            raise torch.OutOfMemoryError(FULL)

    assert in_batches(np.full(3, 20), ours, compute) == 1
    assert asked == [3, 3] and ours.limit == 16_384
    assert ours.counts(1) == {"out_of_memory": 1.0, "least.batch_tokens": 16_384.0}


def test_a_small_batch_that_fails_twice_halves_the_limit_which_grows_again() -> None:
    ours = budget(16_384)

    def compute(start: int, stop: int) -> None:
        if stop - start > 1:
            raise torch.OutOfMemoryError(FULL)

    assert in_batches(np.full(3, 20), ours, compute) == 2
    assert ours.limit == 8192  # not 30, half of what that batch had
    sizes = []
    for _ in range(CALM_PARTS):
        assert ours.limit == 8192
        in_batches(np.full(3, 20), ours, lambda start, stop: sizes.append(stop - start))
    assert ours.limit == 16_384 and set(sizes) == {3}
    for _ in range(2 * CALM_PARTS):
        in_batches(np.full(3, 20), ours, lambda start, stop: None)
    assert ours.limit == 16_384  # never more than was asked for


def test_what_does_not_fit_in_two_parts_in_a_row_is_not_tried_in_the_third() -> None:
    ours = budget(16_384)

    def compute(start: int, stop: int) -> None:
        if stop - start > 1:
            raise torch.OutOfMemoryError(FULL)

    assert [in_batches(np.full(3, 20), ours, compute) for _ in range(4)] == [2, 2, 0, 0]
    assert ours.limit == 30


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (torch.OutOfMemoryError(FULL), True),
        (torch.AcceleratorError("CUDA error: out of memory"), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"), False),
    ],
)
def test_which_errors_mean_that_the_memory_is_full(error: RuntimeError, is_full: bool) -> None:
    failures = []

    def compute(start: int, stop: int) -> None:
        if not failures:
            failures.append(stop)
            raise error

    if is_full:
        assert in_batches(np.full(3, 20), budget(100), compute) == 1
    else:
        with pytest.raises(type(error)):
            in_batches(np.full(3, 20), budget(100), compute)


def test_what_a_part_needs_as_a_whole_is_tried_twice() -> None:
    tries = []

    def make() -> int:
        tries.append(1)
        if len(tries) != 2:
            raise torch.OutOfMemoryError(FULL)
        return 7

    assert with_room(make, "the ids", "lower part_sentences") == 7
    with pytest.raises(DeviceMemoryError, match=r"the ids do not fit .*2.00 GiB.*or lower part_sentences"):
        with_room(make, "the ids", "lower part_sentences")
    assert len(tries) == 4


def test_a_row_that_does_not_fit_alone_is_an_error_that_says_what_to_do() -> None:
    def compute(start: int, stop: int) -> None:
        raise torch.OutOfMemoryError(FULL)

    with pytest.raises(DeviceMemoryError) as error:
        in_batches(np.asarray([7, 7, 7]), budget(100), compute)
    for words in ("one sentence alone (7 tokens)", "Tried to allocate 2.00 GiB.)", "or buy a larger one"):
        assert words in str(error.value)


def test_other_errors_are_not_taken_for_a_full_device() -> None:
    def compute(start: int, stop: int) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    ours = budget(100)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        in_batches(np.asarray([7, 7, 7]), ours, compute)
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
        assert in_batches(np.full(4, 1), budget(4), compute) == 4
    finally:
        gc.enable()


class SmallMemory(TorchDispatchMode):
    """While it is on, no tensor of more than `most` bytes can be made. failures: how often one was wanted."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.failures = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(one, torch.Tensor) and one.nbytes > self.most for one in tree_leaves(result)):
            self.failures += 1
            raise torch.OutOfMemoryError(FULL)
        return result


def encode_stage(device: str = "cpu", batch_tokens: int = 4096) -> Encode:
    stage = Encode(EncodeSettings(model=str(TINY_CARD), batch_tokens=batch_tokens, precision="float32"))
    stage.setup(device)
    return stage


def autobleu_stage(device: str = "cpu", batch_rows: int = 512, beam: int = 1) -> Autobleu:
    stage = Autobleu(AutobleuSettings(model=str(TINY_CARD), beam=beam, batch_rows=batch_rows, precision="float32"))
    stage.setup(device)
    return stage


def run(stage: Any, table: pa.Table) -> Computed:
    result: Computed = stage.finish(stage.compute(stage.prepare(table)))
    return result


def with_columns(table: pa.Table, computed: Computed) -> pa.Table:
    """The table and what a stage computed for it."""
    for family, columns in computed.families.items():
        for name in columns.column_names:
            table = table.append_column(f"{family}.{name}", columns[name])
    return table


def sentences(texts: list[str]) -> pa.Table:
    numbers = np.linspace(0, 0.99, len(texts))
    return pa.table({"sentences.text": texts, "sentences.lang": ["eng_Latn"] * len(texts), "sentences.u": numbers})


@pytest.fixture(scope="module")
def part() -> pa.Table:
    texts = [line for document in sample_documents("libreoffice-eng", 4) for line in document["text"].split("\n")]
    return sentences([text[:40] for text in texts if text.strip()][:60])


def test_encode_gives_the_same_bits_on_a_small_device(part: pa.Table) -> None:
    with SmallMemory(1 << 30):
        expected = run(encode_stage(), part)
    assert expected.counts["out_of_memory"] == 0 and "least.batch_tokens" not in expected.counts
    stage = encode_stage()
    with SmallMemory(60_000) as memory:
        found = run(stage, part)
        assert found.counts["out_of_memory"] == memory.failures > 0
        again = run(stage, part)
        for _ in range(9):  # until the budget is what works
            again = run(stage, part)
            if not again.counts["out_of_memory"]:
                break
        assert again.counts["out_of_memory"] == 0
    assert found.counts["least.batch_tokens"] < 4096
    for one in (found, again):
        assert all(one.families[family].equals(table) for family, table in expected.families.items())
    assert embedding_matrix(found.families["embeddings"]["embedding"]).any()


@pytest.mark.parametrize("beam", [1, 3])
def test_autobleu_gives_the_same_on_a_small_device(part: pa.Table, beam: int) -> None:
    table = part.slice(0, 30)
    table = with_columns(table, run(encode_stage(), table))
    with SmallMemory(1 << 30):
        expected = run(autobleu_stage(beam=beam), table)
    stage = autobleu_stage(beam=beam)
    with SmallMemory(200_000 * beam) as memory:
        found = run(stage, table)
    assert found.families["autobleu"].equals(expected.families["autobleu"])
    assert found.counts.pop("out_of_memory") == memory.failures > 0 == expected.counts.pop("out_of_memory")
    assert found.counts.pop("least.batch_rows") < 512
    assert found.counts == expected.counts


def test_a_stage_says_what_to_do_when_one_sentence_does_not_fit(part: pa.Table) -> None:
    table = with_columns(part, run(encode_stage(), part))
    encode, autobleu = encode_stage(), autobleu_stage(beam=2)
    with SmallMemory(30_000):
        with pytest.raises(DeviceMemoryError, match=r"one sentence alone \(4\d tokens\).*lower segment.max_tokens"):
            run(encode, table)
        with pytest.raises(DeviceMemoryError, match=r"one sentence alone \(2 hypotheses\).*lower autobleu.beam"):
            run(autobleu, table)


@pytest.fixture
def small_gpu() -> Iterator[None]:
    """A GPU of whose memory PyTorch may take 256 MB."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((256 << 20) / torch.cuda.get_device_properties(0).total_memory)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.gpu
@pytest.mark.usefixtures("small_gpu")
def test_both_stages_go_on_when_a_gpu_is_full() -> None:
    words = np.random.default_rng(0).choice(["river", "mat", "bird", "green", "dog", "blue", "city"], (4000, 120))
    table = sentences([" ".join(row) for row in words])
    fits = run(encode_stage("cuda", batch_tokens=8192), table)
    full = run(encode_stage("cuda", batch_tokens=1 << 20), table)
    assert fits.counts["out_of_memory"] == 0 < full.counts["out_of_memory"]
    assert full.counts["least.batch_tokens"] < 1 << 20
    ours, theirs = (
        torch.from_numpy(embedding_matrix(one.families["embeddings"]["embedding"])).double() for one in (full, fits)
    )
    assert torch.cosine_similarity(ours, theirs, dim=1).min() > 1 - 1e-5

    table = with_columns(table, fits)
    fits = run(autobleu_stage("cuda", batch_rows=128), table)
    full = run(autobleu_stage("cuda", batch_rows=1 << 20), table)
    assert fits.counts["out_of_memory"] == 0 < full.counts["out_of_memory"]
    pairs = [one.families["autobleu"]["decoded"].to_pylist() for one in (full, fits)]
    same = sum(ours == theirs for ours, theirs in zip(*pairs, strict=True))
    assert same > 0.9 * table.num_rows  # sums in another order decide near ties


def test_a_gpu_decodes_as_many_rows_as_60_percent_of_its_memory_hold() -> None:
    published = load_card("sonar")
    sizes = [rows_that_fit(published, 175, memory << 30) for memory in (8, 24, 40, 79, 141)]
    assert sizes == [128, 512, 1024, 2048, 2048]
    assert rows_that_fit(published, 512, 80 << 30) == 512


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(1, 200))
def test_mixed_batches_are_full_whatever_their_rows_cost(lengths: list[int], limit: int) -> None:
    costs = np.sort(np.asarray(lengths, dtype=np.int64))[::-1]
    batches: list[tuple[int, int]] = []
    assert in_batches(costs, budget(limit), lambda start, stop: batches.append((start, stop)), mixed=True) == 0
    assert [start for start, _ in batches] == [0, *(stop for _, stop in batches[:-1])]
    assert batches[-1][1] == len(costs)
    for start, stop in batches:
        assert stop - start == 1 or costs[start:stop].sum() <= limit
        assert stop == len(costs) or costs[start : stop + 1].sum() > limit


def test_networks_load_without_torch_s_compiler() -> None:
    """Its import takes seconds of CPU in each process that segments or encodes."""
    code = (
        "import sys, torch\n"
        "from stages.segment.sat.card import load_sat_card\n"
        "from stages.segment.sat.load import load\n"
        "from stages.sonar.card import load_card\n"
        "from stages.sonar.checkpoint import load_decoder, load_encoder\n"
        "load(load_sat_card('sat-tiny'), torch.float32, 'cpu')\n"
        "load_encoder(load_card('sonar-tiny')), load_decoder(load_card('sonar-tiny'))\n"
        "print({'torch._dynamo', 'sympy'} & set(sys.modules))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_one_thread_is_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for threads, said in ((1, "1 thread"), (2, "2 threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert describe("cpu") == f"cpu ({said})"
