"""Embeddings of many sentences → token ids, batch after batch on a device.

Sentences of like limits are decoded together, longest first. Greedy decoding takes one pass of the decoder per token,
beam search `beam` of them; a batch holds the cache of `batch_rows` hypotheses at its longest limit: 19 MB per row of
the published decoder at 128 tokens per sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from stages.batching import Indices
from stages.device import Budget, compute_dtype, in_batches, prepare_cuda
from stages.sonar.card import ModelCard, load_card
from stages.sonar.checkpoint import load_decoder
from stages.sonar.generate import beam_search
from stages.sonar.greedy import LEAST_ROWS, PREFIX, Greedy, room
from stages.sonar.networks import SonarTextDecoder
from stages.sonar.settings import DecodingSettings
from stages.sonar.tokenizer import SonarTokenizer
from stages.stage import NON_FINITE

CPU_ROWS, GPU_ROWS = 512, 2048  # of a batch, where the settings do not say


def sampled_rows(part: pa.Table, rate: float) -> Indices:
    """Return the rows of a part that a sample holds and that have an embedding."""
    chosen = (part["sentences.u"].to_numpy() < rate) & (part["status.status"].to_numpy() != NON_FINITE)
    return np.flatnonzero(chosen).astype(np.int64)


def rows_that_fit(card: ModelCard, longest: int, memory: int) -> int:
    """Return how many rows a GPU can decode at once: those whose cache and logits, in 16 bits, take 60 % of its memory.

    Args:
        card: the decoder.
        longest: the most new tokens of a row.
        memory: the GPU's memory in bytes.

    Returns:
        A power of two.
    """
    row = 4 * card.decoder_layers * card.dim * room(longest + PREFIX - 1) + 8 * card.vocab_size
    return min(GPU_ROWS, max(LEAST_ROWS, 1 << max(1, memory * 6 // 10 // row).bit_length() - 1))


class _Ahead:
    """Makes what the next batch needs while this one is computed."""

    def __init__(self, make: Callable[[int, int], tuple[Tensor, Tensor]]) -> None:
        self._make = make
        self._pool = ThreadPoolExecutor(1)
        self._begun: tuple[tuple[int, int], Future[tuple[Tensor, Tensor]]] | None = None

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, start: int, stop: int) -> None:
        """Start preparing these rows, which will probably be next."""
        self._begun = (start, stop), self._pool.submit(self._make, start, stop)

    def take(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return what these rows need; it is made now if others were expected."""
        begun, self._begun = self._begun, None
        if begun and begun[0] == (start, stop):
            return begun[1].result()
        return self._make(start, stop)


