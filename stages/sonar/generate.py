"""Embeddings → token sequences: beam search with a KV cache, and greedy decoding of a single batch (`greedy.py`).

Bookkeeping lies in tensors on the device, for all rows at once; rows that are finished leave the batch. Greedy decoding
costs one pass of the decoder per token, beam search `beam` of them and one copy of the cache. Memory: the cache of
`rows · beam` hypotheses at the longest limit, and in beam search `LOGITS` logits with their logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stages.sonar.greedy import Greedy, OpenRows, longest_limit
from stages.sonar.ids import END, PAD
from stages.sonar.networks import SonarTextDecoder

LOGITS = 1 << 27  # how many beam search looks at in one go: at most 1.1 GB with their logarithms in float32


def greedy(decoder: SonarTextDecoder, embeddings: Tensor, prefixes: Tensor, max_new_tokens: Tensor) -> list[list[int]]:
    """Decode one batch with a new `Greedy`; for many batches keep one instead.

    Args:
        decoder: the network.
        embeddings: (rows, dim).
        prefixes: (rows, 2) int64, `</s> [language]`.
        max_new_tokens: (rows,) int64, each ≥ 1.

    Returns:
        The new ids of each row.
    """
    return Greedy(decoder)(embeddings, prefixes, max_new_tokens)


@dataclass(frozen=True)
class Hypothesis:
    """New ids, `</s>` included; score: the sum of log-probabilities over (length − 1)^penalty, prefix counted."""

    ids: list[int]
    score: float


@torch.inference_mode()
def beam_search(
    decoder: SonarTextDecoder,
    embeddings: Tensor,
    prefixes: Tensor,
    max_new_tokens: Tensor,
    *,
    beam: int = 5,
    length_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """Return the best hypotheses of each row, best first, as the official generator finds them.

    Of each step's `2 · beam` best continuations those among the first `beam` that are `</s>` end a hypothesis, and the
    first `beam` others go on. A row is finished when `beam` hypotheses ended; its last token is forced to be `</s>`.
    The score holds the language tag's log-probability too; with a limit of one token a row has one hypothesis, and none
    where the decoder gives no numbers (NaN).

    Args:
        decoder: the network.
        embeddings: (rows, dim).
        prefixes: (rows, 2) int64, `</s> [language]`.
        max_new_tokens: (rows,) int64, each ≥ 1, preferably on the CPU.
        beam: how many hypotheses are kept; at most half of the vocabulary.
        length_penalty: the exponent of a hypothesis's length in its score.

    Returns:
        For each row at most `beam` hypotheses.

    Raises:
        ValueError: if `beam` is out of its range.
    """
    rows, prefix_length = prefixes.shape
    vocab = decoder.embedding.weight.shape[0]
    if beam < 1 or 2 * beam > vocab:
        raise ValueError(f"beam is {beam}; a vocabulary of {vocab} tokens allows 1 to {vocab // 2}")
    if rows == 0:
        return []
    longest = longest_limit(max_new_tokens)
    state = decoder.start(embeddings, capacity=longest + 1, most=rows * beam)
    likely = decoder.logits(decoder.step(prefixes[:, 0], state)).log_softmax(dim=1, dtype=torch.float32)
    scores = likely.gather(1, prefixes[:, 1:])  # (rows, hypotheses of a row): one, after the first step `beam`
    del likely
    token = prefixes[:, 1]
    batch = _Batch(max_new_tokens.to(embeddings.device))
    found = torch.zeros_like(batch.rows)
    trellis = _Trellis.empty(longest, rows, beam, embeddings.device)
    for position in range(longest):
        hidden = decoder.step(token, state).view(*scores.shape, -1)
        values, parents, tokens = _candidates(decoder, hidden, scores, batch.limits == position + 1, 2 * beam)
        is_end = tokens == END
        ends = is_end[:, :beam] & (values[:, :beam] > -torch.inf) & batch.open[:, None]
        trellis.end(position, batch.rows, ends, found, values / (prefix_length + position) ** length_penalty, parents)
        found = found + ends.sum(dim=1)
        others = is_end.int().sort(dim=1, stable=True).indices[:, :beam]
        width, scores = scores.shape[1], values.gather(1, others)
        parents, tokens = parents.gather(1, others), tokens.gather(1, others)
        trellis.grow(position, batch.rows, parents, tokens)
        hopeless = scores[:, 0] == -torch.inf
        batch.close((found >= beam) | (batch.limits == position + 1) | hopeless)
        sources = torch.arange(len(scores), device=scores.device)[:, None] * width + parents
        if batch.should_shrink():
            kept = batch.shrink()
            if len(kept) == 0:
                break
            sources, scores, tokens, found = sources[kept], scores[kept], tokens[kept], found[kept]
        if position < longest - 1:
            state.keep(sources.flatten())
            token = tokens.flatten()
    return trellis.hypotheses()


class _Batch:
    """Which rows a batch still holds, which of them are open (not finished), and their limits.

    Rows that are finished but still there compute for nothing.
    """

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits
        self.rows = torch.arange(len(limits), device=limits.device)
        self.open = torch.ones(len(limits), dtype=torch.bool, device=limits.device)
        self._opened = OpenRows()

    def close(self, finished: Tensor) -> None:
        """Mark rows as finished; (rows,) bool."""
        self.open = self.open & ~finished

    def should_shrink(self) -> bool:
        """Return whether a quarter is finished: moving the cache costs more than a few idle rows do."""
        return self._opened.count(self.open) <= 0.75 * len(self.rows)

    def shrink(self) -> Tensor:
        """Remove the finished rows, and return the places of those that stay, if any."""
        kept = self.open.nonzero()[:, 0]
        self.rows, self.limits, self.open = self.rows[kept], self.limits[kept], self.open[kept]
        return kept


def _candidates(
    decoder: SonarTextDecoder, hidden: Tensor, scores: Tensor, is_last: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations of each row: scores, hypotheses they continue, tokens, each (rows, count), best
    first.

    hidden: (rows, hypotheses, dim); scores: (rows, hypotheses); is_last: (rows,) bool, where only `</s>` may follow.
    """
    rows, width = scores.shape
    vocab = decoder.embedding.weight.shape[0]
    at_once = max(1, LOGITS // (width * vocab))
    found = []
    for start in range(0, rows, at_once):
        some = slice(start, start + at_once)
        likely = decoder.logits(hidden[some]).log_softmax(dim=2, dtype=torch.float32)
        likely[:, :, PAD] = -torch.inf
        likely += scores[some, :, None]
        best = likely.flatten(1).topk(count, dim=1)
        ending = likely[:, :, END].sort(dim=1, descending=True, stable=True)
        found.append((best.values, best.indices, ending.values, ending.indices))
    values, indices, end_values, end_parents = (torch.cat(pieces) for pieces in zip(*found, strict=True))
    last, room = is_last[:, None], (0, count - width)
    values = torch.where(last, F.pad(end_values, room, value=-torch.inf), values)
    parents = torch.where(last, F.pad(end_parents, room), indices // vocab)
    tokens = torch.where(last, END, indices % vocab)
    return values.masked_fill(values.isnan(), -torch.inf), parents, tokens


@dataclass(frozen=True)
class _Trellis:
    """How all hypotheses grew: the token of each step and the hypothesis of the step before that it continues.

    tokens, parents: (steps, rows, beam). end_scores, end_steps, end_parents: (rows, beam + 1), a column for each ended
    hypothesis in the order in which they ended, and one that takes what counts for nothing; end_scores −inf: none.
    """

    tokens: Tensor
    parents: Tensor
    end_scores: Tensor
    end_steps: Tensor
    end_parents: Tensor

    @classmethod
    def empty(cls, steps: int, rows: int, beam: int, device: torch.device) -> _Trellis:
        """Return a trellis without any step yet."""
        return cls(
            tokens=torch.zeros((steps, rows, beam), dtype=torch.int32, device=device),
            parents=torch.zeros((steps, rows, beam), dtype=torch.int32, device=device),
            end_scores=torch.full((rows, beam + 1), -torch.inf, device=device),
            end_steps=torch.zeros((rows, beam + 1), dtype=torch.int64, device=device),
            end_parents=torch.zeros((rows, beam + 1), dtype=torch.int64, device=device),
        )

    def end(self, step: int, rows: Tensor, ends: Tensor, found: Tensor, scores: Tensor, parents: Tensor) -> None:
        """Record which of the first `beam` candidates ended, (rows, beam) bool; `found` have ended before them."""
        beam = ends.shape[1]
        place = found[:, None] + ends.cumsum(dim=1) - 1
        at = rows[:, None], torch.where(ends & (place < beam), place, beam)
        self.end_scores[at] = scores[:, :beam]
        self.end_steps[at] = step
        self.end_parents[at] = parents[:, :beam]

    def grow(self, step: int, rows: Tensor, parents: Tensor, tokens: Tensor) -> None:
        """Record which hypotheses go on, each (rows, beam)."""
        self.tokens[step, rows] = tokens.to(torch.int32)
        self.parents[step, rows] = parents.to(torch.int32)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """Walk back from where each hypothesis ended."""
        tokens, parents = self.tokens.cpu().numpy(), self.parents.cpu().numpy()
        scores, steps, at = (one[:, :-1].cpu().numpy() for one in (self.end_scores, self.end_steps, self.end_parents))
        ids = np.full((*scores.shape, len(tokens) + 1), END, np.int64)
        for step in range(len(tokens) - 1, -1, -1):
            rows, places = np.nonzero(steps > step)
            ids[rows, places, step] = tokens[step, rows, at[rows, places]]
            at[rows, places] = parents[step, rows, at[rows, places]]
        found: list[list[Hypothesis]] = []
        for row, order in enumerate(np.argsort(-scores, axis=1, kind="stable")):
            ended = [place for place in order if scores[row, place] > -np.inf]
            found.append([Hypothesis(ids[row, k, : steps[row, k] + 1].tolist(), float(scores[row, k])) for k in ended])
        return found
