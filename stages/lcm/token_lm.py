"""A token language model over the same documents: what models of sentences are compared with (LCM 3.1, "smaLlama").

A decoder-only Transformer as Base-LCM's (RMSNorm, SwiGLU, RoPE) over the tokens of the encoder's own tokenizer. It
reads a document as its sentences stand in the corpus, `[language] pieces </s> [language] pieces </s> …`, and predicts
pieces and `</s>`, never a language: the same n + 1 tokens of each sentence whose likelihood a decoder gives other
models (`stages/sonar/likelihood.py`), so that −log p of a sentence can be compared. The closing sentence "End of text."
is one like the others. The embedding is the output layer as well.

Losses of a sentence, summed over its tokens, o_i being the output at what comes before token x_i:

cross-entropy  −log softmax(E o_i)[x_i] over the vocabulary
cwt            −log [exp(o_i·e(x_i)) / Σ_j exp(o_i·e(x_j))], j over the predicted tokens of a micro-batch on one device,
               equal ones too, as in the code of Godey et al. 2024 (Fig. 10); their printed equation lacks the
               logarithm. For the last steps (`token_lm.head` of all) cross-entropy: headless models need that to
               write, and their head begins as the embedding, which is the output layer here anyhow
n-grams        see `stages/lcm/ngram.py`; x of its equations are rows of the output layer

Documents of more than `context_tokens` are cut between sentences; while it learns, a piece knows nothing of those
before it; otherwise it reads up to half a context of them first. In evaluation mode the loss is always the likelihood.

Memory: activations of all tokens of a micro-batch, so `micro_concepts` has to be smaller than for models of sentences;
logits in chunks (`softmax.py`), 0.5 GB whatever the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from stages.batching import Indices, Tokens
from stages.lcm.attention import Cache, Rotations
from stages.lcm.batch import Batch
from stages.lcm.card import LcmCard
from stages.lcm.layers import Block, RMSNorm, SwiGLU, attention_flops, inference, initialize, matmul_flops
from stages.lcm.model import Lcm, Sampling
from stages.lcm.ngram import NgramHeads
from stages.lcm.packing import Packing, check_lengths, pack, visible_pairs
from stages.lcm.softmax import softmax_losses
from stages.scaler.robust import RobustScaler


@dataclass(frozen=True)
class Streams:
    """What a token model reads of a batch, on the host: pieces of documents, one after the other.

    ids: (positions,) tokens; lengths: (pieces,) tokens of each piece; labels: (positions,) the token that follows each
    if it counts as a target, else −1; sentence: (positions,) the sentence that each token belongs to.
    """

    ids: Indices
    lengths: Indices
    labels: Indices
    sentence: Indices

    @cached_property
    def scored(self) -> Indices:
        """Positions whose next token counts, ascending."""
        return np.flatnonzero(self.labels >= 0)

    @cached_property
    def before(self) -> Indices:
        """(positions,) Positions of the same piece that precede each."""
        return np.arange(len(self.ids)) - np.repeat(np.cumsum(self.lengths) - self.lengths, self.lengths)


def windows(sizes: list[int], context: int, before: int) -> list[tuple[int, int, int]]:
    """Cut a document into windows that fit the context; every sentence is scored once.

    Sentences from `start` to before `end` are read, at most `context` tokens, and those from `first` on are scored; the
    ones from `start` to `first` have at most `before` tokens.

    Args:
        sizes: how many tokens each sentence has, none above `context`.
        context: the most tokens of a window.
        before: the most tokens of sentences that are read again.

    Returns:
        (start, first, end) of each window.
    """
    found: list[tuple[int, int, int]] = []
    first = 0
    while first < len(sizes):
        start, room, end, length = first, before, first, 0
        while found and start and sizes[start - 1] <= room and length + sizes[start - 1] + sizes[first] <= context:
            start -= 1
            room -= sizes[start]
            length += sizes[start]
        while end < len(sizes) and length + sizes[end] <= context:
            length += sizes[end]
            end += 1
        found.append((start, first, end))
        first = end
    return found


class TokenLm(Lcm):
    """A token language model, described at the head of this file.

    It predicts no embeddings: `likelihoods` scores sentences, and `continue_texts` (`token_writing.py`) writes them.

    Args:
        card: the architecture.
        scaler: the scaler of embeddings, kept for the model's file.
        vocabulary: the size of the vocabulary.
    """

    def __init__(self, card: LcmCard, scaler: RobustScaler, vocabulary: int) -> None:
        super().__init__()
        assert card.layers is not None and card.context_tokens is not None
        self.card, self.scaler, self.context = card, scaler, card.context_tokens
        self.headless, self._fitting = card.learns.loss == "cwt", False
        self.embedding = nn.Embedding(vocabulary, card.model_dim)
        self.layers = nn.ModuleList(
            Block(card.model_dim, card.heads, SwiGLU(card.model_dim, card.inner_dim), card.dropout, card.head_dim)
            for _ in range(card.layers)
        )
        self.norm = RMSNorm(card.model_dim)
        self.ngram = NgramHeads(card.ngram, card.model_dim, nn.Identity()) if card.ngram else None
        initialize(self, card.layers)
        nn.init.normal_(self.embedding.weight, std=card.model_dim**-0.5)  # logits then begin with a deviation of 1

    def begin_step(self, step: int, steps: int) -> None:
        """Let the last steps of a headless model train by cross-entropy."""
        self._fitting = self.headless and step >= self.card.with_first_loss(steps)

    def check(self, batch: Batch) -> None:
        """Raise ValueError for a single token of a headless model, which has nothing to be told from."""
        if self.headless and not self._fitting and len(self._streams(batch).scored) == 1:
            raise ValueError(
                "a micro-batch has a single token to predict, and the loss cwt tells tokens from each other: give "
                "more, so that every micro-batch has several"
            )

    def losses(self, batch: Batch) -> Tensor:
        """Return the loss in nats of every sentence, 0 for those without weight; in evaluation mode its −log p."""
        if not self.training:
            return self.likelihoods(batch)
        streams = self._streams(batch)
        hidden = self._read(streams.ids, streams.lengths)
        if self.ngram is not None:
            return self._ngram_losses(self.ngram, streams, hidden, batch.sentences)
        scored = hidden.index_select(0, _on(streams.scored, hidden))
        labels = _on(streams.labels[streams.scored], hidden)
        if self.headless and not self._fitting:
            found = headless_losses(scored, self.embedding(labels), self.card.learns.temperature)
        else:
            found = softmax_losses(scored, self.embedding.weight, labels)
        return _summed(found, streams.sentence[streams.scored], batch.sentences)

    def likelihoods(self, batch: Batch, ensemble: float = 0.0) -> Tensor:
        """Return (sentences,) float32: −log p of each from those before it, in nats, 0 without weight. ensemble: λ."""
        streams = self._streams(batch)
        hidden = self._read(streams.ids, streams.lengths)
        predicted = self._predicted(hidden, streams.ids, streams.before, ensemble)
        places = _on(streams.scored, hidden)
        labels = _on(streams.labels[streams.scored], hidden)
        found = softmax_losses(predicted.index_select(0, places), self.embedding.weight, labels)
        return _summed(found, streams.sentence[streams.scored], batch.sentences)

    @inference
    def read_on(self, ids: Indices, packing: Packing, caches: list[Cache]) -> Tensor:
        """Read tokens that follow those whose keys and values are in caches.

        Args:
            ids: (positions,) int64.
            packing: where the tokens stand.
            caches: keys and values, one cache for each layer.

        Returns:
            (positions, model_dim).
        """
        return self._hidden(ids, packing, caches)

    @inference
    def next_logits(self, hidden: Tensor, ids: Indices, before: Indices, ensemble: float = 0.0) -> Tensor:
        """Return logits for the token after each position.

        Args:
            hidden: (positions, model_dim) of tokens `ids`, texts one after the other.
            ids: (positions,) int64.
            before: (positions,) int64, how many positions of the same text precede each.
            ensemble: the weight of n-gram heads, whose last n positions of a text decide about its end; 0 for none.

        Returns:
            (positions, vocabulary) float32.
        """
        return (self._predicted(hidden, ids, before, ensemble) @ self.embedding.weight.T).float()

    def predict(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Raise ValueError: a token model has no embeddings to predict."""
        raise ValueError(f"{self.card.name} is a token language model, which predicts no embeddings")

    def next(self, batch: Batch, sampling: Sampling) -> Tensor:
        """Raise ValueError: a token model has no embeddings to predict."""
        return self.predict(batch, sampling)

    def flops(self, batch: Batch) -> float:
        """Count the operations of `losses`, of scores that are not computed a second time; those of a headless model
        over the tokens of the batch.
        """
        card, streams = self.card, self._streams(batch)
        assert card.layers is not None
        inner, positions, scored = card.heads * card.width_of_head, len(streams.ids), len(streams.scored)
        block = 4 * card.model_dim * inner + 3 * card.model_dim * card.inner_dim
        against = scored if self.headless and not self._fitting else self.embedding.num_embeddings
        found = matmul_flops(card.layers * block, positions) + matmul_flops(card.model_dim * against, scored)
        if card.ngram:
            head = 2 * card.model_dim**2 + card.model_dim * against
            found += matmul_flops((card.ngram.n - 1) * head, scored)
        return found + attention_flops(inner, visible_pairs(torch.from_numpy(streams.lengths))) * card.layers

    def blocks(self) -> list[nn.Module]:
        """Return the layers."""
        return list(self.layers)

    def _streams(self, batch: Batch) -> Streams:
        check_lengths(batch.lengths, self.card.context)
        if batch.tokens is None:
            raise ValueError(f"{self.card.name} learns by words and has not been given the tokens of its sentences")
        before = 0 if self.training else self.context // 2
        counted = np.zeros(batch.sentences, np.bool_)
        counted[batch.target_rows] = True
        return streams_of(batch.tokens, batch.lengths, counted, self.context, before)

    def _read(self, ids: Indices, lengths: Indices) -> Tensor:
        """Return (positions, model_dim): at each token what is known of the next, as rows of the embedding are
        compared.
        """
        return self._hidden(ids, pack(torch.from_numpy(lengths), self.embedding.weight.device))

    def _hidden(self, ids: Indices, packing: Packing, caches: Sequence[Cache | None] = ()) -> Tensor:
        rotations = Rotations.of(packing, self.card.width_of_head, self.card.rope_base)
        x: Tensor = self.embedding(_on(ids, self.embedding.weight))
        for block, cache in zip(self.layers, caches or [None] * len(self.layers), strict=True):
            x = block(x, packing, rotations, cache)
        normed: Tensor = self.norm(x)
        return normed

    def _predicted(self, hidden: Tensor, ids: Indices, before: Indices, share: float) -> Tensor:
        """Return (positions, model_dim): what rows of the embedding are compared with, of all heads where `share` is
        not 0.
        """
        if self.ngram is None or not share:
            return hidden
        known = self.embedding(_on(np.roll(ids, -1), hidden))
        return self.ngram.ensemble(hidden, known, _on(before, hidden), share)

    def _ngram_losses(self, heads: NgramHeads, streams: Streams, hidden: Tensor, sentences: int) -> Tensor:
        following = np.roll(streams.ids, -1)
        known = self.embedding(_on(following, hidden))
        total = hidden.new_zeros(sentences, dtype=torch.float32)
        for number, share in enumerate(heads.shares):
            # What h_t predicts stands at t + 1; its head n predicts the label of t + n, in the same piece.
            targets = streams.scored[streams.before[streams.scored] >= number]
            places = _on(targets - number, hidden)
            predicted = heads.ahead(number, hidden, known) if number else hidden
            labels = _on(streams.labels[targets], hidden)
            found = softmax_losses(predicted.index_select(0, places), self.embedding.weight, labels)
            total = total + share * _summed(found, streams.sentence[targets], sentences)
        return total


