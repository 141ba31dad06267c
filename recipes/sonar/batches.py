"""Tokenised sentences → batches of like length.

Tokens lie in one flat int32 array, so a corpus of 100 million tokens costs 400 MB and no Python objects. Batches are
made round by round from a seed, so the state of the sampler is two integers and resuming is exact. On a GPU the tokens
lie in its memory, and batches are made there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stages.sonar.ids import END, PAD


@dataclass
class TokenSequences:
    """Token sequences without their `</s>`s, end to end: sequence i is `flat[starts[i]:starts[i + 1]]`, tag first."""

    flat: np.ndarray
    starts: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]]) -> TokenSequences:
        lengths = np.fromiter((len(ids) for ids in sequences), np.int64, len(sequences))
        starts = np.concatenate(([0], np.cumsum(lengths)))
        flat = np.fromiter((i for ids in sequences for i in ids), np.int32, int(starts[-1]))
        return cls(flat, starts)

    @classmethod
    def join(cls, parts: Sequence[TokenSequences]) -> TokenSequences:
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.flat for part in parts]), np.concatenate(([0], np.cumsum(lengths))))


@dataclass
class TrainingSet:
    """All sequences, which of them stand alone, and which are translations of each other.

    alone: indices of sequences; sources: of each of these the number of the corpus it comes from.
    groups: (records, languages) index of a sequence or -1.
    """

    tokens: TokenSequences
    alone: np.ndarray
    sources: np.ndarray
    groups: np.ndarray

    def save(self, path: Path, made_of: str) -> None:
        """Save the sequences. made_of: the corpora and the tokenizer, which `load` compares."""
        np.savez(
            path,
            flat=self.tokens.flat,
            starts=self.tokens.starts,
            alone=self.alone,
            sources=self.sources,
            groups=self.groups,
            made_of=np.array(made_of),
        )

    @classmethod
    def load(cls, path: Path, made_of: str) -> TrainingSet:
        """Load what `save` wrote. Raises ValueError if the file was made of other corpora or with another tokenizer."""
        with np.load(path) as arrays:
            found = str(arrays["made_of"]) if "made_of" in arrays else "unknown corpora"
            if found != made_of:
                raise ValueError(f"{path} was made of {found}, not of {made_of}; delete it or take another --out")
            tokens = TokenSequences(arrays["flat"], arrays["starts"])
            return cls(tokens, arrays["alone"], arrays["sources"], arrays["groups"])


@dataclass
class TokenBatch:
    source: Tensor  # (rows, length) int64
    mask: Tensor | None  # (rows, length) bool, None where no row is padded
    target_in: Tensor  # (rows, length) int64: </s> [language] pieces
    target_out: Tensor  # (rows, length) int64: [language] pieces </s>; PAD counts for nothing
    kept: Tensor | None  # (tokens,) int64: where a flat target is not PAD; None if nowhere
    tokens: int  # of all targets


class Batches:
    """Batches of like length under a token budget, in a seeded order that can be taken up anywhere.

    A round draws `round_size` examples: `aligned_share` of them from aligned records (half autoencoding, half into any
    of the record's languages), the rest autoencoding sentences that stand alone, each once before any twice. Of those,
    `weights` says how many come from each corpus (None: as many as it has), and of sentences shorter than `thinned`
    tokens only a part takes part: one of n tokens with the probability n / thinned. Batches lie on `device`.
    """

    def __init__(
        self,
        data: TrainingSet,
        *,
        seed: int,
        aligned_share: float,
        weights: Sequence[float] | None = None,
        thinned: int = 0,
        round_size: int = 60_000,
        device: str = "cpu",
    ) -> None:
        self.data, self.seed, self.device = data, seed, device
        self.flat = torch.from_numpy(data.tokens.flat).to(device)
        found = (data.groups >= 0).sum(axis=1) > 0
        self.groups = data.groups[found]
        share = aligned_share if len(self.groups) else 0.0
        self.aligned = round_size if not len(data.alone) else round(round_size * share)
        self.pools, self.single = self._pools(round_size - self.aligned, weights, thinned)

    def _pools(self, wanted: int, weights: Sequence[float] | None, thinned: int) -> tuple[list[np.ndarray], list[int]]:
        """Return sequences of each pool, and how many of them a round draws."""
        alone, sources = self.data.alone, self.data.sources
        if thinned:
            chance = np.random.default_rng((self.seed, 2)).random(len(alone))
            kept = self.data.tokens.lengths[alone] >= chance * thinned
            alone, sources = alone[kept], sources[kept]
        if weights is None:
            return [alone], [wanted]
        pools = [alone[sources == number] for number in range(len(weights))]
        share = np.array([weight * (len(pool) > 0) for weight, pool in zip(weights, pools, strict=True)])
        ends = np.round(share.cumsum() / max(share.sum(), 1e-9) * wanted).astype(int)
        return pools, np.diff(ends, prepend=0).tolist()

    def plan(self, number: int, longest: int, budget: int) -> list[np.ndarray]:
        """Return the batches of a round, each (rows, 2): source and target sequence.

        No sequence is over `longest` tokens, no batch of several over `budget`.
        """
        rng = np.random.default_rng((self.seed, number))
        pairs = np.concatenate((self._single(number), self._aligned(rng)))
        size = self.data.tokens.lengths[pairs].max(axis=1) + 1
        pairs, size = pairs[size <= longest], size[size <= longest]
        order = np.lexsort((rng.random(len(size)), size))
        pairs, size = pairs[order], size[order]
        batches, begin = [], 0
        while begin < len(pairs):
            end = min(len(pairs), begin + max(1, budget // int(size[begin])))
            while (end - begin) * int(size[end - 1]) > budget and end - begin > 1:
                end -= 1
            batches.append(pairs[begin:end])
            begin = end
        return [batches[i] for i in rng.permutation(len(batches))]

    def _single(self, number: int) -> np.ndarray:
        drawn = []
        for pool, (alone, size) in enumerate(zip(self.pools, self.single, strict=True)):
            wanted = np.arange(number * size, (number + 1) * size)
            turns = wanted // len(alone) if len(alone) else wanted[:0]
            for turn in np.unique(turns):
                order = np.random.default_rng((self.seed, 1, pool, int(turn))).permutation(len(alone))
                drawn.append(alone[order[wanted[turns == turn] % len(alone)]])
        chosen = np.concatenate(drawn) if drawn else np.empty(0, np.int64)
        return np.stack((chosen, chosen), axis=1)

    def _aligned(self, rng: np.random.Generator) -> np.ndarray:
        if not self.aligned:
            return np.empty((0, 2), np.int64)
        rows = self.groups[rng.integers(len(self.groups), size=self.aligned)]
        weight = rng.random((2, *rows.shape)) * (rows >= 0)
        source, target = (np.take_along_axis(rows, w.argmax(axis=1)[:, None], axis=1)[:, 0] for w in weight)
        return np.stack((source, np.where(rng.random(self.aligned) < 0.5, source, target)), axis=1)

    def batch(self, pairs: np.ndarray) -> TokenBatch:
        source, mask = self._ended(pairs[:, 0])
        target, inside = self._ended(pairs[:, 1])
        before = torch.where(target[:, :-1] == END, PAD, target[:, :-1])
        lengths = self.data.tokens.lengths[pairs[:, 1]] + 1
        # counted on the host, so that no GPU is waited for
        places = np.flatnonzero(np.arange(lengths.max()) < lengths[:, None]) if inside is not None else None
        return TokenBatch(
            source,
            mask,
            torch.cat((torch.full_like(target[:, :1], END), before), dim=1),
            target,
            None if places is None else torch.from_numpy(places).to(self.device),
            int(lengths.sum()),
        )

    def _ended(self, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """Return (rows, length) int64, each row with `</s>` behind it and then PAD; and what is not PAD, if not all."""
        starts, lengths = self.data.tokens.starts[rows], self.data.tokens.lengths[rows]
        longest, shortest = int(lengths.max()), int(lengths.min())
        begin, size = torch.from_numpy(np.stack((starts, lengths))).to(self.device).unsqueeze(2)
        column = torch.arange(longest + 1, device=self.device)
        found = self.flat[torch.where(column < size, begin + column, 0)].long()
        ended = torch.where(column < size, found, torch.where(column == size, END, PAD))
        return ended, None if shortest == longest else column <= size
