"""Embeddings → the most likely tokens, one after the other, with a cache that is made once.

A step is work of the device alone: the network, the choice of the token and the bookkeeping of which rows are finished
lie in tensors, and the host looks at them every few steps only. On a GPU the steps of a number of rows are one CUDA
graph, and row counts are powers of two. Attention finds the end of the cache by itself (`single_query`); without that
kernel it sees the cache in blocks of `BLOCK` tokens behind a mask, with a graph for each number of blocks. On a CPU
the same step runs as it is, over exactly the rows and tokens that are there, so that a row's bits depend on nothing
else. Memory: 4 · layers · dim bytes per row and token in 16 bits, and the logits of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stages.device import to_host
from stages.largest import first_largest
from stages.sonar.ids import END, PAD
from stages.sonar.networks import DecoderState, SonarTextDecoder

BLOCK = 32  # tokens by which the part of the cache that a captured step sees grows
ROOM = 64  # tokens by which its capacity grows
LEAST_ROWS = 128  # of a captured step: with fewer, reading the weights takes longer than computing with them
KEPT = 0.9  # finished rows are removed once those that a step must compute are at most this share
PREFIX = 2  # `</s> [language]`


@dataclass(frozen=True)
class StepMode:
    """How decoding steps are issued on a kind of device.

    check: steps between two checks of how many rows are open. doubling: whether row counts are powers of two. masked:
    whether attention sees the cache in blocks behind a mask; otherwise exactly the filled part. captured: whether steps
    run as CUDA graphs.
    """

    check: int
    doubling: bool
    masked: bool
    captured: bool

    def rows(self, count: int) -> int:
        """Return the number of rows that a step computes in order to decode `count` rows."""
        return max(LEAST_ROWS, 1 << (count - 1).bit_length()) if self.doubling else count

    def seen(self, length: int, capacity: int) -> int | None:
        """Return how many tokens of the cache are attended to when it holds `length`; None: exactly the filled ones."""
        return min(capacity, -(-length // BLOCK) * BLOCK) if self.masked else None


ON_CPU = StepMode(check=1, doubling=False, masked=False, captured=False)
# An H200 decodes 2 048 sentences of real lengths at 6 501/s, at 6 204/s with a check every fourth step, and at 6 067/s
# with row counts in eighths of powers of two: fewer rows are computed (1.21, not 1.37, per open one), but the cache is
# copied more often.
ON_GPU = StepMode(check=2, doubling=True, masked=False, captured=True)
ON_GPU_MASKED = replace(ON_GPU, masked=True)  # where attention has no kernel that finds the end of the cache


def room(length: int) -> int:
    """Return the capacity, in tokens, of a GPU's cache that must hold `length` tokens."""
    return -(-length // ROOM) * ROOM


class Greedy:
    """Greedy decoding with one decoder. It reuses its memory, and on a GPU its CUDA graphs, from batch to batch."""

    def __init__(self, decoder: SonarTextDecoder, pace: StepMode | None = None) -> None:
        self.decoder = decoder
        self.pace = pace or _mode(decoder)
        self._space: _Space | None = None
        self._captured = _Captured()

    @torch.inference_mode()
    def __call__(self, embeddings: Tensor, prefixes: Tensor, max_new_tokens: Tensor) -> list[list[int]]:
        """Choose the most likely next token of each row, until it is `</s>` or the row's limit is reached.

        embeddings: (rows, dim); prefixes: (rows, 2) int64, `</s> [language]`; max_new_tokens: (rows,) int64, each ≥ 1,
        preferably on the CPU. Returns each row's new ids; the last is `</s>` unless the limit came first.
        """
        if len(embeddings) == 0:
            return []
        longest = longest_limit(max_new_tokens)
        try:
            space = self._roomy(len(embeddings), longest)
            space.begin(self.decoder, self.pace, embeddings, prefixes, max_new_tokens)
            self._decode(space, longest)
            return space.sentences(len(embeddings), longest)
        except BaseException:
            self.release()  # what did not fit leaves its memory to a smaller batch
            raise

    def release(self) -> None:
        """Free the memory and the CUDA graphs that are kept for the next batch."""
        self._space = None
        self._captured = _Captured()

    def _roomy(self, rows: int, longest: int) -> _Space:
        """Return the space of earlier batches if it is large enough, otherwise a new one."""
        needed, capacity = self.pace.rows(rows), longest + PREFIX - 1
        space = self._space
        if space and len(space.token) >= needed and space.state.cache.shape[4] >= capacity:
            return space
        self.release()
        if self.pace.doubling:
            capacity = min(room(capacity), len(self.decoder.embedding.positions))
        self._space = _Space.of(self.decoder, needed, capacity)
        return self._space

    def _decode(self, space: _Space, longest: int) -> None:
        state, pace = space.state, self.pace
        opened = OpenRows()
        for done in range(1, longest + 1):
            self._step(space)
            if done % pace.check:
                continue
            left = opened.count(space.open[: state.rows])
            if left == 0:
                break
            if pace.rows(left) <= KEPT * state.rows:
                space.keep(pace.rows(left))

    def _step(self, space: _Space) -> None:
        state, length = space.state, space.state.length
        seen = self.pace.seen(length + 1, state.cache.shape[4])
        if self.pace.captured:
            self._captured.run((state.rows, seen or 0), lambda: space.step(self.decoder, seen))
        else:
            space.step(self.decoder, seen)
        state.length = length + 1  # the host's count, whether the step ran here or in a graph


@dataclass
class _Space:
    """The tensors that a batch is decoded in, at fixed addresses, as CUDA graphs need. `state.rows` rows are in use.

    token, limits: (most,) int64; open: (most,) bool, not finished yet; place: (most,) int64, where in `out` the row's
    first new token belongs, less the prefix; out: (most, capacity) int64, in the order of the batch, `PAD` where no
    token is. logits: (most, vocabulary and some columns of −inf), or None where a step makes its own.
    """

    state: DecoderState
    token: Tensor
    limits: Tensor
    open: Tensor
    place: Tensor
    out: Tensor
    logits: Tensor | None

    @classmethod
    def of(cls, decoder: SonarTextDecoder, most: int, capacity: int) -> _Space:
        """Allocate a space for `most` rows of `capacity` tokens."""
        device = decoder.embedding.weight.device
        token, limits, place = torch.zeros((3, most), dtype=torch.int64, device=device)
        return cls(
            state=decoder.room(most, capacity),
            token=token,
            limits=limits,
            open=torch.zeros(most, dtype=torch.bool, device=device),
            place=place,
            out=torch.empty((most, capacity), dtype=torch.int64, device=device),
            logits=decoder.room_for_logits(most),
        )

    def begin(
        self, decoder: SonarTextDecoder, pace: StepMode, embeddings: Tensor, prefixes: Tensor, limits: Tensor
    ) -> None:
        """Start a batch with the first token of its prefixes. Rows that only pad the batch count as finished."""
        count, rows = len(embeddings), pace.rows(len(embeddings))
        self.limits[:count] = limits.to(self.limits.device)
        self.open.zero_()
        self.open[:count] = True
        self.out.fill_(PAD)
        torch.arange(-PREFIX, rows * self.out.shape[1] - PREFIX, self.out.shape[1], out=self.place[:rows])
        decoder.begin(embeddings, self.state)
        self.state.rows = rows
        if pace.masked:  # behind a mask values count nothing, unless they are not numbers
            self.state.cache[:, :, :rows].zero_()
        self.token[:count] = prefixes[:, 0]
        decoder.step(self.token[:rows], self.state, pace.seen(1, self.out.shape[1]))
        self.token[:count] = prefixes[:, 1]

    def step(self, decoder: SonarTextDecoder, seen: int | None) -> None:
        """Decode the next token of each open row."""
        rows, length = self.state.rows, self.state.position  # which is behind the step the number of tokens
        logits = decoder.logits(decoder.step(self.token[:rows], self.state, seen), self.logits)
        logits.select(1, PAD).fill_(-torch.inf)
        token, opened = likeliest(logits), self.open[:rows]
        self.out.view(-1).index_copy_(0, self.place[:rows] + length, token.masked_fill(~opened, PAD))
        opened.logical_and_((token != END) & (self.limits[:rows] >= length))
        self.token[:rows] = token

    def keep(self, count: int) -> None:
        """Shrink the batch to `count` rows; all open rows, of which there are at most `count`, stay."""
        order = self.open[: self.state.rows].logical_not().argsort(stable=True)[:count]
        for each in (self.token, self.limits, self.open, self.place):
            each[:count] = each.index_select(0, order)
        self.state.keep(order)

    def sentences(self, count: int, longest: int) -> list[list[int]]:
        """Return the new ids of each row, in the order of the batch."""
        found = to_host(self.out[:count, :longest]).numpy()
        written = found != PAD
        ends = written.sum(axis=1).cumsum().tolist()
        ids = found[written].tolist()
        return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _mode(decoder: SonarTextDecoder) -> StepMode:
    if not decoder.embedding.weight.is_cuda:
        return ON_CPU
    return ON_GPU if decoder.attends_by_kernel() else ON_GPU_MASKED


class OpenRows:
    """Counts the open rows of a batch without making the host wait for the device.

    On a GPU the number is that of the previous check: it has arrived in the host's memory by now, so the host can queue
    further steps before the present one is done.
    """

    def __init__(self) -> None:
        self._before: tuple[Tensor, torch.cuda.Event] | None = None

    def count(self, opened: Tensor) -> int:
        """Return at least the number of open rows; opened: (rows,) bool. Only rows that were not open may have left."""
        count = opened.sum()
        if not count.is_cuda:
            return int(count)
        before = self._before
        on_host = torch.empty((), dtype=count.dtype, pin_memory=True)
        on_host.copy_(count, non_blocking=True)
        copied = torch.cuda.Event()
        copied.record()
        self._before = on_host, copied
        if before is None:
            return len(opened)
        before[1].synchronize()
        return int(before[0])


class _Captured:
    """Steps as CUDA graphs, one for each number of rows and of cached tokens that are attended to.

    The first step of a kind runs as it is, and libraries prepare what they need; the second is captured and replayed.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self._pool: Any = None  # memory that all graphs share: they never run at the same time

    def run(self, kind: tuple[int, int], step: Callable[[], None]) -> None:
        """Run a step; replay its graph if it has been captured."""
        if kind not in self._graphs:
            step()
            self._graphs[kind] = None
            return
        graph = self._graphs[kind]
        if graph is None:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                step()
            self._graphs[kind] = graph
        graph.replay()


def likeliest(logits: Tensor) -> Tensor:
    """Return the first of the largest logits, as `argmax` does: (rows, vocabulary) → (rows,) int64.

    On CPUs NumPy does it in a hundredth of the time that `argmax` takes in bfloat16: positive numbers are ordered as
    their bits are. Rows whose largest logit is not positive, or not a number, are left to `argmax`.
    """
    if logits.device.type != "cpu" or logits.dtype not in (torch.float32, torch.bfloat16):
        return first_largest(logits)
    if logits.dtype == torch.float32:
        return torch.from_numpy(logits.numpy().argmax(axis=1))
    found = torch.from_numpy(logits.view(torch.int16).numpy().argmax(axis=1))
    best = logits.gather(1, found[:, None])[:, 0]
    unsure = ~((best > 0) & (best < torch.inf))
    if unsure.any():
        found[unsure] = logits[unsure].argmax(dim=1)
    return found


def longest_limit(max_new_tokens: Tensor) -> int:
    """Return the largest limit. Raises ValueError if a row's limit is below 1."""
    least, longest = int(max_new_tokens.min()), int(max_new_tokens.max())
    if least < 1:
        raise ValueError(f"max_new_tokens holds {least}; every row needs a limit of at least 1")
    return longest
