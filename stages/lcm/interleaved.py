"""The Transformer of the One-Tower, LCM 2.3.3 and fig. 7: clean sentences, and noisy ones that attend to them.

All sentences of a document are predicted in one pass, at twice the positions. When sampling, the keys and values of the
clean ones are computed once, and only the noisy ones pass through the layers again at every step.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from stages.lcm.attention import Cache
from stages.lcm.card import LcmCard
from stages.lcm.layers import Block, FeedForward, Lookup, PostNet, attention_flops, initialize, matmul_flops
from stages.lcm.packing import Packing, interleaved, visible_pairs, with_themselves

POSITIONS = 0.1  # standard deviation of position embeddings at the start, where the other inputs have about 1


class InterleavedTransformer(nn.Module):
    """A Transformer over clean sentences and noisy ones, each with an index that says how noisy it is.

    Each input is an embedding concatenated with the embedding of its index, projected; a learned position is added. The
    index is a timestep, or the number of a codebook; clean sentences have index 0. The product with a concatenation is
    the sum of two products, and that with the index's part is computed once per index.
    """

    def __init__(self, card: LcmCard, dim: int, out_dim: int, index: nn.Module, indices: int) -> None:
        """Create the layers.

        Args:
            card: the architecture.
            dim: the width of the inputs.
            out_dim: the width of the predictions.
            index: a module that maps (entries,) int64 to (entries, card.model_dim).
            indices: how many different indices there are, from 0.
        """
        super().__init__()
        assert card.layers is not None
        self.indices = indices
        self.index = index
        self.embedding_in = nn.Linear(dim, card.model_dim, bias=False)
        self.index_in = nn.Linear(card.model_dim, card.model_dim)
        self.positions = nn.Embedding(card.context, card.model_dim)
        self.layers = nn.ModuleList(
            Block(card.model_dim, card.heads, FeedForward(card.model_dim, card.inner_dim), card.dropout)
            for _ in range(card.layers)
        )
        self.post = PostNet(card.model_dim, out_dim)
        initialize(self, card.layers)
        nn.init.normal_(self.positions.weight, std=POSITIONS)

    def forward(self, clean: Tensor, noisy: Tensor, index: Tensor, dropped: Tensor, packing: Packing) -> Tensor:
        """Predict each noisy sentence.

        Args:
            clean: (sentences, dim) normalised.
            noisy: (sentences, dim) normalised.
            index: (sentences,) int64, the index of each noisy sentence.
            dropped: (sentences,) bool, noisy sentences that see nothing but themselves.
            packing: the packing of the sentences.

        Returns:
            (sentences, out_dim) float32.
        """
        zero = torch.zeros_like(index)
        lookup = Lookup.over(torch.cat([zero, index]), self.indices)
        x = self._inputs(torch.cat([clean, noisy]), lookup, packing)
        both = interleaved(packing, dropped)
        for block in self.layers:
            x = block(x, both)
        predicted: Tensor = self.post(x[len(clean) :])
        return predicted

    def read(self, clean: Tensor, packing: Packing) -> list[Cache]:
        """Return the keys and values of clean sentences (sentences, dim), normalised, in every layer."""
        x = self._inputs(clean, Lookup.same(packing.scatter.new_zeros(1)), packing)
        caches = [Cache() for _ in self.layers]
        for block, cache in zip(self.layers, caches, strict=True):
            x = block(x, packing, None, cache)
        return caches

    def refine(self, noisy: Tensor, index: Tensor, queries: Packing, caches: list[Cache]) -> Tensor:
        """Return what `forward` predicts of noisy sentences, given what `read` returned.

        Args:
            noisy: (n, dim) at the positions of `queries`; or (2n, dim), whose second half sees nothing but itself.
            index: (n,) or (2n,) int64, the same number everywhere.
            queries: the packing of the noisy sentences.
            caches: what `read` returned, one for each layer.

        Returns:
            (n, out_dim) or (2n, out_dim) float32.
        """
        x = self._inputs(noisy, Lookup.same(index), queries)
        seen = replace(queries, mask=with_themselves(queries.before))
        for block, cache in zip(self.layers, caches, strict=True):
            x = block(x, seen, None, cache)
        predicted: Tensor = self.post(x)
        return predicted

    def flops(self, lengths: Tensor) -> float:
        """Count the operations of `forward` and its backward pass, without those of `index`."""
        width, positions = self.index_in.in_features, 2 * int(lengths.sum())
        out, entries = self.post.project.weight.numel(), -(-self.indices // 8) * 8
        return (
            matmul_flops(sum(one.numel() for one in self.layers.parameters() if one.ndim == 2), positions)
            + matmul_flops(2 / 3 * self.embedding_in.weight.numel(), positions)  # no gradient of the data
            + matmul_flops(out, positions / 2)
            + matmul_flops(width**2, entries)
            + Lookup.flops(entries, width, positions)
            + attention_flops(width, 2 * visible_pairs(lengths)) * len(self.layers)
        )

    def _inputs(self, x: Tensor, index: Lookup, packing: Packing) -> Tensor:
        """Map (positions or twice as many, dim) to (…, model_dim)."""
        places = packing.flat(packing.positions).repeat(len(x) // len(packing.scatter))
        embedded: Tensor = self.embedding_in(x) + index(self.index_in(self.index(index.entries)))
        positions: Tensor = self.positions(places)
        return embedded + positions.to(embedded.dtype)