def streams_of(
    tokens: Tokens, lengths: Tensor, counted: np.ndarray[tuple[int], np.dtype[np.bool_]], context: int, before: int
) -> Streams:
    """Return the windows of documents as streams of tokens.

    Args:
        tokens: the tokens of all sentences.
        lengths: (documents,) int64, how many sentences each has.
        counted: (sentences,) bool, whether each is a target.
        context: the most tokens of a window.
        before: the most tokens of sentences that are read again.

    Returns:
        Tokens, labels and the sentence of each token.

    Raises:
        ValueError: for a sentence of more than `context` tokens.
    """
    sizes = tokens.lengths
    if len(sizes) and sizes.max() > context:
        raise ValueError(f"a sentence has {sizes.max()} tokens, and the model reads {context} at once")
    pieces: list[tuple[int, int, int]] = []
    row = 0
    for length in lengths.tolist():
        here = windows(sizes[row : row + length].tolist(), context, before)
        pieces += [(row + start, row + first, row + end) for start, first, end in here]
        row += length
    rows = np.concatenate([np.arange(start, end) for start, _, end in pieces])
    scored = np.concatenate([np.arange(start, end) >= first for start, first, end in pieces])
    read = sizes[rows]
    ends = np.cumsum(read)
    ids = tokens.ids[np.repeat(tokens.offsets[rows] - (ends - read), read) + np.arange(ends[-1])].astype(np.int64)
    labels = np.where(np.repeat(scored & counted[rows], read), np.roll(ids, -1), -1)
    labels[ends - 1] = -1  # a language follows
    borders = np.cumsum([0, *(end - start for start, _, end in pieces)])
    return Streams(ids, np.add.reduceat(read, borders[:-1]), labels, np.repeat(rows, read))


def headless_losses(outputs: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """Return the losses of contrastive weight tying, −log softmax(outputs · keysᵀ / temperature) at i.

    Args:
        outputs: (n, width).
        keys: (n, width), the own key of each output at the same place.
        temperature: above 0.

    Returns:
        (n,) float32.
    """
    return softmax_losses(outputs / temperature, keys, torch.arange(len(keys), device=keys.device))


def _summed(values: Tensor, sentence: Indices, sentences: int) -> Tensor:
    """Return (sentences,) float32: sums of (tokens,) values by their sentences, which ascend, always added in one
    order.
    """
    counts = np.bincount(sentence, minlength=sentences)
    places = torch.from_numpy(np.arange(max(1, counts.max(initial=0))) < counts[:, None])
    places = places.to(values.device, non_blocking=True)
    return torch.zeros(places.shape, device=values.device).masked_scatter(places, values.float()).sum(1)


def _on(numbers: Indices, like: Tensor) -> Tensor:
    """Move to the device of another tensor, without waiting for it."""
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(like.device, non_blocking=True)