class BatchedDecoder:
    """The decoder that a stage's settings name, on a device, with its tokenizer. `beam` 1: greedy.

    Args:
        settings: the model, the precision and the size of batches.
        beam: how many hypotheses are kept; 1 decodes greedily.
        length_penalty: the exponent of a hypothesis's length in its score.
    """

    def __init__(self, settings: DecodingSettings, *, beam: int = 1, length_penalty: float = 1.0) -> None:
        self.settings = settings
        self.beam, self.length_penalty = beam, length_penalty
        self.card = load_card(settings.model)
        self.tokenizer = SonarTokenizer(self.card)
        self.device = "cpu"
        self.dtype = torch.float32
        self.network: SonarTextDecoder
        self._budget: Budget | None = None  # made for the first part, whose lengths say how much a row takes

    def setup(self, device: str) -> None:
        """Load the decoder."""
        self.device = device
        prepare_cuda(device)
        self.dtype = compute_dtype(self.settings.precision, device)
        self.network = load_decoder(self.card, self.dtype, device)
        self._greedy = Greedy(self.network)

    def limits(self, texts: Sequence[str]) -> Indices:
        """Return how many tokens a decoding may have: bounded by the length of its source."""
        lengths = np.asarray(self.tokenizer.count(texts), dtype=np.int64)
        bound = np.ceil(lengths * self.settings.length_factor).astype(np.int64) + self.settings.length_extra
        return np.asarray(np.minimum(bound, self.card.max_tokens - 2))

    def prefixes(self, langs: Sequence[str]) -> Indices:
        """Return (rows, 2), the prefix of each decoding.

        Raises ValueError if the decoder cannot produce a language.
        """
        try:
            prefix_of = {lang: self.tokenizer.target_prefix(lang) for lang in sorted(set(langs))}
        except ValueError as error:
            raise ValueError(
                f"{error}; give {self.settings.name}.model a decoder that can produce this language, or take its "
                "documents out of the input"
            ) from error
        return np.asarray([prefix_of[lang] for lang in langs], dtype=np.int64).reshape(-1, 2)

    def decode(
        self, embeddings: Callable[[Indices], Tensor], prefixes: Indices, limits: Indices
    ) -> tuple[list[list[int]], dict[str, float]]:
        """Decode embeddings, a batch at a time.

        Args:
            embeddings: numbers of rows → (rows, dim) on the device; a thread of its own calls it for a batch while the
                batch before is decoded.
            prefixes: (rows, 2) int64, `</s> [language]`.
            limits: (rows,) int64, the most new tokens of each.

        Returns:
            The ids of each row, and counts for the receipt.
        """
        ids: list[list[int]] = [[] for _ in limits]
        order = np.argsort(-limits, kind="stable")

        def given_for(start: int, stop: int) -> tuple[Tensor, Tensor]:
            batch = order[start:stop]
            return embeddings(batch).to(self.dtype), torch.from_numpy(prefixes[batch]).to(self.device)

        def compute(start: int, stop: int) -> None:
            batch, given = order[start:stop], ahead.take(start, stop)
            if stop < len(order):
                ahead.begin(stop, min(2 * stop - start, len(order)))
            for index, found in zip(batch, self._search(*given, torch.from_numpy(limits[batch])), strict=True):
                ids[index] = found

        budget = self._budget = self._budget or self._first_budget(int(limits.max(initial=1)))
        with _Ahead(given_for) as ahead:
            failures = in_batches(np.full(len(order), self.beam), budget, compute)
        return ids, budget.counts(failures)

    def _first_budget(self, longest: int) -> Budget:
        """Return the budget of the first batch; longest: the largest limit of the first part."""
        rows = self.settings.batch_rows or CPU_ROWS
        if self.settings.batch_rows is None and self.device.startswith("cuda"):
            rows = rows_that_fit(self.card, longest, torch.cuda.mem_get_info(self.device)[1])
        fewer = f"{self.settings.name}.beam or length_factor" if self.beam > 1 else "length_factor"
        remedy = f"set {self.settings.name}.precision to float16, or lower {fewer}"
        return Budget(rows, "batch_rows", "hypotheses", remedy)

    def _search(self, embeddings: Tensor, prefixes: Tensor, limits: Tensor) -> list[list[int]]:
        """Return the best ids of each row; none where the decoder gives beam search only NaN."""
        if self.beam == 1:
            return self._greedy(embeddings, prefixes, limits)
        found = beam_search(
            self.network, embeddings, prefixes, limits, beam=self.beam, length_penalty=self.length_penalty
        )
        return [hypotheses[0].ids if hypotheses else [] for hypotheses in found]


def stopped_at_limit(ids: Sequence[Sequence[int]], limits: Indices) -> npt.NDArray[np.bool_]:
    """Return which rows ended because they reached their limit."""
    return np.fromiter((len(one) for one in ids), np.int64, len(ids)) >= limits


def stopped(taken: Mapping[str, float], decodings: int) -> dict[str, float]:
    """Return the count of decodings that stopped at their limit as it was `taken` when they were made.

    Their ids are not kept, so of documents that left the part since it cannot be told how many had stopped.
    """
    return {"stopped_at_length": min(taken.get("stopped_at_length", 0.0), float(decodings))}
